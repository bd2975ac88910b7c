"""What users pass to an attention function, checked and brought into one form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine.arguments import FINITE, Interval, check_number
from . import biases

SHARE = Interval(0, 1)


@dataclass(frozen=True)
class Call:
    """One call: q (…, L, E), k (…, S, E), v (…, S, Ev) and a mask that broadcasts to (*lead, L, S).

    The leading dimensions of q, k and v broadcast to ``lead``, except that k and v may have fewer heads.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    dropout: float
    lead: tuple[int, ...]
    seed: Tensor | None = None  # of dropout that repeats; without one torch's own dropout draws

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of what there is one of per query."""
        return (*self.lead, self.q.shape[-2], 1)


def prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    where: str,
) -> Call:
    given = {"query": query, "key": key, "value": value}
    for name, tensor in given.items():
        _check_tensor(tensor, name, where)
    q, k, v = (_autocast(tensor) for tensor in given.values())
    _check_together(q, k, v, where)
    dropout = check_number(dropout_p, SHARE, "dropout_p", where)
    if isinstance(scale, Tensor):
        raise TypeError(f"{where}: scale must be a number; to learn it, multiply the query by it and pass scale=1.0")
    if scale is None:
        scale = q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
        scale = float(scale) if isinstance(scale, Tensor) else scale  # torch.jit.trace makes tensors of sizes
    scale = check_number(scale, FINITE, "scale", where)
    lead = _lead(q, k, v, enable_gqa, where)
    if attn_mask is not None and is_causal:  # torch's own error
        raise RuntimeError(f"{where}: Explicit attn_mask should not be set when is_causal=True")
    attn_mask, is_causal = biases.resolved(attn_mask, is_causal, q.shape[-2], k.shape[-2], q.device, where)
    if attn_mask is not None:
        biases.check_kind(attn_mask, "attn_mask", where)
        _check_mask(attn_mask, q, query.dtype, (*lead, q.shape[-2], k.shape[-2]), where)
    return Call(q, k, v, attn_mask, is_causal, scale, dropout, lead)


def check_alpha(alpha: float | Tensor, call: Call, domain: Interval, where: str) -> float | Tensor:
    if not isinstance(alpha, Tensor):
        return check_number(alpha, domain, "alpha", where)
    if not alpha.is_floating_point():
        raise TypeError(f"{where}: alpha must be floating point, got {alpha.dtype}")
    if not broadcasts(alpha, call.rows):
        hint = f"; for one α per head use alpha.view({alpha.shape[0]}, 1, 1)" if alpha.dim() == 1 else ""
        raise ValueError(
            f"{where}: alpha of shape {tuple(alpha.shape)} must be 0-dim or broadcast to {call.rows}, "
            f"(…, heads, queries, 1){hint}"
        )
    return alpha


def broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    own = tuple(tensor.shape)
    return len(own) <= len(shape) and all(a in (1, b) for a, b in zip(own, shape[len(shape) - len(own) :], strict=True))


def _autocast(x: Tensor) -> Tensor:
    """Under autocast SDPA takes its inputs in the lower precision, float64 excepted."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(kind))
    return x


def _check_tensor(x: Tensor, name: str, where: str) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{where}: {name} must be a torch.Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{where}: {name} must be floating point, got {x.dtype}")
    if x.is_nested:
        raise TypeError(
            f"{where}: {name} must not be a nested tensor; pad it with {name}.to_padded_tensor(0.0) and forbid the "
            "padding with attn_mask"
        )
    if x.dim() < 2:
        raise ValueError(f"{where}: {name} must have at least 2 dimensions (…, length, features), got {tuple(x.shape)}")


def _check_together(q: Tensor, k: Tensor, v: Tensor, where: str) -> None:
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"{where}: query, key and value must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(
            f"{where}: query, key and value must be on one device, got {q.device}, {k.device} and {v.device}"
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"{where}: query (…, L, E) and key (…, S, E) must share E, got {tuple(q.shape)} and {tuple(k.shape)}"
        )
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"{where}: key (…, S, E) and value (…, S, Ev) must share S, got {tuple(k.shape)} and {tuple(v.shape)}"
        )


def _lead(q: Tensor, k: Tensor, v: Tensor, grouped: bool, where: str) -> tuple[int, ...]:
    leads = [tuple(t.shape[:-2]) for t in (q, k, v)]
    if grouped:
        if not all(leads):
            raise ValueError(
                f"{where}: enable_gqa needs heads as the third dimension from the end, got {_shapes(q, k, v)}"
            )
        heads = leads[0][-1]
        if any(heads % own[-1] if own[-1] else heads for own in leads):
            raise ValueError(f"{where}: the heads of key and value must divide those of query, got {_shapes(q, k, v)}")
        leads = [(*own[:-1], heads) for own in leads]
    if leads[0] == leads[1] == leads[2]:
        return leads[0]
    try:
        return tuple(torch.broadcast_shapes(*leads))
    except RuntimeError as error:
        hint = "" if grouped else "; for fewer heads of key and value set enable_gqa=True"
        raise ValueError(f"{where}: the leading dimensions do not broadcast: {_shapes(q, k, v)}{hint}") from error


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"query {tuple(q.shape)}, key {tuple(k.shape)} and value {tuple(v.shape)}"


def _check_mask(mask: Tensor, q: Tensor, given: torch.dtype, shape: tuple[int, ...], where: str) -> None:
    if mask.dtype not in (torch.bool, torch.float32, q.dtype, given):
        raise TypeError(
            f"{where}: attn_mask must be boolean (True = may attend), or added to the scores as float32 or the query's "
            f"{given}, got {mask.dtype}"
        )
    if mask.device != q.device:
        raise ValueError(f"{where}: attn_mask must be on {q.device} as the query is, got {mask.device}")
    if not broadcasts(mask, shape):
        raise ValueError(f"{where}: attn_mask of shape {tuple(mask.shape)} does not broadcast to (…, L, S) = {shape}")
