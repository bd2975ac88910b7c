"""The row kernels as autograd functions.

A kernel knows how to run forward and backward, and its derivative rule in plain torch as a function of what was saved,
which serves where the derivative is itself differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .modes import derivative_is_observed, values_are_hidden

Rule = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


def aliases(inputs: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    """New names for inputs to differentiate by: where one input depends on another, its own path must not count."""
    return tuple(t.view_as(t) if w and t is not None else t for t, w in zip(inputs, wanted, strict=True))


@dataclass(frozen=True)
class RowKernel:
    """``forward(x, parameter) -> p``; ``backward(saved, g, parameter, want) -> (dx, dparameter or None)``, where
    ``saved`` is the output, or the input if ``saves_input``; ``rule`` is the same in torch, differentiable. With
    ``saves_both`` the input is saved, and the output comes last: ``backward(x, g, parameter, want, p)``.
    ``learn(x, parameter) -> (p, state)`` is the forward for a parameter that is learned: if the state is not empty,
    ``learn_backward(p, x, g, parameter, state, want)`` is more precise than ``backward``."""

    forward: Callable[[Tensor, Tensor | None], Tensor]
    backward: Callable[..., tuple[Tensor, Tensor | None]]
    rule: Rule
    operator: Callable[..., Tensor]  # of (x, parameter) or x alone, for graphs
    saves_input: bool = False
    saves_both: bool = False
    rule_from_output: bool = True  # the rule needs p alone, and its rounding does no harm
    sized: bool = False  # the size of the state does not depend on values, so that graphs may have it
    learn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    learn_backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]] | None = None

    def __call__(self, x: Tensor, parameter: Tensor | None = None) -> Tensor:
        """``parameter`` has the shape of ``x`` with size 1 in the last dimension, or broadcasts to that."""
        if parameter is not None and parameter.numel() != 1:
            parameter = parameter.expand(*x.shape[:-1], 1)
        needs = torch.is_grad_enabled() and (x.requires_grad or (parameter is not None and parameter.requires_grad))
        if not needs:
            return self.forward(x, for_kernel(parameter))
        out: Tensor = _Rows.apply(self, x, parameter)  # type: ignore[no-untyped-call]
        return out


@dataclass(frozen=True)
class Fixed:
    """A kernel without a parameter whose derivative is a function of its output: ``backward(p, g) -> dx``."""

    forward: Callable[[Tensor, None, float], Tensor]  # the operator itself: a function around it would show
    value: float
    backward: Callable[[Tensor, Tensor], Tensor]
    rule: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        if not (x.requires_grad and torch.is_grad_enabled()):
            return self.forward(x, None, self.value)
        out: Tensor = _FixedRows.apply(self, x)  # type: ignore[no-untyped-call]
        return out


class _FixedRows(torch.autograd.Function):
    """As short as can be: on a tiny tensor every line of Python shows."""

    @staticmethod
    def forward(ctx: Any, kernel: Fixed, x: Tensor) -> Tensor:
        p = kernel.forward(x, None, kernel.value)
        ctx.kernel = kernel
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        (p,) = ctx.saved_tensors
        run = ctx.kernel.rule if derivative_is_observed(g) else ctx.kernel.backward
        return None, run(p, g)


def for_kernel(parameter: Tensor | None) -> Tensor | None:
    """Kernels read parameters in float32 or float64."""
    if parameter is None or parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return parameter.float()


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: RowKernel, x: Tensor, parameter: Tensor | None) -> Tensor:
        plain, state = for_kernel(parameter), None
        # Where the size of the state depends on the values, a graph goes without it.
        if kernel.learn is not None and plain is not None and (kernel.sized or not values_are_hidden()):
            p, state = kernel.learn(x, plain)
        else:
            p = kernel.forward(x, plain)
        ctx.kernel, ctx.parameter_given = kernel, parameter is not None
        ctx.state = state if state is not None and (kernel.sized or len(state)) else None  # len fixes a size in a graph
        more = [] if parameter is None else [parameter]
        also = [p] if kernel.saves_both else [] if ctx.state is None else [x]
        ctx.save_for_backward(x if kernel.saves_input or kernel.saves_both else p, *more, *also)
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved, *rest = ctx.saved_tensors
        parameter = rest[0] if ctx.parameter_given else None
        if derivative_is_observed(g):
            dx, change = ctx.kernel.rule(saved, g, parameter)
        elif ctx.state is not None:
            want = ctx.needs_input_grad[2]
            dx, change = ctx.kernel.learn_backward(saved, rest[1], g, for_kernel(parameter), ctx.state, want)
        else:
            also = rest[-1:] if ctx.kernel.saves_both else []
            dx, change = ctx.kernel.backward(saved, g, for_kernel(parameter), ctx.needs_input_grad[2], *also)
        if parameter is None or not ctx.needs_input_grad[2]:
            return None, dx, None
        if change is None:
            return None, dx, torch.zeros_like(parameter)
        if change.shape != parameter.shape:  # one per row, of a parameter that all rows share
            change = change.reshape(*saved.shape[:-1], 1).sum_to_size(parameter.shape)
        return None, dx, change.to(parameter.dtype)
