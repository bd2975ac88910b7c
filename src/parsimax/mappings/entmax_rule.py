"""entmax as a kernel: its derivative is a function of its output."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from ..engine.fused import Fixed, RowKernel
from ..engine.modes import direct
from ..engine.precision import formula_dtype

ops = torch.ops.parsimax
# Choosing the overload anew at each call costs a microsecond.
_entmax_fwd, _entmax_dx = direct(ops._entmax_fwd.default), direct(ops._entmax_dx.default)


def entmax_rule(p: Tensor, g: Tensor, alpha: Tensor | None, value: float) -> tuple[Tensor, Tensor | None]:
    """The derivative of entmax as a function of its output.

    With s = p^(2-α) on the support, dx = s (g - <s, g>/sum s). At a fixed threshold log p moves with α by
    q = -L^2 (e^(-y) - 1 + y)/y^2, L = log p, y = (α-1)L, so dp/dα = p q - s sum(p q)/sum(s).
    """
    out, work = p.dtype, formula_dtype(p)
    p, g = p.to(work), g.to(work)
    if alpha is None and value in FIXED_WEIGHTS:
        return _centred(FIXED_WEIGHTS[value](p), p, g).to(out), None
    a = alpha.to(work) if alpha is not None else torch.full((), value, dtype=work, device=p.device)
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


def tiny_backward15(p: Tensor, g: Tensor) -> Tensor:
    """The same at α = 1.5 with fewer operations. The sum of s is 1 at least, or 0 where nothing is allowed."""
    s = p.double().sqrt()
    moved = torch.where(p != 0, g, 0) * s
    mean = moved.sum(-1, keepdim=True).div_(s.sum(-1, keepdim=True).clamp_(min=0.5))
    return moved.addcmul_(s, mean, value=-1).to(p.dtype)


def tiny_backward2(p: Tensor, g: Tensor) -> Tensor:
    """The same at α = 2."""
    on = p > 0
    mean = torch.where(on, g, 0).sum(-1, keepdim=True, dtype=torch.float64) / on.sum(-1, keepdim=True)
    return torch.where(on, g - mean, p).to(p.dtype)  # elsewhere p is 0, or NaN


@lru_cache(maxsize=256)  # a schedule has many α
def fixed_entmax(alpha: float) -> Fixed:
    """entmax of a fixed α without anything to check, for :func:`~parsimax.engine.modes.quick` calls."""

    def backward(p: Tensor, g: Tensor) -> Tensor:
        dx: Tensor = _entmax_dx(p, g, alpha)
        return dx

    return Fixed(_entmax_fwd, alpha, backward, lambda p, g: entmax_rule(p, g, None, alpha)[0])


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
