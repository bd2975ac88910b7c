"""The logarithm of entmax, with an explicit floor for its zeros."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..engine.arguments import Interval, check_number, check_scores
from ..engine.precision import formula_dtype, softmax_dtype
from .entmax import entmax


def floored_log(p: Tensor, floor: float, where: str) -> Tensor:
    """log max(p, floor), with gradient 0 at and below the floor: also where the floor is 0 and the value -inf."""
    floor = check_number(floor, Interval(0, 1), "floor", where)
    above = p > floor
    low = math.log(floor) if floor > 0 else -math.inf
    return torch.where(above, torch.where(above, p, 1).log(), torch.where(p.isnan(), p, low))


def log_entmax(
    scores: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    *,
    floor: float = 0.0,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Logarithms of α-entmax probabilities.

    .. math:: \log \max(p_i, \text{floor}), \qquad p = \operatorname{entmax}_\alpha(z)

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        alpha: as for :func:`entmax`.
        dim: the dimension over which the probabilities sum to 1.
        floor: a probability in [0, 1]. Zeros of p get its logarithm, so the default 0 gives -inf; nothing is hidden.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Log-probabilities of the shape of ``scores``. Entries at or below the floor have gradient 0.

    Example:
        >>> import torch, parsimax
        >>> parsimax.log_entmax(torch.tensor([1.0, 0.5, -1.0]), 2, floor=1e-4)
        tensor([-0.2877, -1.3863, -9.2103])

    To train, prefer :func:`entmax_loss`: a logarithm has no gradient at the zeros of p, the loss has.
    """
    check_scores(scores, dtype, "log_entmax", least=0, has_dtype=True)
    scores = scores if dtype is None else scores.to(dtype)
    wide = entmax(scores, alpha, dim, mask=mask, dtype=formula_dtype(scores))
    return floored_log(wide, floor, "log_entmax").to(dtype or softmax_dtype(scores))
