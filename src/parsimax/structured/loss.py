"""The Fenchel–Young loss of SparseMAP."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..engine.arguments import is_number
from ..engine.precision import in_float64
from .active_set import Limits
from .bits import Bits
from .custom import Custom
from .solving import kernels_serve, length_of, named
from .sparsemap import _check_structure, _count, on_the_face, sparsemap
from .structure import LabelStructure, Problem, Scores, Structure, _kind_of

REDUCTIONS = ("mean", "sum", "none")


@in_float64
def sparsemap_loss(
    scores: Scores,
    target: Tensor,
    structure: Structure,
    *,
    cost: float = 0.0,
    reduction: str = "mean",
    max_iter: int = 1000,
) -> Tensor:
    r"""The loss whose gradient is the marginals of SparseMAP less the parts of the right structure.

    .. math:: L(\eta, y) = \max_{p \in \Delta} \left( \eta^\top A p - \tfrac12 \|M p\|^2 \right)
              - \left( \eta^\top a_y - \tfrac12 \|m_y\|^2 \right)

    It is at least 0, and exactly 0 once the right structure leads by enough: a margin, as in a structured SVM, with a
    gradient of few structures.

    Args:
        scores: as in :func:`sparsemap`.
        target: the right structure of each item, as :func:`sparsemap` returns structures, with the leading dimensions
            of the scores.
        structure: as in :func:`sparsemap`.
        cost: what a position or bit that differs from the target adds to the score of a structure, 0 or more
            (cost-augmented: the lead must then grow with the number of errors).
        reduction: ``"mean"`` over the items, ``"sum"`` or ``"none"``.
        max_iter: as in :func:`sparsemap`.

    Returns:
        A number, or one for each item; differentiable, once and twice.

    Example:
        >>> import torch, parsimax
        >>> scores, right = torch.tensor([[1.0, 0.5], [0.2, 0.0]], requires_grad=True), torch.tensor([0, 1])
        >>> loss = parsimax.sparsemap_loss(scores, right, parsimax.structured.Assignment())
        >>> loss.backward()
        >>> loss.item(), scores.grad
        (0.361..., tensor([[-0.4250,  0.4250], [ 0.4250, -0.4250]]))

    Reference: Niculae, Martins, Blondel and Cardie, SparseMAP, ICML 2018; with a cost it is their m-SparseMAP.
    """
    where = "sparsemap_loss"
    _check_structure(structure, where)
    _check_options(cost, reduction, where)
    unary, *extra = scores if isinstance(scores, tuple | list) else (scores,)
    problem = structure.problem(scores, where)
    codes = _codes_of(structure, problem, target, where)
    parts = structure.incidence(codes, problem).view(problem.unary.shape)
    sign = (1 - 2 * parts) if isinstance(structure, Bits) else 1 - parts
    moved = unary if not cost else unary + cost * sign.view(unary.shape).to(unary)
    free = cost * parts.flatten(1).sum(1) if isinstance(structure, Bits) else 0.0
    wide: Scores = (moved.double(), extra[0].double()) if extra else moved.double()
    reached = _best_objective(structure, wide, max_iter)
    items = torch.arange(problem.items, device=codes.device)
    ones = torch.ones_like(items, dtype=torch.float64)
    right = _objective(structure, problem, codes, ones, items)
    forbidden = ((parts > 0) & (problem.unary == -math.inf)).flatten(1).any(1)  # of which bits have no score
    right = right.masked_fill(forbidden, -math.inf)
    loss = (reached + free - right).to(problem.dtype).view(problem.batch)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _check_options(cost: object, reduction: object, where: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"{where}: reduction is one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if not is_number(cost) or not 0 <= cost < math.inf:
        raise ValueError(f"{where}: cost is a finite number, 0 or more, got {cost!r}")


def _codes_of(structure: Structure, problem: Problem, target: Tensor, where: str) -> Tensor:
    if not isinstance(target, Tensor):
        raise TypeError(f"{where}: the target is a tensor, got {_kind_of(target)}; make one with torch.tensor(…)")
    parts = problem.unary.shape[1:]
    labelled = isinstance(structure, LabelStructure)
    shape = (*problem.batch, *(parts[:-1] if labelled else parts))
    if tuple(target.shape) != shape:
        raise ValueError(f"{where}: the target of {structure} is {shape} for these scores, got {tuple(target.shape)}")
    most = parts[-1] - 1 if labelled else 1
    target = target.int() if target.dtype == torch.bool else target
    if target.numel() and not bool(((target >= 0) & (target <= most) & (target == target.round())).all()):
        raise ValueError(
            f"{where}: the target of {structure} has whole numbers from 0 to {most}, got {target.tolist()}"
        )
    flat = target.reshape(problem.items, *shape[len(problem.batch) :])
    if isinstance(structure, Custom):
        found = [torch.zeros(0, length_of(structure, problem), dtype=torch.uint8)]
        for item in range(problem.items):
            with named(structure, problem, where, item):
                found.append(structure.code_of_target(flat[item].cpu(), problem.on_cpu().of(item)[1])[None])
        return torch.cat(found).to(target.device)
    codes = structure.encode(flat)
    if not bool((held := structure.holds(codes)).all()):
        item = int((~held).nonzero()[0, 0])
        raise ValueError(
            f"{where}: a target is one of the structures of {structure}, got {codes[item].tolist()} for item {item}"
        )
    return codes


def _best_objective(structure: Structure, scores: Scores, max_iter: int) -> Tensor:
    problem = structure.problem(scores, "sparsemap_loss")
    if structure.separable:
        found = sparsemap(scores, structure, max_iter=max_iter)
        return _objective(structure, problem, structure.encode(found.structures), found.probabilities, found.example)
    # On the whole face of the marginals, for the second derivative.
    kernels = kernels_serve("sparsemap", structure, scores)
    face = on_the_face(structure, problem, Limits(_count(max_iter, "max_iter", "sparsemap_loss"), 2**62), None, kernels)
    return _objective(structure, problem, face.codes, face.weights, face.example)


def _objective(structure: Structure, problem: Problem, codes: Tensor, p: Tensor, example: Tensor) -> Tensor:
    """η·Ap − ½|Mp|² of a distribution over structures, for each item."""
    theta = structure.score(codes, example, problem, structure.penalised(problem.unary))
    linear = theta.new_zeros(problem.items).index_add(0, example, p * theta) + problem.spoil
    marginals = structure.marginals(codes, example, p, problem)
    return structure.gap_scale * (linear - marginals.square().flatten(1).sum(1) / 2)


class SparseMAPLoss(nn.Module):
    """:func:`sparsemap_loss` as a module.

    Args:
        structure: as in :func:`sparsemap`.
        cost: as in :func:`sparsemap_loss`.
        reduction: as in :func:`sparsemap_loss`.

    Example:
        >>> import torch, parsimax
        >>> parsimax.SparseMAPLoss(parsimax.structured.Bits(), cost=1.0)(torch.zeros(1, 2), torch.ones(1, 2))
        tensor(2.)
    """

    def __init__(self, structure: Structure, *, cost: float = 0.0, reduction: str = "mean") -> None:
        super().__init__()
        _check_structure(structure, "SparseMAPLoss")
        _check_options(cost, reduction, "SparseMAPLoss")
        self.structure, self.cost, self.reduction = structure, cost, reduction

    def forward(self, scores: Scores, target: Tensor) -> Tensor:
        return sparsemap_loss(scores, target, self.structure, cost=self.cost, reduction=self.reduction)

    def extra_repr(self) -> str:
        return f"{self.structure}, cost={self.cost}, reduction={self.reduction!r}"
