"""The fused output layer and loss as an autograd function: one loss per row, for class indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..engine.fused import aliases, for_kernel
from ..engine.modes import derivative_is_observed

ops = torch.ops.parsimax
Whole = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, float, float], Tensor]


def linear_row_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    target: Tensor,
    fixed: float,
    softcap: float,
    whole: Whole,
) -> Tensor:
    """Ω*(z) - z_c with z = hidden weightᵀ + bias, (N); 0 where the target is -1. ``whole`` is the same in torch."""
    given = (hidden, weight, bias, alpha)
    need = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    if not need:
        loss: Tensor = ops._linear_loss_fwd(hidden, weight, bias, target, for_kernel(alpha), fixed, softcap, False)[0]
        return loss
    loss = _Linear.apply(*given, target, fixed, softcap, whole)  # type: ignore[no-untyped-call]
    return loss


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        alpha: Tensor | None,
        target: Tensor,
        fixed: float,
        softcap: float,
        whole: Whole,
    ) -> Tensor:
        loss, *state = ops._linear_loss_fwd(hidden, weight, bias, target, for_kernel(alpha), fixed, softcap, True)
        ctx.numbers, ctx.whole, ctx.state = (fixed, softcap), whole, state
        ctx.save_for_backward(hidden, weight, bias, alpha, target)
        result: Tensor = loss
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, target = ctx.saved_tensors
        hidden, weight, bias, alpha = inputs
        wanted = ctx.needs_input_grad[:4]
        if derivative_is_observed(g):
            with torch.enable_grad():
                named = aliases(inputs, wanted)
                at = [t for t, w in zip(named, wanted, strict=True) if w]
                y = ctx.whole(*named, target, *ctx.numbers)
                grads = iter(torch.autograd.grad(y, at, g.to(y.dtype), create_graph=True, materialize_grads=True))
            return (*(next(grads) if w else None for w in wanted), None, None, None, None)
        g = g.contiguous()
        dhidden, dweight, dbias = ops._linear_loss_bwd(
            g, hidden, weight, bias, target, for_kernel(alpha), *ctx.numbers, *ctx.state
        )
        change = None
        if alpha is not None and wanted[3]:
            change = (ctx.state[0][:, 2:3] * g.unsqueeze(-1)).sum_to_size(alpha.shape).to(alpha.dtype)
        return dhidden, dweight, dbias if wanted[2] else None, change, None, None, None, None
