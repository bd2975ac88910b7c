"""r-softmax: softmax with a chosen rate of zeros."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..engine.apply import apply, formula_rule
from ..engine.arguments import Interval
from ..engine.chunked import Formula, Solve
from ..engine.fused import RowKernel, Rule
from ..engine.operators import define
from ..engine.sums import is_lean
from ..kernels.schemas import like
from ..parameters import Setting
from .declaration import MappingModule
from .tsoftmax import from_top, weighted_softmax

ops = torch.ops.parsimax
_UNIT = 2**38
# A cut that is closer to the maximum is measured in this unit: the slope of the weights, its inverse, would overflow.
_NEAR = {torch.float32: 2.0**-100, torch.float64: 2.0**-900}
RATE = Setting("rate", Interval(0, 1), example=0.5, about="the share of zeros")


def _place(rate: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """rate · (size - 1) as a whole number and the rest, and what is left of the rest up to 1."""
    position = rate * (size - 1)
    if not is_lean(position):
        first = position.detach().floor().clamp(min=0).to(torch.long)
        return first, position - first, 1 - (position - first)
    # float32 has no bits for the rest behind a large whole number; a rate is a multiple of 2^-38, if it is not tiny.
    exact = (rate.detach() * _UNIT).to(torch.long) * (size - 1)
    first = exact // _UNIT
    learned = position - position.detach()
    rest = ((exact - first * _UNIT).to(rate.dtype) / _UNIT) + learned
    return first, rest, ((first + 1) * _UNIT - exact).to(rate.dtype) / _UNIT - learned


def _quantile(z: Tensor, live: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The quantile of the live entries, by linear interpolation, how far each entry lies above it, and the entries.

    All three are in a unit of the row's own, a power of 2, which the weights do not depend on. A gradient reaches
    the two entries around the quantile, and the rate.
    """
    size, n = live.sum(-1, keepdim=True), z.shape[-1]
    order = z.detach().masked_fill(~live, -math.inf).argsort(-1)  # forbidden entries come first
    below, share, left = _place(rate, size)
    above = torch.minimum(below + 1, size - 1)
    at = order.gather(-1, torch.cat([below, above], -1).expand(*z.shape[:-1], 2) + (n - size))
    low, high = z.gather(-1, at).chunk(2, -1)
    near = _NEAR[z.dtype]
    depth = low.detach() + share.detach() * (high - low).detach()
    unit = torch.where(depth > -near, near, torch.ones_like(depth))
    z, low, high = z / unit, low / unit, high / unit
    cut = low + share * (high - low)
    if not is_lean(z):
        return cut, z - cut, z
    return cut, torch.where(z >= high, (z - high) + left * (high - low), (z - low) - share * (high - low)), z


def _rows(z: Tensor, live: Tensor, rate: Tensor, *, solve: Solve) -> Tensor:
    return _cut(z, live, rate, detach=False)


def _rows_detached(z: Tensor, live: Tensor, rate: Tensor, *, solve: Solve) -> Tensor:
    return _cut(z, live, rate, detach=True)


def _cut(z: Tensor, live: Tensor, rate: Tensor, *, detach: bool) -> Tensor:
    cut, above, scaled = _quantile(z, live, rate)
    t = scaled.masked_fill(~live, -math.inf).amax(-1, keepdim=True) - cut
    if detach:  # the paper's: t is a constant, and the weights still follow the maximum
        t = t.detach()
        moving = from_top(scaled, live)
        above = above.detach() + (moving - moving.detach())
    flat = t <= 0  # the cut is at the maximum: only the maxima are left
    rest = torch.relu(above)  # relu and not clamp: a score at the cut has no gradient, as a higher rate leaves it out
    weight = torch.where(flat, (z == 0).to(z.dtype), rest / torch.where(flat, 1, t))
    return weighted_softmax(weight, z, live)


def rsoftmax_kernel(rule: Rule) -> RowKernel:
    def forward(x: Tensor, rate: Tensor | None) -> Tensor:
        p: Tensor = ops._rsoftmax_fwd(x, rate, 0.0)
        return p

    def backward(x: Tensor, g: Tensor, rate: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._rsoftmax_bwd(x, g, rate, 0.0, None, want)
        return dx, change if want else None

    def keep(x: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        p, cuts = ops._rsoftmax_keep(x, rate, 0.0)
        return p, cuts

    def backward_from_cuts(
        _: Tensor, x: Tensor, g: Tensor, rate: Tensor, cuts: Tensor, want: bool
    ) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._rsoftmax_bwd(x, g, rate, 0.0, cuts, want)
        return dx, change if want else None

    return RowKernel(
        forward,
        backward,
        rule,
        operator=lambda x, rate: ops.rsoftmax(x, rate),
        saves_input=True,
        rule_from_output=False,
        sized=True,
        learn=keep,
        learn_backward=backward_from_cuts,
    )


FORMULAS: dict[bool, Formula] = {False: _rows, True: _rows_detached}
KERNEL = rsoftmax_kernel(formula_rule(_rows, RATE.domain))


def rsoftmax(
    scores: Tensor,
    rate: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
    detach_threshold: bool = False,
) -> Tensor:
    r"""r-softmax: the share of zeros is a dial.

    .. math:: \operatorname{tsoftmax}(z, t), \qquad t = \max(z) - \operatorname{quantile}_r(z)

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        rate: in [0, 1], the share of the allowed entries that get 0: k/n gives exactly k zeros for 0 < k < n and
            distinct scores, 1 is one-hot. A float, or a tensor that is 0-dim or broadcasts to ``scores`` with size 1
            along ``dim``; differentiable. A row whose rate is outside is NaN.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.
        detach_threshold: hold t constant in the gradient, as the paper's code does. The default is the true gradient,
            through the quantile.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros. Where the quantile is the maximum (equal scores, a
        rate of 1) they are uniform over the maxima, and their gradient is that of softmax over these.

    Example:
        >>> import torch, parsimax
        >>> parsimax.rsoftmax(torch.tensor([3.0, 2.0, 1.0, 1.0]), 0.5)
        tensor([0.8908, 0.1092, 0.0000, 0.0000])

    Rate 0 is t = max - min, so the smallest entry gets 0 even then: it is not softmax, which is the limit of
    :func:`tsoftmax` for t → ∞. Where all entries that could count are equal the answer is uniform over the maxima, and
    its gradient 0.

    Reference: Bałazy, Struski, Śmieja and Tabor, r-softmax, ICCS 2023.
    """
    formula, parameter = FORMULAS[bool(detach_threshold)], RATE.at(rate)
    face: dict[str, Any] = {"dim": dim, "mask": mask, "dtype": dtype, "where": "rsoftmax"}
    return apply(formula, scores, parameter, **face, kernel=KERNEL, detach_threshold=bool(detach_threshold))


define("rsoftmax(Tensor x, Tensor rate) -> Tensor", KERNEL, rsoftmax, like)


class RSoftmax(MappingModule, function=rsoftmax, setting=RATE, kernel=KERNEL):
    rate: float | Tensor
