"""The row kernels as autograd functions.

A kernel knows how to run forward and backward, and its derivative rule in plain torch as a function of what was saved,
which serves where the derivative is itself differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import library

ops = torch.ops.parsimax
# What the overload calls: choosing it anew at each call costs a microsecond, and going through Python a third of one.
_overload: Any = ops._entmax_fwd.default if library.AVAILABLE else None
_entmax_fwd: Any = getattr(_overload, "_op", _overload)
Rule = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


def derivative_is_observed(*tensors: Tensor) -> bool:
    """Something else than a first reverse pass looks at the gradient that is being computed."""
    return (
        torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or any(torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)
    )


def aliases(inputs: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    """New names for inputs to differentiate by: where one input depends on another, its own path must not count."""
    return tuple(t.view_as(t) if w and t is not None else t for t, w in zip(inputs, wanted, strict=True))


@dataclass(frozen=True)
class RowKernel:
    """``forward(x, parameter) -> p``; ``backward(saved, g, parameter, want) -> (dx, dparameter or None)``, where
    ``saved`` is the output, or the input if ``saves_input``; ``rule`` is the same in torch, differentiable.
    ``learn(x, parameter) -> (p, state)`` is the forward for a parameter that is learned: if the state is not empty,
    ``learn_backward(p, x, g, parameter, state, want)`` is more precise than ``backward``."""

    forward: Callable[[Tensor, Tensor | None], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor | None]]
    rule: Rule
    operator: Callable[..., Tensor]  # of (x, parameter) or x alone, for graphs
    saves_input: bool = False
    rule_from_output: bool = True  # the rule needs p alone, and its rounding does no harm
    learn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    learn_backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]] | None = None

    def __call__(self, x: Tensor, parameter: Tensor | None = None) -> Tensor:
        """``parameter`` has the shape of ``x`` with size 1 in the last dimension, or broadcasts to that."""
        if parameter is not None and parameter.numel() != 1:
            parameter = parameter.expand(*x.shape[:-1], 1)
        needs = torch.is_grad_enabled() and (x.requires_grad or (parameter is not None and parameter.requires_grad))
        if not needs:
            return self.forward(x, _plain(parameter))
        out: Tensor = _Rows.apply(self, x, parameter)  # type: ignore[no-untyped-call]
        return out


def _plain(parameter: Tensor | None) -> Tensor | None:
    """Kernels read parameters in float32 or float64."""
    if parameter is None or parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return parameter.float()


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: RowKernel, x: Tensor, parameter: Tensor | None) -> Tensor:
        plain, state = _plain(parameter), None
        # The size of the state depends on the values, so a graph goes without it.
        traced = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
        if kernel.learn is not None and plain is not None and not traced:
            p, state = kernel.learn(x, plain)
        else:
            p = kernel.forward(x, plain)
        ctx.kernel, ctx.parameter_given = kernel, parameter is not None
        ctx.state = state if state is not None and len(state) else None
        more = [] if parameter is None else [parameter]
        ctx.save_for_backward(x if kernel.saves_input else p, *more, *([] if ctx.state is None else [x]))
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved, *rest = ctx.saved_tensors
        parameter = rest[0] if ctx.parameter_given else None
        if derivative_is_observed(g):
            dx, change = ctx.kernel.rule(saved, g, parameter)
        elif ctx.state is not None:
            want = ctx.needs_input_grad[2]
            dx, change = ctx.kernel.learn_backward(saved, rest[1], g, _plain(parameter), ctx.state, want)
        else:
            dx, change = ctx.kernel.backward(saved, g, _plain(parameter), ctx.needs_input_grad[2])
        if parameter is None or not ctx.needs_input_grad[2]:
            return None, dx, None
        if change is None:
            return None, dx, torch.zeros_like(parameter)
        if change.shape != parameter.shape:  # one per row, of a parameter that all rows share
            change = change.reshape(*saved.shape[:-1], 1).sum_to_size(parameter.shape)
        return None, dx, change.to(parameter.dtype)


def _wide(p: Tensor) -> Tensor:
    return p.double()


def entmax_rule(p: Tensor, g: Tensor, alpha: Tensor | None, value: float) -> tuple[Tensor, Tensor | None]:
    """The derivative of entmax as a function of its output.

    With s = p^(2-α) on the support, dx = s (g - <s, g>/sum s). At a fixed threshold log p moves with α by
    q = -L^2 (e^(-y) - 1 + y)/y^2, L = log p, y = (α-1)L, so dp/dα = p q - s sum(p q)/sum(s).
    """
    out, p, g = p.dtype, _wide(p), _wide(g)
    if alpha is None and value in FIXED_WEIGHTS:
        return _centred(FIXED_WEIGHTS[value](p), p, g).to(out), None
    a = _wide(alpha) if alpha is not None else torch.full((), value, dtype=p.dtype)
    on = p != 0  # NaN counts as support, so that it is passed on
    hard = a == math.inf
    a = torch.where(hard, 2, a)
    log = torch.where(on, p, 1).log()
    s = torch.where(on, ((2 - a) * log).exp(), 0)
    total = s.sum(-1, keepdim=True)
    total = torch.where(on.any(-1, keepdim=True), total, 1)
    g = torch.where(on, g, 0)
    dx = torch.where(hard, 0, s * (g - (s * g).sum(-1, keepdim=True) / total))
    if alpha is None:
        return dx.to(out), None
    moved = torch.where(on, -p * log.square() * _second_remainder((a - 1) * log), 0)
    change = (g * (moved - s * (moved.sum(-1, keepdim=True) / total))).sum(-1, keepdim=True)
    return dx.to(out), torch.where(hard, 0, change)


# p^(2-α) at the fixed α, and its derivative where p = 0 is not asked for.
FIXED_WEIGHTS: dict[float, Callable[[Tensor], Tensor]] = {
    1.0: lambda p: p,
    1.5: lambda p: torch.where(p != 0, p, 1).sqrt(),
    2.0: lambda p: 1 + 0 * p,
    math.inf: lambda p: 0 * p,
}


def _centred(s: Tensor, p: Tensor, g: Tensor) -> Tensor:
    """s (g - <s, g>/sum s) on the support of p, where NaN counts as support, so that it is passed on."""
    on = p != 0
    s = torch.where(on, s, 0)
    total = s.sum(-1, keepdim=True)
    moved = torch.where(on, s * g, 0)
    return moved - s * (moved.sum(-1, keepdim=True) / torch.where(total == 0, 1, total))


def _second_remainder(y: Tensor) -> Tensor:
    """(e^(-y) - 1 + y)/y^2, smooth through 0."""
    near = y.abs() < 0.05
    t = torch.where(near, y, 0)
    series = 0.5 - t / 6 * (1 - t / 4 * (1 - t / 5 * (1 - t / 6 * (1 - t / 7 * (1 - t / 8 * (1 - t / 9))))))
    far = torch.where(near, 1, y)
    return torch.where(near, series, ((-far).expm1() + far) / far.square())


def entmax_kernel(value: float | None) -> RowKernel:
    """Of a fixed α, or of a tensor α if ``value`` is None."""
    fixed = 0.0 if value is None else value

    def forward(x: Tensor, alpha: Tensor | None) -> Tensor:
        p: Tensor = _entmax_fwd(x, alpha, fixed)
        return p

    def backward(p: Tensor, g: Tensor, alpha: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._entmax_bwd(p, g, alpha, fixed, want)
        return dx, change if want else None

    def learn(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        p, state = ops._entmax_learned_fwd(x, alpha)
        return p, state

    def learn_backward(
        p: Tensor, x: Tensor, g: Tensor, alpha: Tensor, state: Tensor, want: bool
    ) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._entmax_learned_bwd(p, x, g, alpha, state, want)
        return dx, change if want else None

    rule = partial(entmax_rule, value=fixed)

    def operator(x: Tensor, alpha: Tensor | None = None) -> Tensor:
        p: Tensor = ops.entmax(x, alpha, fixed)
        return p

    if value is not None:
        return RowKernel(forward, backward, rule, operator)
    return RowKernel(
        forward, backward, rule, operator, rule_from_output=False, learn=learn, learn_backward=learn_backward
    )


def topk_kernel(k: int) -> RowKernel:
    def forward(x: Tensor, _: Tensor | None) -> Tensor:
        p: Tensor = ops._topk_sparsemax_fwd(x, k)[0]
        return p

    sparsemax = entmax_kernel(2.0)
    return RowKernel(forward, sparsemax.backward, sparsemax.rule, operator=lambda x: ops.topk_sparsemax(x, k))


def budget_rule(p: Tensor, g: Tensor, budget: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Shares strictly between 0 and 1 move together; NaN counts as such, so that it is passed on."""
    out, g = p.dtype, _wide(g)
    between = ~((p == 0) | (p == 1))
    size = between.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(between, g, 0).sum(-1, keepdim=True) / size
    broken = torch.where(p.isnan(), math.nan, 1.0)
    return (torch.where(between, g - mean, 0) * broken).to(out), mean


def budget_kernel() -> RowKernel:
    def forward(x: Tensor, budget: Tensor | None) -> Tensor:
        p: Tensor = ops._budget_fwd(x, budget, 0.0)
        return p

    def backward(p: Tensor, g: Tensor, budget: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._budget_bwd(p, g, want)
        return dx, change if want else None

    return RowKernel(forward, backward, budget_rule, operator=lambda x, b: ops.budget_sparsemax(x, b))


def rsoftmax_kernel(rule: Rule) -> RowKernel:
    def forward(x: Tensor, rate: Tensor | None) -> Tensor:
        p: Tensor = ops._rsoftmax_fwd(x, rate, 0.0)
        return p

    def backward(x: Tensor, g: Tensor, rate: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._rsoftmax_bwd(x, g, rate, 0.0, False, want)
        return dx, change if want else None

    return RowKernel(
        forward,
        backward,
        rule,
        operator=lambda x, rate: ops.rsoftmax(x, rate),
        saves_input=True,
        rule_from_output=False,
    )
