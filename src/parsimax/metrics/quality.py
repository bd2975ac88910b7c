"""How good a sparse distribution is at predicting, although it may give the truth probability 0."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engine.arguments import Interval, check_dim, check_number, check_scores
from ..engine.precision import work_dtype
from ..mappings.log_entmax import floored_log


def log_probs(p: Tensor, floor: float = 0.0) -> Tensor:
    r"""Logarithms of probabilities, with an explicit floor for the zeros.

    .. math:: \log \max(p_i, \text{floor})

    Args:
        p: probabilities, any shape.
        floor: in [0, 1]; the default 0 gives -inf for a zero.

    Returns:
        Log-probabilities of the shape of ``p``. Entries at or below the floor have gradient 0, not NaN.

    Example:
        >>> import torch, parsimax
        >>> parsimax.log_probs(torch.tensor([0.75, 0.25, 0.0]), floor=1e-4)
        tensor([-0.2877, -1.3863, -9.2103])
    """
    check_scores(p, None, "log_probs")
    return floored_log(p, floor, "log_probs")


def support_size(p: Tensor, dim: int = -1) -> Tensor:
    """The number of entries above 0 along ``dim``.

    Args:
        p: probabilities, any shape.
        dim: the dimension to count along.

    Returns:
        Counts (int64), the shape of ``p`` without ``dim``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.support_size(parsimax.sparsemax(torch.tensor([1.0, 0.5, -1.0])))
        tensor(2)
    """
    check_scores(p, None, "support_size")
    return (p > 0).sum(check_dim(dim, p.dim(), "support_size"))


def _of_target(p: Tensor, target: Tensor, where: str) -> Tensor:
    check_scores(p, None, where)
    if target.is_floating_point() or target.shape != p.shape[:-1]:
        raise ValueError(
            f"{where}: target must be class indices of shape {tuple(p.shape[:-1])} for p of shape {tuple(p.shape)}, "
            f"got {target.dtype} of shape {tuple(target.shape)}"
        )
    return p.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)


def epsilon_perplexity(p: Tensor, target: Tensor, epsilon: float) -> Tensor:
    r"""Perplexity after adding ε to every probability, which makes it finite for sparse models.

    .. math:: \exp\Big( -\frac1N \sum_n \log \frac{p_n(y_n) + \varepsilon}{1 + \varepsilon |V|} \Big)

    Args:
        p: (…, V), probabilities.
        target: (…), class indices.
        epsilon: above 0; the model's mass is mixed with this much of a uniform one. Report it with the number.

    Returns:
        A scalar, in float64 (float32 on devices without it).

    Example:
        >>> import torch, parsimax
        >>> p = torch.tensor([[0.75, 0.25, 0.0], [1.0, 0.0, 0.0]])
        >>> parsimax.epsilon_perplexity(p, torch.tensor([0, 1]), 0.01).item()
        11.81...

    Reference: Martins, Marinho and Martins, Sparse Text Generation, EMNLP 2020.
    """
    epsilon = check_number(
        epsilon, Interval(0, float("inf"), closed_low=False, closed_high=False), "epsilon", "epsilon_perplexity"
    )
    own = _of_target(p, target, "epsilon_perplexity").to(work_dtype(p.device))
    return (-((own + epsilon) / (1 + epsilon * p.shape[-1])).log().mean()).exp()


def sparsemax_score(p: Tensor, target: Tensor) -> Tensor:
    r"""A bounded score of a sparse prediction: 1 for a certain right answer, 0 for a certain wrong one.

    .. math:: 1 - \tfrac12 \|e_y - p\|^2 = p_y + \tfrac12 (1 - \|p\|^2)

    Args:
        p: (…, V), probabilities.
        target: (…), class indices.

    Returns:
        A score in [0, 1] for each target; take the mean for a data set.

    Example:
        >>> import torch, parsimax
        >>> parsimax.sparsemax_score(torch.tensor([0.75, 0.25, 0.0]), torch.tensor(0))
        tensor(0.9375)

    Reference: Martins, Marinho and Martins, Sparse Text Generation, EMNLP 2020.
    """
    own = _of_target(p, target, "sparsemax_score").to(work_dtype(p.device))
    length: Tensor = torch.linalg.vector_norm(p, dim=-1, dtype=own.dtype)
    return (own + (1 - length.square()) / 2).to(p.dtype)
