"""Budget sparsemax: the projection onto {0 <= p <= 1, sum p = budget}."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..engine.apply import apply, unshifted
from ..engine.arguments import Interval
from ..engine.chunked import Solve
from ..engine.fused import RowKernel
from ..engine.operators import define
from ..engine.precision import formula_dtype
from ..engine.search import above, best, repeat, search
from ..engine.sums import apart, is_lean, moved, over, threshold, total
from ..kernels.schemas import like
from ..parameters import Setting
from .declaration import MappingModule

ops = torch.ops.parsimax
BUDGET = Setting("budget", Interval(0, math.inf), example=2.0, about="what a row sums to")


def _excess(share: Tensor, budget: Tensor) -> Tensor:
    """The sum of shares from 0 to 1, minus the budget."""
    if not is_lean(share):
        return share.sum(-1, keepdim=True) - budget
    full = share == 1
    unit = (budget.detach().clamp(max=1e30) + 1).log2().ceil().exp2()
    return total(torch.where(full, 0, share) / unit, (budget - full.sum(-1, keepdim=True)) / unit) * unit


@search(width=2, lean=3)
def budget_root(z: Tensor, budget: Tensor) -> Tensor:
    """(c, d) with sum clip(z - c - d, 0, 1) = budget; d is -inf or inf where all or none are wanted.

    c is the entry at place ceil(budget) from the top. At most that many entries share the budget fully, so this one is
    above the threshold and not above it by more than 1: -1 <= d <= 0. Taking differences to an entry near the threshold
    keeps them exact however large the scores are.
    """
    size = (z > -math.inf).sum(-1, keepdim=True)
    rank = torch.minimum(budget.ceil(), torch.ones_like(z).sum(-1, keepdim=True)).clamp(min=1).to(torch.long)
    pivot = best(z, rank).gather(-1, rank - 1)
    pivot = torch.where(pivot > -math.inf, pivot, 0)  # more is wanted than there is: no root to find
    near = z - pivot
    near = above(near, -1)  # the others get 0 for any d
    low, high = threshold(torch.full_like(pivot, -1)), threshold(torch.zeros_like(pivot))
    close, narrow = (1e-7, 1e-14) if is_lean(z) else (1e-14, 1e-16)

    def step(d: Tensor, low: Tensor, high: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        share = over(near, d).clamp(0, 1)
        excess = _excess(share, budget)
        low, high = torch.where(excess >= 0, d, low), torch.where(excess <= 0, d, high)
        between = ((share > 0) & (share < 1)).sum(-1, keepdim=True)
        to = moved(d, excess / between)
        slow, width = excess.abs() > last / 2, apart(high, low)
        to = torch.where((apart(to, low) >= 0) & (apart(high, to) >= 0) & ~slow, to, moved(low, width / 2))
        still = (to == d).all(-1, keepdim=True)
        done = (excess.abs() <= close * (1 + budget)) | still | (width < narrow) | excess.isnan()
        return torch.where(done, d, to), low, high, excess.abs(), done

    start = threshold(torch.full_like(pivot, -0.5))
    d = repeat(step, start, low, high, torch.full_like(pivot, math.inf))[0]
    d = torch.where(budget >= size, -math.inf, torch.where(budget > 0, d, math.inf))
    return torch.cat([pivot, d], -1)


@unshifted  # entries that are full may be as large as they like: differences are taken where the threshold is
def budget_rows(z: Tensor, live: Tensor, budget: Tensor, *, solve: Solve) -> Tensor:
    root = solve(budget_root, z.masked_fill(~live, -math.inf), budget)
    share = over(z - root[..., :1], root[..., 1:])
    full = live & (share >= 1)
    between = live & (share > 0) & (share < 1)
    excess = _excess(torch.where(between, share, full.to(z.dtype)), budget)
    share = (share - excess / between.sum(-1, keepdim=True).clamp(min=1)).clamp(0, 1)
    return torch.where(between, share, full.to(z.dtype))


def budget_rule(p: Tensor, g: Tensor, budget: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Shares strictly between 0 and 1 move together; NaN counts as such, so that it is passed on."""
    out, g = p.dtype, g.to(formula_dtype(p))
    between = ~((p == 0) | (p == 1))
    size = between.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(between, g, 0).sum(-1, keepdim=True) / size
    broken = torch.where(p.isnan(), math.nan, 1.0)
    return (torch.where(between, g - mean, 0) * broken).to(out), mean * broken.amax(-1, keepdim=True)


def budget_kernel() -> RowKernel:
    def forward(x: Tensor, budget: Tensor | None) -> Tensor:
        p: Tensor = ops._budget_fwd(x, budget, 0.0)
        return p

    def backward(p: Tensor, g: Tensor, budget: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._budget_bwd(p, g, want)
        return dx, change if want else None

    return RowKernel(forward, backward, budget_rule, operator=lambda x, b: ops.budget_sparsemax(x, b))


KERNEL = budget_kernel()


def budget_sparsemax(
    scores: Tensor,
    budget: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Budget sparsemax: shares of at most 1 that add up to a budget, a relaxed choice of so many items.

    .. math:: p = \operatorname{argmin} \|p - z\|^2 \quad \text{s.t.} \quad 0 \le p_i \le 1, \; \sum_i p_i = b

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        budget: at least 0. At or above the number of allowed entries each of them is 1. A float, or a tensor that is
            0-dim or broadcasts to ``scores`` with size 1 along ``dim``; differentiable. A row whose budget is outside
            is NaN.
        dim: the dimension that sums to the budget.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Shares of the shape of ``scores``, with exact zeros and ones.

    Example:
        >>> import torch, parsimax
        >>> parsimax.budget_sparsemax(torch.tensor([2.0, 0.5, 0.2, -1.0]), 2)
        tensor([1.0000, 0.6500, 0.3500, 0.0000])

    With budget 1 it is :func:`sparsemax`.

    Reference: Blondel, Structured prediction with projection oracles, NeurIPS 2019.
    """
    parameter = BUDGET.at(budget)
    where = "budget_sparsemax"
    return apply(budget_rows, scores, parameter, dim=dim, mask=mask, dtype=dtype, where=where, kernel=KERNEL)


define("budget_sparsemax(Tensor x, Tensor budget) -> Tensor", KERNEL, budget_sparsemax, like)


class BudgetSparsemax(MappingModule, function=budget_sparsemax, setting=BUDGET, kernel=KERNEL, total="budget"):
    budget: float | Tensor
