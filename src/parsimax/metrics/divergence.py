"""Distances between distributions that stay finite when supports differ."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..engine.arguments import Interval, check_dim, check_number, check_scores
from ..engine.precision import work_dtype


def _entropy(p: Tensor, dim: int) -> Tensor:
    return -(p * torch.where(p > 0, p, 1).log()).sum(dim)


def jensen_shannon(*distributions: Tensor, dim: int = -1, base: float = math.e) -> Tensor:
    r"""The Jensen–Shannon divergence of two or more distributions: 0 when all agree, finite whatever their zeros.

    .. math:: H\Big( \frac1K \sum_k p_k \Big) - \frac1K \sum_k H(p_k) \;\le\; \log K

    Args:
        distributions: K ≥ 2 tensors of one shape (or broadcastable), or a single one whose first dimension is K. An
            integer tensor stands for the one-hot distributions of its class indices.
        dim: the dimension of the distributions.
        base: of the logarithm. ``base=K`` scales it to [0, 1], as the diversity of K attention heads is reported.

    Returns:
        The divergence, the shape without ``dim``, in the floating dtype of the arguments.

    Example:
        >>> import torch, parsimax
        >>> p, q = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.5, 0.5])
        >>> parsimax.jensen_shannon(p, q, base=2)
        tensor(1.)
        >>> parsimax.jensen_shannon(torch.stack([p, p, q]), base=3)
        tensor(0.5794)

    Reference: Lin, 1991; Martins, Marinho and Martins, EMNLP 2020 (one-hot targets); Correia, Niculae and Martins,
    EMNLP 2019 (heads).
    """
    where = "jensen_shannon"
    parts = list(distributions[0].unbind(0)) if len(distributions) == 1 else list(distributions)
    if len(parts) < 2:
        raise ValueError(f"{where}: needs at least two distributions, got {len(parts)}")
    floating = [p for p in parts if p.is_floating_point()]
    if not floating:
        raise TypeError(f"{where}: at least one distribution must be floating point, got {parts[0].dtype}")
    check_scores(floating[0], None, where)
    base = check_number(base, Interval(1, math.inf, closed_low=False, closed_high=False), "base", where)
    rank = max(p.dim() for p in floating)
    dim = check_dim(dim, rank, where) - rank  # counted from the end, where broadcasting aligns
    work, size = work_dtype(floating[0].device), floating[0].shape[dim]
    if len(parts) == 2 and len(floating) == 1:
        index = parts[0] if parts[1].is_floating_point() else parts[1]
        if index.dim() == rank - 1:
            return (_from_one_hot(floating[0], index, dim, work) / math.log(base)).to(floating[0].dtype)
    wide = [_one_hot(p, size, dim, work) if not p.is_floating_point() else p.to(work) for p in parts]
    wide = list(torch.broadcast_tensors(*wide))
    mean = torch.stack(wide).mean(0)
    apart = _entropy(mean, dim) - sum(_entropy(p, dim) for p in wide) / len(wide)
    return (apart / math.log(base)).to(floating[0].dtype)


def _from_one_hot(p: Tensor, index: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """From the probability of the class alone: of all others half stands in the mean, and p log p goes out."""
    shape = torch.broadcast_shapes(p.select(dim, 0).shape, index.shape)
    at = index.long().expand(shape).unsqueeze(dim)
    wide = list(shape)
    wide.insert(len(shape) + 1 + dim, p.shape[dim])
    p = p.expand(wide)
    own, total = p.gather(dim, at).squeeze(dim).to(dtype), p.sum(dim, dtype=dtype)
    mean = (1 + own) / 2
    return (total - own) * (math.log(2) / 2) - mean * mean.log() + own * torch.where(own > 0, own, 1).log() / 2


def _one_hot(index: Tensor, size: int, dim: int, dtype: torch.dtype) -> Tensor:
    at = index.long().unsqueeze(dim)
    shape = list(at.shape)
    shape[dim] = size
    return torch.zeros(shape, dtype=dtype, device=index.device).scatter(dim, at, 1)
