"""The softmax over structures, for methods that sample: samples, log-probabilities, entropies and relaxed samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..structured import Bits, OneOf, OneOfEach, Structure


@dataclass(frozen=True)
class Gibbs:
    """p(z) ∝ exp(scores of z). All functions take (batch, …) scores."""

    sample: Callable[[Tensor], Tensor]
    log_prob: Callable[[Tensor, Tensor], Tensor]
    entropy: Callable[[Tensor], Tensor]
    relaxed: Callable[[Tensor, float, bool], Tensor]  # (scores, temperature, hard)


def of(structure: Structure, method: str) -> Gibbs:
    if isinstance(structure, OneOf):
        return ONE_OF
    if isinstance(structure, OneOfEach):
        return ONE_OF_EACH
    if isinstance(structure, Bits) and structure.at_least == 0 and structure.at_most is None:
        return BITS
    raise TypeError(
        f"{method} samples from the softmax over structures, which there is for OneOf, OneOfEach and Bits without "
        f"limits, not for {structure}; SparseMAP and TopK take it"
    )


def _negative_entropy(scores: Tensor) -> Tensor:
    log_p = F.log_softmax(scores, -1)
    # What is forbidden has no share; masked before the product, whose derivative would be 0·∞.
    return (log_p.exp() * torch.where(log_p > -torch.inf, log_p, 0.0)).sum(-1)


def _categorical(scores: Tensor) -> Tensor:
    p = F.softmax(scores.detach(), -1)
    return torch.multinomial(p.flatten(0, -2), 1)[:, 0].view(scores.shape[:-1])


def _chosen(scores: Tensor, z: Tensor) -> Tensor:
    return F.log_softmax(scores, -1).gather(-1, z[..., None])[..., 0]


def _bits_log_prob(scores: Tensor, z: Tensor) -> Tensor:
    return -F.softplus(torch.where(z > 0, -scores, scores)).sum(-1)


def _bits_entropy(scores: Tensor) -> Tensor:
    # A bit that is forbidden has none: its score is masked before the product, which would be 0·∞.
    finite = torch.where(scores == -torch.inf, 0.0, scores)
    return (F.softplus(scores) - finite * torch.sigmoid(scores)).sum(-1)


def _bernoulli_relaxed(scores: Tensor, temperature: float, hard: bool) -> Tensor:
    u = torch.rand_like(scores).clamp(1e-6, 1 - 1e-6)
    soft = torch.sigmoid((scores + u.log() - (-u).log1p()) / temperature)
    return (soft > 0.5).to(soft) + (soft - soft.detach()) if hard else soft


ONE_OF = Gibbs(
    _categorical,
    _chosen,
    lambda s: -_negative_entropy(s),
    lambda s, temperature, hard: F.gumbel_softmax(s, temperature, hard=hard),
)
ONE_OF_EACH = Gibbs(
    _categorical,
    lambda s, z: _chosen(s, z).sum(-1),
    lambda s: -_negative_entropy(s).sum(-1),
    lambda s, temperature, hard: F.gumbel_softmax(s, temperature, hard=hard),
)
BITS = Gibbs(
    lambda s: torch.bernoulli(torch.sigmoid(s.detach())),
    _bits_log_prob,
    _bits_entropy,
    _bernoulli_relaxed,
)
