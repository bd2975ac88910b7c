"""Functions of each number made of pieces, by a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..engine.fused import aliases
from ..engine.modes import derivative_is_observed
from .pieces import Pieces, plif_table

ops = torch.ops.parsimax
Formula = Callable[[Tensor, Tensor, float], Tensor]


def place(raw_slopes: Tensor, bound: float) -> tuple[float, float]:
    """The scale and the offset that take a number to its piece."""
    pieces = raw_slopes.shape[0]
    return pieces / (2 * bound), float(pieces // 2)


def plif_by_kernel(x: Tensor, raw_slopes: Tensor, bound: float, formula: Formula) -> Tensor:
    """``formula`` is the same in torch, differentiable any number of times."""
    out: Tensor = _Plif.apply(x, raw_slopes, bound, formula)  # type: ignore[no-untyped-call]
    return out


def pieces_by_kernel(x: Tensor, pieces: Pieces, weights: tuple[Tensor, ...], formula: Callable[..., Tensor]) -> Tensor:
    """A function of ``weights`` that is had as pieces; ``formula(x, *weights)`` is the function itself."""
    out: Tensor = _Pieces.apply(pieces, formula, x, *weights)  # type: ignore[no-untyped-call]
    return out


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: Pieces, formula: Callable[..., Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        ctx.pieces, ctx.formula = pieces, formula
        ctx.save_for_backward(x, *weights)
        out: Tensor = ops._pieces_fwd(x, pieces.table, pieces.scale, pieces.offset)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inputs, wanted, pieces = ctx.saved_tensors, ctx.needs_input_grad[2:], ctx.pieces
        if derivative_is_observed(g):
            with torch.enable_grad():
                named = aliases(inputs, wanted)
                at = [t for t, w in zip(named, wanted, strict=True) if w]
                grads = iter(torch.autograd.grad(ctx.formula(*named), at, g, create_graph=True, materialize_grads=True))
            return (None, None, *(next(grads) if w else None for w in wanted))
        dx, sums = ops._pieces_bwd(g, inputs[0], pieces.table, pieces.scale, pieces.offset)
        return (None, None, dx, *(grad for _, grad in pieces.backward(sums)))


class _Plif(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, raw_slopes: Tensor, bound: float, formula: Formula) -> Tensor:
        table = plif_table(raw_slopes, bound)
        ctx.save_for_backward(x, raw_slopes, table)
        ctx.bound, ctx.formula = bound, formula
        out: Tensor = ops._pieces_fwd(x, table, *place(raw_slopes, bound))
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, raw_slopes, table = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        if derivative_is_observed(g):
            with torch.enable_grad():
                named = aliases((x, raw_slopes), wanted)
                at = [t for t, w in zip(named, wanted, strict=True) if w]
                y = ctx.formula(*named, ctx.bound)
                grads = iter(torch.autograd.grad(y, at, g, create_graph=True, materialize_grads=True))
            return (*(next(grads) if w else None for w in wanted), None, None)
        dx, sums = ops._pieces_bwd(g, x, table, *place(raw_slopes, ctx.bound))
        return dx, ops._plif_slopes(sums, raw_slopes, ctx.bound) if wanted[1] else None, None, None
