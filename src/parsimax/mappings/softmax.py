"""softmax: the dense end of the family."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..engine.apply import apply
from ..engine.chunked import Solve
from ..engine.modes import quick
from ..engine.sums import is_lean, total
from .declaration import MappingModule
from .entmax_rule import entmax_kernel, fixed_entmax

KERNEL, QUICK = entmax_kernel(1.0), fixed_entmax(1.0)


def softmax_rows(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    p = torch.softmax(z.masked_fill(~live, -math.inf), -1)
    return p / total(p) if is_lean(p) else p


def softmax_conjugate(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    z = z.masked_fill(~live, -math.inf)
    largest = z.logsumexp(-1, keepdim=True)
    return largest + total((z - largest).exp()).log() if is_lean(z) else largest


def shannon(p: Tensor) -> Tensor:
    """-sum p log p."""
    some = torch.where(p > 0, p, 1)
    return -(p * some.log()).sum(-1, keepdim=True)


def softmax(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    r"""Softmax with a mask, and zeros instead of NaN where nothing is allowed.

    .. math:: p_i = \exp(z_i) / \sum_j \exp(z_j)

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.softmax(torch.tensor([1.0, 0.0, 2.0]), mask=torch.tensor([True, True, False]))
        tensor([0.7311, 0.2689, 0.0000])

    It is :func:`entmax` at α = 1, and what the sparse mappings are compared with. ``torch.softmax`` differs in one
    point: it has no mask, and gives NaN for a row of -inf.
    """
    if mask is None and dtype is None and quick(scores, dim):
        return QUICK(scores)
    return apply(softmax_rows, scores, dim=dim, mask=mask, dtype=dtype, where="softmax", kernel=KERNEL)


class Softmax(
    MappingModule,
    function=softmax,
    formula=softmax_rows,
    kernel=KERNEL,
    entropy=shannon,
    conjugate=softmax_conjugate,
    sparse=False,
    alpha=1.0,
):
    pass
