"""The loss kernels as autograd functions: one loss per row, for class indices and for target probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..engine.fused import aliases, for_kernel
from ..engine.modes import derivative_is_observed

ops = torch.ops.parsimax
Whole = Callable[..., Tensor]


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
    loss: Tensor = _Losses.apply(x, target, alpha, HARD, whole, fixed, smoothing, weight)  # type: ignore[no-untyped-call]
    return loss


def soft_row_losses(x: Tensor, target: Tensor, alpha: Tensor | None, fixed: float, whole: Whole) -> Tensor:
    """Σ_c y_c (Ω*(z) - z_c) of each row of ``x`` and ``target`` (…, n), which has no gradient."""
    alpha = alpha if alpha is None or alpha.numel() == 1 else alpha.expand(*x.shape[:-1], 1)
    loss: Tensor = _Losses.apply(x, target, alpha, SOFT, whole, fixed)  # type: ignore[no-untyped-call]
    return loss


HARD, SOFT = "_loss", "_soft_loss"


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, target: Tensor, alpha: Tensor | None, kind: str, whole: Whole, *fixed: Any
    ) -> Tensor:
        ctx.kind, ctx.whole, ctx.fixed = kind, whole, fixed
        loss, *ctx.state = getattr(ops, f"{kind}_fwd")(x, target, for_kernel(alpha), *fixed)
        ctx.given = alpha is not None
        ctx.save_for_backward(x, target, *([] if alpha is None else [alpha]))
        result: Tensor = loss.reshape(x.shape[:-1])
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, target, *rest = ctx.saved_tensors
        alpha = rest[0] if ctx.given else None
        want_x, _, want_alpha, *others = ctx.needs_input_grad
        none = (None,) * len(others)
        if derivative_is_observed(g):
            with torch.enable_grad():
                x, alpha = aliases((x, alpha), (want_x, want_alpha))
                at = [t for t, w in ((x, want_x), (alpha, want_alpha)) if w and t is not None]
                y = ctx.whole(x, target, alpha, *ctx.fixed)
                grads = iter(torch.autograd.grad(y, at, g.to(y.dtype), create_graph=True, materialize_grads=True))
            dx, change = next(grads) if want_x else None, next(grads) if want_alpha else None
            return dx, None, change, *none
        run = getattr(ops, f"{ctx.kind}_bwd")
        dx, change = run(x, target, g.contiguous(), for_kernel(alpha), *ctx.fixed, *ctx.state)
        if alpha is None or not want_alpha:
            return dx, None, None, *none
        change = change.reshape(*x.shape[:-1], 1).sum_to_size(alpha.shape).to(alpha.dtype)
        return dx, None, change, *none
