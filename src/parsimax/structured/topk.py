"""Sparsemax over the k best structures, with a certificate that no other has a share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..engine.precision import has_float64, in_float64, moved
from ..mappings import sparsemax
from .custom import Custom
from .distribution import Distribution, assemble
from .labels import OneOf
from .solving import kbest, kernels_serve
from .sparsemap import _check_structure, _count
from .structure import Problem, Scores, Structure


@in_float64
def topk(scores: Scores, structure: Structure, k: int) -> Distribution:
    r"""Top-k sparsemax over structures: the sparsemax of the k best, which is that of all if the gap is 0.

    .. math:: \operatorname{argmax}_{p \in \Delta, \; |p|_0 \le k} \; \eta^\top A p - \tfrac12 \|p\|^2

    The penalty is on the probabilities themselves, where that of :func:`sparsemap` is on the marginals.

    Args:
        scores: as in :func:`sparsemap`.
        structure: as in :func:`sparsemap`; ``Custom`` needs its ``kbest``.
        k: how many structures may have a probability.

    Returns:
        A :class:`~parsimax.structured.Distribution`, best structures first. Its ``gap`` is 0 exactly where the answer
        is the sparsemax over all structures: it is the score of structure k + 1 above the threshold.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([0.3, -0.6, 2.0])
        >>> found = parsimax.structured.topk(scores, parsimax.structured.Bits(), k=2)
        >>> found.structures, found.probabilities, found.gap
        (tensor([[1., 0., 1.], [0., 0., 1.]]), tensor([0.6500, 0.3500]), tensor(0.0500, dtype=torch.float64))
        >>> parsimax.structured.topk(scores, parsimax.structured.Bits(), k=4).gap
        tensor(0., dtype=torch.float64)

    Reference: Correia, Niculae, Aziz and Martins, Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, NeurIPS 2020. Their certificate, fewer than k structures, misses items that this one finds.
    """
    where = "topk"
    _check_structure(structure, where)
    k = _count(k, "k", where)
    if isinstance(structure, Custom) and structure.find_kbest is None:
        raise ValueError(f"{where}: {structure} has no kbest; give Custom a function (scores, k) that finds the k best")
    problem = structure.problem(scores, where)
    codes, there = best_codes(structure, problem, k + 1, scores)
    theta = score_matrix(structure, problem, codes, there)
    inside = theta[:, :k]
    p = sparsemax(inside)
    keep = p.detach() > 0
    threshold = torch.where(keep, (inside - p).detach(), math.inf).amin(-1)
    after = theta.detach()[:, k] if theta.shape[1] > k else torch.full_like(threshold, -math.inf)
    gap = torch.where(after > threshold, after - threshold, 0.0)
    keep = keep | _first_of(problem.broken, keep)
    item, rank = keep.nonzero(as_tuple=True)
    return assemble(structure, problem, codes[item, rank], p[item, rank], keep.sum(-1), gap)


def listed(scores: Scores, structure: Structure, mapping: Callable[[Tensor], Tensor], most: int) -> Distribution:
    """Any mapping over *all* structures, which must not be more than ``most``."""
    device = (scores if isinstance(scores, Tensor) else scores[0]).device
    if has_float64(device):
        return _listed(scores, structure, mapping, most)
    # The mapping may have parameters, which are on the device of the scores.
    return _listed(scores, structure, lambda theta: mapping(moved(theta, device, narrow=True)).to(theta), most)


@in_float64
def _listed(scores: Scores, structure: Structure, mapping: Callable[[Tensor], Tensor], most: int) -> Distribution:
    problem = structure.problem(scores, "listed")
    if isinstance(structure, OneOf):
        codes = torch.arange(problem.unary.shape[-1], device=problem.unary.device).expand(problem.unary.shape)
        there = problem.unary.detach() > -math.inf
    else:
        codes, there = best_codes(structure, problem, most + 1, scores)
        count = max(1, int(there.sum(1).max())) if problem.items else 1
        if count > most:
            raise ValueError(
                f"{structure} has more than {most} structures for these scores, too many to list; SparseMAP and TopK "
                "need no list"
            )
        codes, there = codes[:, :count], there[:, :count]
    theta = score_matrix(structure, problem, codes, there)
    p = mapping(theta)
    if not isinstance(p, Tensor) or p.shape != theta.shape:
        given = tuple(p.shape) if isinstance(p, Tensor) else type(p).__name__
        raise ValueError(
            f"Marginal: the mapping gives a probability for each score, {tuple(theta.shape)} here, got {given}"
        )
    keep = (p.detach() > 0) | _first_of(problem.broken, there)
    item, rank = keep.nonzero(as_tuple=True)
    zero = torch.zeros(problem.items, dtype=torch.float64, device=p.device)
    return assemble(structure, problem, codes[item, rank], p[item, rank], keep.sum(-1), zero)


def _first_of(broken: Tensor, keep: Tensor) -> Tensor:
    return (
        torch.nn.functional.one_hot(torch.zeros_like(broken, dtype=torch.long), keep.shape[1]).bool() & broken[:, None]
    )


def best_codes(structure: Structure, problem: Problem, k: int, scores: Scores) -> tuple[Tensor, Tensor]:
    """(codes (items, k or fewer, …), whether there are so many) of the k best structures, best first."""
    k = min(k, structure.bound(problem))
    if isinstance(structure, OneOf):
        value, index = problem.unary.detach().topk(k, dim=-1)
        return index, value > -math.inf
    codes, there = kbest(structure, problem, k, kernels_serve("structured_topk", structure, scores))
    codes = structure.opened(codes, problem)
    return codes, there | _first_of(problem.broken, there)


def score_matrix(structure: Structure, problem: Problem, codes: Tensor, there: Tensor) -> Tensor:
    """(items, k): the scores of the structures, −inf where there is none; differentiable."""
    item, rank = there.nonzero(as_tuple=True)
    values = structure.score(codes[item, rank], item, problem, problem.unary)
    return torch.full(there.shape, -math.inf, dtype=torch.float64, device=there.device).index_put((item, rank), values)
