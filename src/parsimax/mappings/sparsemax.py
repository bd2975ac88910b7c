"""sparsemax: the Euclidean projection onto the simplex."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..engine.apply import apply
from ..engine.chunked import Solve, settled
from ..engine.modes import quick, tiny
from ..engine.search import ascend, narrowed, search
from ..engine.sums import below, over, threshold, total
from ..engine.tiny import Tiny
from .declaration import MappingModule
from .entmax_rule import entmax_kernel, entmax_rule, fixed_entmax, tiny_backward2

KERNEL, QUICK = entmax_kernel(2.0), fixed_entmax(2.0)


def _sorted(z: Tensor) -> Tensor:
    """tau from the sorted row: k entries are in the support if the k-th is above the threshold of the first k."""
    best = z.sort(-1, descending=True).values
    rank, total = torch.ones_like(best).cumsum(-1), best.cumsum(-1) - 1
    size = (rank * best > total).sum(-1, keepdim=True)
    return total.gather(-1, size - 1) / size


def _tiny(z: Tensor, best: Tensor, rank: Tensor) -> Tensor:
    """The same in place."""
    total = best.cumsum(-1).sub_(1)
    size = (best.mul_(rank) > total).sum(-1, keepdim=True)
    return z.sub_(total.gather(-1, size - 1).div_(size)).clamp_(min=0)


@search(formula=_sorted)
def sparsemax_root(z: Tensor) -> Tensor:
    """tau with sum relu(z - tau) = 1. The sum is convex and decreasing, and at -1 the largest entry alone gives 1."""

    def find(z: Tensor, start: Tensor) -> Tensor:
        def step(tau: Tensor) -> Tensor:
            share = over(z, tau).clamp_(min=0)
            return total(share, 1) / share.count_nonzero(-1).unsqueeze(-1)

        return ascend(step, start, 1e-15)

    return narrowed(z, threshold(torch.full_like(z[..., :1], -1)), find, edge=below)


def sparsemax_rows(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    tau = solve(sparsemax_root, z.masked_fill(~live, -math.inf))
    share = over(z, tau)
    on = live & (share > 0)
    excess = total(torch.where(on, share, 0), 1) / on.sum(-1, keepdim=True)
    return torch.where(on, share - excess, 0).clamp(min=0)


def gini(p: Tensor) -> Tensor:
    """sum p (1 - p) / 2."""
    return total(p * (1 - p)) / 2


def sparsemax_conjugate(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    p = settled(sparsemax_rows, z, live, solve=solve)
    return gini(p) - total(-p * z)


def sparsemax(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    r"""Sparsemax: the point of the simplex that is nearest to the scores.

    .. math:: p = \operatorname{argmin}_{p \in \Delta} \|p - z\|^2 = [z - \tau]_+, \qquad \tau: \sum_i p_i = 1

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros.

    Example:
        >>> import torch, parsimax
        >>> parsimax.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])

    It is :func:`entmax` at α = 2: sparser than :func:`entmax15`. Entries that trail the largest by 1 or more get 0.

    Reference: Martins and Astudillo, From Softmax to Sparsemax, ICML 2016.
    """
    if mask is None and dtype is None:
        if quick(scores, dim):
            return QUICK(scores)
        if tiny(scores, dim):
            return TINY(scores)
    return apply(sparsemax_rows, scores, dim=dim, mask=mask, dtype=dtype, where="sparsemax", kernel=KERNEL, tiny=TINY)


TINY = Tiny(
    _tiny,
    tiny_backward2,
    lambda p, g: entmax_rule(p, g, None, 2.0)[0],
)


class Sparsemax(
    MappingModule,
    function=sparsemax,
    formula=sparsemax_rows,
    kernel=KERNEL,
    entropy=gini,
    conjugate=sparsemax_conjugate,
    alpha=2.0,
):
    pass
