"""The loss kernels as autograd functions: one loss per row, for class indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..engine.fused import aliases, for_kernel
from ..engine.modes import derivative_is_observed

ops = torch.ops.parsimax
Whole = Callable[[Tensor, Tensor, Tensor | None, float, float, Tensor | None], Tensor]


def row_losses(
    x: Tensor,
    target: Tensor,
    alpha: Tensor | None,
    fixed: float,
    smoothing: float,
    weight: Tensor | None,
    whole: Whole,
) -> Tensor:
    """Ω*(z) - z_c of each row of ``x`` (…, n), smoothed; 0 where the target is -1. ``whole`` is the same in torch.

    ``weight`` (n) is float64, counts only with smoothing, and has no gradient.
    """
    alpha = alpha if alpha is None or alpha.numel() == 1 else alpha.expand(*x.shape[:-1], 1)
    loss: Tensor = _Losses.apply(x, target, alpha, fixed, smoothing, weight, whole)  # type: ignore[no-untyped-call]
    return loss


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, alpha: Tensor | None, *fixed: Any) -> Tensor:
        *ctx.fixed, ctx.whole = fixed
        loss, *ctx.state = ops._loss_fwd(x, target, for_kernel(alpha), *ctx.fixed)
        ctx.given = alpha is not None
        ctx.save_for_backward(x, target, *([] if alpha is None else [alpha]))
        result: Tensor = loss.reshape(x.shape[:-1])
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, target, *rest = ctx.saved_tensors
        alpha = rest[0] if ctx.given else None
        want_x, _, want_alpha, *_ = ctx.needs_input_grad
        if derivative_is_observed(g):
            with torch.enable_grad():
                x, alpha = aliases((x, alpha), (want_x, want_alpha))
                at = [t for t, w in ((x, want_x), (alpha, want_alpha)) if w and t is not None]
                y = ctx.whole(x, target, alpha, *ctx.fixed)
                grads = iter(torch.autograd.grad(y, at, g.to(y.dtype), create_graph=True, materialize_grads=True))
            dx, change = next(grads) if want_x else None, next(grads) if want_alpha else None
            return dx, None, change, None, None, None, None
        dx, change = ops._loss_bwd(x, target, g.contiguous(), for_kernel(alpha), *ctx.fixed, *ctx.state)
        if alpha is None or not want_alpha:
            return dx, None, None, None, None, None, None
        change = change.reshape(*x.shape[:-1], 1).sum_to_size(alpha.shape).to(alpha.dtype)
        return dx, None, change, None, None, None, None
