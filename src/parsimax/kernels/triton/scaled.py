"""The operators of t-softmax, sigsoftmax, sparsegen, sparsehourglass and normmax, by the kernels of
``device/scaled.py`` and ``device/normmax.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import launch
from .device import normmax
from .device import scaled as kernels
from .rows import flat, per_row, spread


def _forward(kernel: Any, x: Tensor, parameter: Tensor | None, value: float, effort: str = launch.ORDERED) -> Tensor:
    rows, count, n, grid, more = spread(x, effort)
    memory, stride = per_row(parameter, value, x)
    p = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        kernel[grid](rows, memory, p, rows.stride(0), stride, count, n, **more)
    return p


def _results(x: Tensor, count: int, need: bool) -> tuple[Tensor, Tensor]:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return dx, torch.zeros(count if need else 0, dtype=torch.float64, device=x.device)


def tsoftmax_fwd(x: Tensor, t: Tensor | None, value: float) -> Tensor:
    return _forward(kernels.tsoftmax, x, t, value)


def tsoftmax_bwd(x: Tensor, g: Tensor, t: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    rows, count, n, grid, more = spread(x, launch.HEAVY)
    memory, stride = per_row(t, value, x)
    g = flat(g)
    dx, change = _results(x, count, need)
    if x.numel():
        kernels.tsoftmax_backward[grid](
            rows, g, memory, dx, change if need else None, rows.stride(0), g.stride(0), stride, count, n,
            NEED=need, **more,
        )  # fmt: skip
    return dx, change


def sigsoftmax_fwd(x: Tensor) -> Tensor:
    rows, count, n, grid, more = spread(x)
    p = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        kernels.sigsoftmax[grid](rows, p, rows.stride(0), count, n, **more)
    return p


def sigsoftmax_bwd(x: Tensor, g: Tensor) -> Tensor:
    rows, count, n, grid, more = spread(x)
    g = flat(g)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        kernels.sigsoftmax_backward[grid](rows, g, dx, rows.stride(0), g.stride(0), count, n, **more)
    return dx


def sparsegen_fwd(x: Tensor, lam: Tensor | None, value: float) -> Tensor:
    return _forward(kernels.sparsegen, x, lam, value)


def sparsegen_bwd(p: Tensor, g: Tensor, lam: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    rows, count, n, grid, more = spread(p.contiguous())
    memory, stride = per_row(lam, value, p)
    g = flat(g)
    dx, change = _results(p, count, need)
    if p.numel():
        kernels.sparsegen_backward[grid](
            rows, g, memory, dx, change if need else None, g.stride(0), stride, count, n, NEED=need, **more
        )
    return dx, change


def hourglass_fwd(x: Tensor, q: Tensor | None, value: float) -> Tensor:
    return _forward(kernels.hourglass, x, q, value)


def hourglass_bwd(x: Tensor, p: Tensor, g: Tensor, q: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    rows, count, n, grid, more = spread(x)
    memory, stride = per_row(q, value, x)
    p, g = flat(p).contiguous(), flat(g)
    dx, change = _results(x, count, need)
    if x.numel():
        kernels.hourglass_backward[grid](
            rows, p, g, memory, dx, change if need else None, rows.stride(0), g.stride(0), stride, count, n,
            NEED=need, **more,
        )  # fmt: skip
    return dx, change


def normmax_fwd(x: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    return _forward(normmax.forward, x, alpha, value, launch.HEAVIEST)


def normmax_bwd(p: Tensor, g: Tensor, alpha: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    rows, count, n, grid, more = spread(p.contiguous(), launch.HEAVIEST)
    memory, stride = per_row(alpha, value, p)
    g = flat(g)
    dx, change = _results(p, count, need)
    if p.numel():
        normmax.backward[grid](
            rows, g, memory, dx, change if need else None, g.stride(0), stride, count, n, NEED=need, **more
        )
    return dx, change
