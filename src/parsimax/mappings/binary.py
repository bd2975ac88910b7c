"""Two classes in closed form: what sigmoid is to softmax, for sparsemax and 1.5-entmax."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engine.arguments import check_scores


def _wide(scores: Tensor, where: str) -> Tensor:
    check_scores(scores.unsqueeze(0) if isinstance(scores, Tensor) else scores, None, where)
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def sparsemoid(scores: Tensor) -> Tensor:
    r"""The probability that sparsemax gives to a score against 0: the hard sigmoid min(max((z + 1)/2, 0), 1).

    Args:
        scores: any shape, floating point.

    Returns:
        Probabilities of the same shape and dtype, exactly 0 from -1 down and exactly 1 from 1 up.

    Example:
        >>> import torch, parsimax
        >>> parsimax.sparsemoid(torch.tensor([-1.0, 0.0, 0.5, 3.0]))
        tensor([0.0000, 0.5000, 0.7500, 1.0000])

    :func:`entmoid15` is smooth at both ends.

    Reference: Martins and Astudillo, From Softmax to Sparsemax, ICML 2016.
    """
    z = _wide(scores, "sparsemoid")
    # Not clamp: at the ends the gradient is 0, as it is of sparsemax outside its support.
    p = torch.where(z.abs() >= 1, (z > 0).to(z.dtype), (z + 1) / 2)
    return p.to(scores.dtype)


def entmoid15(scores: Tensor) -> Tensor:
    r"""The probability that 1.5-entmax gives to a score against 0.

    .. math:: p = \tfrac12 \bigl(1 + s \sqrt{2 - s^2}\bigr), \qquad s = \min(\max(z/2, -1), 1)

    Args:
        scores: any shape, floating point.

    Returns:
        Probabilities of the same shape and dtype, exactly 0 from -2 down and exactly 1 from 2 up.

    Example:
        >>> import torch, parsimax
        >>> parsimax.entmoid15(torch.tensor([-2.0, 0.0, 1.0, 3.0]))
        tensor([0.0000, 0.5000, 0.8307, 1.0000])

    :func:`sparsemoid` has corners at both ends.

    Reference: Peters, Niculae and Martins, Sparse Sequence-to-Sequence Models, ACL 2019.
    """
    s = _wide(scores, "entmoid15").div(2).clamp(-1, 1)
    root = (2 - s * s).sqrt()
    # Below 0 the formula would subtract two nearly equal numbers; (1 - s²)/(√(2 - s²) - s) is the root of the same p.
    small = ((1 - s) * (1 + s) / (root + s.abs())).square()
    return torch.where(s < 0, small, (1 + s * root) / 2).to(scores.dtype)
