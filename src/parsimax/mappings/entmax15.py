"""1.5-entmax: halfway between softmax and sparsemax, in closed form."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from ..engine.apply import apply
from ..engine.chunked import Solve, settled
from ..engine.modes import quick, tiny
from ..engine.search import ascend, narrowed, search
from ..engine.sums import below, over, threshold, total
from ..engine.tiny import Tiny
from .declaration import MappingModule
from .entmax_rule import entmax_kernel, entmax_rule, fixed_entmax, tiny_backward15

KERNEL, QUICK = entmax_kernel(1.5), fixed_entmax(1.5)
ZERO = torch.zeros((), dtype=torch.float64)


def _sorted(z: Tensor) -> Tensor:
    """tau from the sorted row.

    With v the sum of squared deviations of the first k from their mean m, their threshold is m - sqrt((1 - v)/k).
    Beyond the support it is above the k-th entry, also where v > 1 and m stands for it, as then not all k are equal.
    Entries below -1 are never in the support; they become -1, so that no square overflows.
    """
    best = (z / 2).clamp(min=-1).sort(-1, descending=True).values
    rank = torch.ones_like(best).cumsum(-1)
    mean = best.cumsum(-1) / rank
    spread = (best * best).cumsum(-1) - rank * mean * mean
    tau = mean - ((1 - spread) / rank).clamp(min=0).sqrt()
    size = (tau <= best).sum(-1, keepdim=True)
    return tau.gather(-1, size - 1)


def _tiny(z: Tensor, best: Tensor, rank: Tensor) -> Tensor:
    """The same in place, for 2 tau. In the support of k entries (4 - 4 v)/k is 4/k² at least: no root hides its digits.

    Within the support no threshold is above that of all of it, and no entry beyond it is: of the lesser of both, where
    there is a root, the largest is the one sought.
    """
    mean = best.cumsum(-1).div_(rank)
    left = torch.addcdiv(_fours(z.shape[-1]), best.square().cumsum_(-1), rank, value=-1).addcmul_(mean, mean)
    edge = mean.sub_(left.sqrt_()).fmin(best).amax(-1, keepdim=True)
    root = z.sub_(edge).clamp_(min=0)
    return torch.addcmul(ZERO, root, root, value=0.25)


@lru_cache(maxsize=64)
def _fours(n: int) -> Tensor:
    """4/k."""
    return 4 / torch.arange(1, n + 1, dtype=torch.float64)


@search(formula=_sorted)
def entmax15_root(z: Tensor) -> Tensor:
    """tau with sum relu(z/2 - tau)^2 = 1. Newton on the norm, the root of that sum: convex too, and nearly straight."""

    def find(half: Tensor, start: Tensor) -> Tensor:
        def step(tau: Tensor) -> Tensor:
            root = over(half, tau).clamp_(min=0)
            square = (root * root).sum(-1, keepdim=True)
            return (square - square.sqrt()) / root.sum(-1, keepdim=True)

        return ascend(step, start, 1e-9)  # Newton squares the error: below 1e-9 the step taken was the last

    return narrowed(z / 2, threshold(torch.full_like(z[..., :1], -1)), find, edge=below)


def _root_p(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    """The square root of p, which is linear in the scores but for the threshold."""
    tau = solve(entmax15_root, z.masked_fill(~live, -math.inf))
    root = over(z / 2, tau)
    on = live & (root > 0)
    root = torch.where(on, root, 0)
    # Move tau by the exact root of sum (root - d)^2 = 1, written so that nothing cancels where d is near 0.
    first, excess = root.sum(-1, keepdim=True), total(root * root, 1)
    d = excess / (first + (first * first - on.sum(-1, keepdim=True) * excess).sqrt())
    return torch.where(on, root - d, 0).clamp(min=0)


def entmax15_rows(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    return _root_p(z, live, solve=solve).square()


def tsallis15(p: Tensor) -> Tensor:
    """(4/3) sum (p - p^1.5)."""
    return total(p - p.pow(1.5)) / 0.75


def entmax15_conjugate(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    """p.z + H(p), with H = (4/3) sum p (1 - sqrt(p))."""
    root = settled(_root_p, z, live, solve=solve)
    return (root * root * (z + 4 / 3 * (1 - root))).sum(-1, keepdim=True)


def entmax15(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    r"""1.5-entmax: sparse, and smooth at the edge of its support.

    .. math:: p_i = [z_i / 2 - \tau]_+^2, \qquad \tau: \sum_i p_i = 1

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros.

    Example:
        >>> import torch, parsimax
        >>> parsimax.entmax15(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.6740, 0.3260, 0.0000])

    It is :func:`entmax` at α = 1.5. Entries that trail the largest by 2 or more get 0; :func:`sparsemax` cuts at 1.

    Reference: Peters, Niculae and Martins, Sparse Sequence-to-Sequence Models, ACL 2019.
    """
    if mask is None and dtype is None:
        if quick(scores, dim):
            return QUICK(scores)
        if tiny(scores, dim):
            return TINY(scores)
    return apply(entmax15_rows, scores, dim=dim, mask=mask, dtype=dtype, where="entmax15", kernel=KERNEL, tiny=TINY)


TINY = Tiny(
    _tiny,
    tiny_backward15,
    lambda p, g: entmax_rule(p, g, None, 1.5)[0],
)


class Entmax15(
    MappingModule,
    function=entmax15,
    formula=entmax15_rows,
    kernel=KERNEL,
    entropy=tsallis15,
    conjugate=entmax15_conjugate,
    alpha=1.5,
):
    pass
