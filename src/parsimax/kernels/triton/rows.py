"""The row operators of ``kernels/schemas.py``, by the kernels of ``device``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import interpreter, launch
from .device import entmax, gradient, order, steps

interpreter.mend()
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = {2.0: steps.SPARSEMAX, 1.5: steps.ENTMAX15, 1.0: steps.SOFTMAX, math.inf: steps.ARGMAX}


def options(table: launch.Rows) -> dict[str, Any]:
    """What a launch needs. Sums and products are fused only where a kernel says so: their bits do not depend on it."""
    shape = {"R": table.R, "B": table.B, "ONE": table.one}
    if interpreter.ON:
        return shape
    together = {"num_ctas": table.cluster} if table.cluster > 1 else {}
    return {**shape, "num_warps": table.warps, "num_stages": 1, "enable_fp_fusion": False, **together}


def flat(x: Tensor) -> Tensor:
    """Rows of unit stride in their last dimension."""
    if x.dtype not in DTYPES:
        raise TypeError(f"the Triton kernels take {', '.join(map(str, DTYPES))}, got {x.dtype}")
    x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def per_row(parameter: Tensor | None, value: float, x: Tensor) -> tuple[Tensor, int]:
    """A parameter as memory, and its stride over rows."""
    if parameter is None:
        return torch.full((1,), value, dtype=torch.float64, device=x.device), 0
    own = parameter.reshape(-1)
    return own, 0 if own.numel() == 1 else own.stride(0)


def alpha_of(alpha: Tensor | None, value: float, x: Tensor) -> tuple[Tensor, int, Any]:
    """(memory, stride, kind)."""
    if alpha is None and value in KINDS:
        return x, 0, KINDS[value]
    return *per_row(alpha, value, x), steps.ANY


def effort(kind: Any) -> str:
    """By how much a score costs: powers of any α need registers."""
    return launch.HEAVY if kind == steps.ANY else launch.LIGHT


def _forward(
    x: Tensor, alpha: Tensor | None, value: float, write: int, p: Tensor, more: tuple[Any, ...], cap: int = 0
) -> None:
    rows = flat(x)
    count, n = rows.shape
    if count == 0 or n == 0:
        return
    memory, stride, kind = alpha_of(alpha, value, x)
    table = launch.rows(n, effort(kind), cluster=1 if write == 2 else None)
    grid = (-(-count // table.R),)
    entmax.forward[grid](
        rows, memory, p, *more, rows.stride(0), stride, count, n, cap, KIND=kind, WRITE=write, **options(table)
    )


def entmax_fwd(x: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    p = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _forward(x, alpha, value, 0, p, (None, None, None))
    return p


def entmax_learned_fwd(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    if alpha.dtype == torch.float64 and not alpha.requires_grad:  # a number: nobody asks for its gradient
        return entmax_fwd(x, alpha, 0.0), torch.empty((0, 2), dtype=torch.float64, device=x.device)
    p = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    state = torch.empty((math.prod(x.shape[:-1]), 2), dtype=torch.float64, device=x.device)
    _forward(x, alpha, 0.0, 1, p, (state, None, None))
    return p, state


def support_fwd(x: Tensor, alpha: Tensor | None, value: float, cap: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = math.prod(x.shape[:-1])
    index = torch.zeros((rows, cap), dtype=torch.int64, device=x.device)
    p = torch.zeros((rows, cap), dtype=x.dtype, device=x.device)
    count = torch.zeros(rows, dtype=torch.int64, device=x.device)
    _forward(x, alpha, value, 2, p, (None, index, count), cap)
    return index, p, count


def _backward(
    x: Tensor, g: Tensor, alpha: Tensor | None, value: float, state: Tensor | None, need: bool
) -> tuple[Tensor, Tensor]:
    rows, g = flat(x).contiguous(), flat(g)
    count, n = rows.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    change = torch.empty(count if need else 0, dtype=torch.float64, device=x.device)
    if count == 0 or n == 0:
        return dx, change.zero_()
    memory, stride, kind = alpha_of(alpha, value, x)
    if need and kind != steps.ANY:
        memory, stride = per_row(None, value, x)
        kind = steps.ANY
    table = launch.rows(n, effort(kind) if need or state is not None else launch.BACKWARD)
    gradient.backward[(-(-count // table.R),)](
        rows, g, memory, state, dx, change if need else None, g.stride(0), stride, count, n,
        KIND=kind, BY_ALPHA=need, SCORES=state is not None, **options(table),
    )  # fmt: skip
    return dx, change


def entmax_bwd(p: Tensor, g: Tensor, alpha: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    return _backward(p, g, alpha, value, None, need)


def entmax_dx(p: Tensor, g: Tensor, alpha: float) -> Tensor:
    return entmax_bwd(p, g, None, alpha, False)[0]


def entmax_learned_bwd(
    p: Tensor, x: Tensor, g: Tensor, alpha: Tensor, state: Tensor, need: bool
) -> tuple[Tensor, Tensor]:
    return _backward(x, g, alpha, 0.0, state, need)


def spread(
    x: Tensor, effort: str = launch.ORDERED, cluster: int | None = None
) -> tuple[Tensor, int, int, tuple[int], dict[str, Any]]:
    """(rows, their number, their length, the grid, options) of a launch."""
    rows = flat(x)
    count, n = rows.shape
    table = launch.rows(n, effort, cluster=cluster)
    return rows, count, n, (-(-count // table.R),), options(table)


def topk_sparsemax_fwd(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    rows, count, n, grid, more = spread(x, cluster=1)
    p = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    certain = torch.empty(count, dtype=torch.bool, device=x.device)
    if x.numel():
        order.topk[grid](rows, p, certain.view(torch.int8), rows.stride(0), count, n, min(k, n), **more)
    return p, certain


def budget_fwd(x: Tensor, budget: Tensor | None, value: float) -> Tensor:
    rows, count, n, grid, more = spread(x)
    memory, stride = per_row(budget, value, x)
    p = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        order.budget[grid](rows, memory, p, rows.stride(0), stride, count, n, **more)
    return p


def budget_bwd(p: Tensor, g: Tensor, need: bool) -> tuple[Tensor, Tensor]:
    rows, count, n, grid, more = spread(p.contiguous())
    g = flat(g)
    dx = torch.empty(p.shape, dtype=p.dtype, device=p.device)
    change = torch.zeros(count if need else 0, dtype=torch.float64, device=p.device)
    if p.numel():
        order.budget_backward[grid](rows, g, dx, change if need else None, g.stride(0), count, n, NEED=need, **more)
    return dx, change


def rsoftmax_fwd(x: Tensor, rate: Tensor | None, value: float) -> Tensor:
    rows, count, n, grid, more = spread(x)
    memory, stride = per_row(rate, value, x)
    p = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        order.rsoftmax[grid](rows, memory, p, rows.stride(0), stride, count, n, **more)
    return p


def rsoftmax_keep(x: Tensor, rate: Tensor | None, value: float) -> tuple[Tensor, Tensor]:
    """The backward finds the cut again, so none is kept."""
    return rsoftmax_fwd(x, rate, value), torch.empty((math.prod(x.shape[:-1]), 7), dtype=torch.float64, device=x.device)


def rsoftmax_bwd(
    x: Tensor, g: Tensor, rate: Tensor | None, value: float, cuts: Tensor | None, need: bool
) -> tuple[Tensor, Tensor]:
    rows, count, n, grid, more = spread(x, launch.HEAVY)
    memory, stride = per_row(rate, value, x)
    g = flat(g)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    change = torch.zeros(count if need else 0, dtype=torch.float64, device=x.device)
    if x.numel():
        order.rsoftmax_backward[grid](
            rows, g, memory, dx, change if need else None, rows.stride(0), g.stride(0), stride, count, n,
            NEED=need, **more,
        )  # fmt: skip
    return dx, change
