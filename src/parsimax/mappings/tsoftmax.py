"""t-softmax: softmax with a linear cut at a distance t below the maximum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..engine.apply import apply, formula_rule
from ..engine.arguments import Interval
from ..engine.chunked import Solve
from ..engine.fused import RowKernel
from ..engine.operators import define
from ..engine.sums import normalised
from ..kernels.schemas import like
from ..parameters import Setting
from .declaration import MappingModule

ops = torch.ops.parsimax
T = Setting(
    "t", Interval(0, math.inf, closed_low=False), example=1.5, about="a score that far below the largest gets 0"
)


def weighted_softmax(weight: Tensor, z: Tensor, live: Tensor) -> Tensor:
    """w_i exp(z_i) / sum_j w_j exp(z_j) over the live entries."""
    return normalised(torch.where(live, weight * z.exp(), 0))


def from_top(z: Tensor, live: Tensor) -> Tensor:
    """z - max(z), where the maximum moves with the scores: the cut depends on it."""
    return z - z.masked_fill(~live, -math.inf).amax(-1, keepdim=True)


def tsoftmax_rows(z: Tensor, live: Tensor, t: Tensor, *, solve: Solve) -> Tensor:
    z = from_top(z, live)
    return weighted_softmax(torch.relu(1 + z / t), z, live)  # relu and not clamp: a score at the cut has no gradient


def tsoftmax_kernel() -> RowKernel:
    def forward(x: Tensor, t: Tensor | None) -> Tensor:
        p: Tensor = ops._tsoftmax_fwd(x, t, 0.0)
        return p

    def backward(x: Tensor, g: Tensor, t: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._tsoftmax_bwd(x, g, t, 0.0, want)
        return dx, change if want else None

    rule = formula_rule(tsoftmax_rows, T.domain)
    return RowKernel(forward, backward, rule, lambda x, t: ops.tsoftmax(x, t), saves_input=True, rule_from_output=False)


KERNEL = tsoftmax_kernel()


def tsoftmax(
    scores: Tensor,
    t: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""t-softmax: exact zeros for scores that trail the largest by t or more.

    .. math:: p_i \propto w_i e^{z_i}, \qquad w_i = [z_i - \max(z) + t]_+

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        t: in (0, ∞]; ∞ is softmax, t → 0 one-hot. A float, or a tensor that is 0-dim or broadcasts to ``scores`` with
            size 1 along ``dim``; differentiable. A row whose t is outside is NaN.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros.

    Example:
        >>> import torch, parsimax
        >>> parsimax.tsoftmax(torch.tensor([3.0, 2.0, 1.0]), 1.5)
        tensor([0.8908, 0.1092, 0.0000])

    The cut is fixed in units of the scores; :func:`rsoftmax` fixes the share of zeros instead.

    Reference: Bałazy, Struski, Śmieja and Tabor, r-softmax, ICCS 2023.
    """
    return apply(tsoftmax_rows, scores, T.at(t), dim=dim, mask=mask, dtype=dtype, where="tsoftmax", kernel=KERNEL)


define("tsoftmax(Tensor x, Tensor t) -> Tensor", KERNEL, tsoftmax, like)


class TSoftmax(MappingModule, function=tsoftmax, setting=T, kernel=KERNEL):
    t: float | Tensor
