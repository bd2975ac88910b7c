"""The attention operators of ``kernels/schemas.py``, by the kernels of ``device/attention.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..schemas import CAP, MAPPINGS
from . import interpreter, launch
from .device import attention as kernels
from .device import steps

interpreter.mend()
KINDS = {2.0: steps.SPARSEMAX, 1.5: steps.ENTMAX15}


def unit(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def strides(x: Tensor | None, sizes: int) -> tuple[int, ...]:
    """0 where the tensor repeats."""
    return (0,) * sizes if x is None else tuple(0 if x.shape[i] == 1 else x.stride(i) for i in range(sizes))


class Plan:
    """The numbers that all launches of a call share."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        alpha: Tensor | None,
        value: float,
        causal: bool,
        scale: float,
        dropout: float,
    ) -> None:
        self.q, self.k, self.v, self.scale = unit(q), unit(k), unit(v), scale
        (self.B, self.H, self.L, dim), (_, self.KVH, self.S, dimv) = q.shape, v.shape
        fixed = alpha is None and value in KINDS
        if alpha is None and not fixed:
            alpha = torch.full((1, 1, 1, 1), value, dtype=torch.float64, device=q.device)
        self.mask = q if mask is None else mask.view(torch.int8) if mask.dtype == torch.bool else mask
        self.alpha = q if alpha is None else alpha
        self.more = (*strides(mask, 4), *strides(alpha, 3))
        kind = KINDS[value] if fixed else steps.ANY
        self.table = launch.attention(
            max(dim, dimv), q.element_size(), kind == steps.ANY, dropout > 0 or self.H != self.KVH
        )
        self.tiles, self.blocks = -(-self.L // self.table.BM), -(-self.S // self.table.BN)
        self.shape = {
            "GROUP": self.H // max(1, self.KVH),
            "CAUSAL": causal,
            "MASK": 0 if mask is None else 1 if mask.dtype == torch.bool else 2,
            "KIND": kind,
            "BM": self.table.BM,
            "BN": self.table.BN,
            "D": launch.power(dim),
            "DIM": dim,
            "DV": launch.power(dimv),
            "DIMV": dimv,
            "PRECISION": launch.precision(max(dim, dimv)) if q.dtype == torch.float32 else "ieee",
        }

    def live(self, index: Tensor) -> tuple[Tensor, int, int]:
        """One byte for each tile and block, in what the schema keeps for columns if there is room, with its strides."""
        cap = index.shape[-1]
        last = self.L - (self.tiles - 1) * self.table.BM
        if self.blocks <= last * cap * 4:
            return index.view(torch.int8), self.L * cap * 4, self.table.BM * cap * 4
        flags = torch.ones((self.B * self.H, self.tiles, self.blocks), dtype=torch.int8, device=index.device)
        return flags, self.tiles * self.blocks, self.blocks

    def options(self) -> dict[str, Any]:
        if interpreter.ON:
            return self.shape
        return {**self.shape, "num_warps": self.table.warps, "num_stages": self.table.stages, "enable_fp_fusion": False}


def _check(mapping: int) -> None:
    """What ``kernels/backends.py`` keeps away."""
    if mapping:
        raise NotImplementedError(f"the Triton kernel of attention takes entmax, got {MAPPINGS[mapping]}")


def _dropped(dropout: float, seed: Tensor | None, device: torch.device) -> tuple[Tensor | None, float]:
    """(the seed and the least number of 32 bits that is kept, what kept weights are multiplied by)."""
    if not dropout or seed is None:
        return None, 1.0
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("attention draws the seed of dropout on the CPU: a CUDA graph would drop the same each time")
    given = torch.empty(2, dtype=torch.int64, device=device)
    given[0].fill_(int(seed))  # written by the GPU, which a copy from the CPU would wait for
    given[1].fill_(min(int(dropout * 2**32), 0xFFFFFFFF))
    return given, 1 / (1 - dropout) if dropout < 1 else 0.0


def attention_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    alpha: Tensor | None,
    value: float,
    mapping: int,
    causal: bool,
    scale: float,
    dropout: float,
    seed: Tensor | None,
    keep: bool,
) -> tuple[Tensor, ...]:
    """(context, thresholds, index, weight, count): index holds the live blocks; the last two are for the schema."""
    _check(mapping)
    drop, rescale = _dropped(dropout, seed, q.device)
    plan = Plan(q, k, v, mask, alpha, value, causal, scale, dropout)
    lead, cap = q.shape[:-1], min(CAP, k.shape[-2]) if keep else 0
    new = q.new_empty
    out, state = new((*lead, v.shape[-1])), new((*lead, 2), dtype=torch.float64)
    index = new((*lead, cap), dtype=torch.int32)
    if out.numel() and plan.S:
        live, by_head, by_tile = plan.live(index)
        kernels.forward[(plan.tiles * plan.B * plan.H,)](
            plan.q, plan.k, plan.v, plan.mask, plan.alpha, drop, out, state, live,
            *plan.q.stride()[:3], *plan.k.stride()[:3], *plan.v.stride()[:3], *plan.more, by_head, by_tile,
            plan.H, plan.L, plan.S, scale, rescale, KEEP=keep, **plan.options(),
        )  # fmt: skip
    else:
        out.zero_()
    return out, state, index, new((*lead, cap), dtype=torch.float32), new(lead, dtype=torch.int32)


def attention_bwd(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    alpha: Tensor | None,
    value: float,
    mapping: int,
    causal: bool,
    scale: float,
    dropout: float,
    seed: Tensor | None,
    state: Tensor,
    index: Tensor,
    weight: Tensor,
    count: Tensor,
    by_mask: bool,
) -> tuple[Tensor, ...]:
    _check(mapping)
    drop, rescale = _dropped(dropout, seed, q.device)
    plan = Plan(q, k, v, mask, alpha, value, causal, scale, dropout)
    g, lead = unit(g), q.shape[:-1]
    dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    dalpha = q.new_zeros((*lead, 1), dtype=torch.float64)
    dmask = q.new_zeros((*lead, k.shape[-2] if by_mask else 0), dtype=torch.float32)
    if not (q.numel() and plan.S and g.numel()):
        return dq.zero_(), dk.zero_(), dv.zero_(), dalpha, dmask
    live, by_head, by_tile = plan.live(index)
    facts = torch.empty((*lead, 3), dtype=torch.float32, device=q.device)
    sizes = (plan.q, plan.k, plan.v, g)
    places = (*(x for t in sizes for x in t.stride()[:3]), *plan.more, by_head, by_tile)
    given = (*sizes, plan.mask, plan.alpha, drop, state, live)
    kernels.queries[(plan.tiles * plan.B * plan.H,)](
        *given, dq, facts, dalpha, dmask if by_mask else None, *places, plan.H, plan.L, plan.S, scale, rescale,
        BY_ALPHA=alpha is not None, BY_MASK=by_mask, **plan.options(),
    )  # fmt: skip
    kernels.keys[(plan.blocks * plan.B * plan.KVH,)](
        *given, facts, dk, dv, *places, plan.KVH, plan.L, plan.S, scale, rescale, **plan.options()
    )
    return dq, dk, dv, dalpha, dmask
