"""The loss operators of ``kernels/schemas.py``, by the kernels of ``device``."""

from __future__ import annotations

import torch
from torch import Tensor

from . import launch
from .device import loss as kernels
from .device import steps
from .rows import alpha_of, effort, flat, options


def soft_loss_fwd(
    x: Tensor, target: Tensor, alpha: Tensor | None, value: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Against target probabilities of the shape and type of ``x``."""
    return _forward(x, None, alpha, value, 0.0, flat(target).contiguous(), True)


def soft_loss_bwd(
    x: Tensor, target: Tensor, g: Tensor, alpha: Tensor | None, value: float, state: Tensor, *_: Tensor
) -> tuple[Tensor, Tensor]:
    return _backward(x, None, g, alpha, value, 0.0, flat(target).contiguous(), state, True)


def loss_fwd(
    x: Tensor, target: Tensor, alpha: Tensor | None, value: float, smoothing: float, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _forward(x, target.contiguous(), alpha, value, smoothing, packed(weight), False)


def packed(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.contiguous()


def _sum_of(weight: Tensor | None, soft: bool) -> Tensor | None:
    """Of all class weights, or of each row's."""
    return None if weight is None else weight.sum(-1, dtype=torch.float32 if soft else weight.dtype)


def _forward(
    x: Tensor,
    target: Tensor | None,
    alpha: Tensor | None,
    value: float,
    smoothing: float,
    weight: Tensor | None,
    soft: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss, state, columns, p); the last two are there for the schema: the backward starts from the scores."""
    rows = flat(x)
    count, n = rows.shape
    cap = min(n, max(64, n // 64))
    new = x.new_empty
    loss, state = new(count, dtype=torch.float32), new((count, 5), dtype=torch.float64)
    kept = new((count, cap), dtype=torch.int32), new((count, cap), dtype=torch.float32)
    if x.numel():
        memory, stride, kind = alpha_of(alpha, value, x)
        table = launch.rows(n, launch.LIGHT if kind != steps.ANY else launch.HEAVIEST)
        kernels.forward[(-(-count // table.R),)](
            rows, target, memory, weight, _sum_of(weight, soft), loss, state,
            rows.stride(0), stride, count, n, smoothing,
            KIND=kind, BY_ALPHA=alpha is not None, SMOOTH=smoothing != 0, SOFT=soft, **options(table),
        )  # fmt: skip
    return loss, state, *kept


def loss_bwd(
    x: Tensor,
    target: Tensor,
    g: Tensor,
    alpha: Tensor | None,
    value: float,
    smoothing: float,
    weight: Tensor | None,
    state: Tensor,
    *_: Tensor,
) -> tuple[Tensor, Tensor]:
    return _backward(x, target.contiguous(), g, alpha, value, smoothing, packed(weight), state, False)


def _backward(
    x: Tensor,
    target: Tensor | None,
    g: Tensor,
    alpha: Tensor | None,
    value: float,
    smoothing: float,
    weight: Tensor | None,
    state: Tensor,
    soft: bool,
) -> tuple[Tensor, Tensor]:
    rows = flat(x)
    count, n = rows.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    g = g.reshape(-1).contiguous()
    if x.numel():
        memory, stride, kind = alpha_of(alpha, value, x)
        table = launch.rows(n, effort(kind))
        kernels.backward[(-(-count // table.R),)](
            rows, target, g, memory, weight, _sum_of(weight, soft), state, dx,
            rows.stride(0), stride, count, n, smoothing,
            KIND=kind, SMOOTH=smoothing != 0, SOFT=soft, **options(table),
        )  # fmt: skip
    change = g.double() * state[:, 3] if alpha is not None else x.new_empty(0, dtype=torch.float64)
    return dx, change
