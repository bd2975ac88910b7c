"""SparseMAP: the sparse distribution over structures whose marginals are nearest to the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..engine.precision import in_float64
from .active_set import FACE, Limits, Start
from .closed import in_closed_form, nearest
from .custom import Custom
from .distribution import Distribution, Weights, assemble
from .solving import kernels_serve, solve
from .structure import MANY, LabelStructure, Scores, Structure

if TYPE_CHECKING:
    from .structure import Problem

Incidence = Callable[[Tensor], Tensor]


@in_float64
def sparsemap(
    scores: Scores,
    structure: Structure,
    *,
    rule: str | None = None,
    shuffle: bool = False,
    start: Distribution | None = None,
    max_iter: int = 1000,
    max_support: int | None = None,
) -> Distribution:
    r"""SparseMAP: a distribution over few structures, exact zeros for all others.

    .. math:: \operatorname{argmax}_{p \in \Delta} \; \eta^\top A p - \tfrac12 \|M p\|^2

    where a column of A is a structure, M its parts without the extra ones (transitions), and η the scores.

    Args:
        scores: in the shape that the structure says; any leading dimensions are items. −inf forbids a part.
        structure: :class:`~parsimax.structured.OneOf`, ``OneOfEach``, ``Bits``, ``Chain``, ``Assignment``, ``Tree`` or
            ``Custom``.
        rule: how to choose among the distributions with the same marginals, which is not unique. Closed forms, whose
            expectations are continuous in the scores: ``"staircase"`` and ``"systematic"`` for bits, ``"quantile"`` for
            independent labels, the default there. ``"active-set"``: the only one for all other structures.
        shuffle: with ``"systematic"``, take the bits in a random order.
        start: an answer for similar scores, from which the active set begins.
        max_iter: steps of the active set for an item. One that stops there says so by its ``gap``.
        max_support: the same for the number of active structures.

    Returns:
        A :class:`~parsimax.structured.Distribution`: structures, probabilities, marginals, and the gap as certificate.
        Probabilities and marginals are differentiable by the scores, once and twice. Everything is computed in float64
        and rounded once. An item with NaN or +inf is NaN, with one structure; one in which nothing is allowed has none,
        and marginals 0.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[2.0, 0.5, 0.0], [0.2, 0.9, 0.0], [0.3, 0.6, 0.4]])
        >>> found = parsimax.sparsemap(scores, parsimax.structured.Assignment())
        >>> found.structures, found.probabilities
        (tensor([[0, 1, 2], [0, 2, 1]]), tensor([0.6750, 0.3250]))
        >>> found.marginals
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 0.6750, 0.3250],
                [0.0000, 0.3250, 0.6750]])

    Reference: Niculae, Martins, Blondel and Cardie, SparseMAP: differentiable sparse structured inference, ICML 2018.
    """
    where = "sparsemap"
    _check_structure(structure, where)
    chosen = structure.rules[0] if rule is None else rule
    if chosen not in structure.rules:
        raise ValueError(f"{where}: rules of {structure} are {', '.join(structure.rules)}, got {rule!r}")
    if shuffle and chosen != "systematic":
        raise ValueError(f"{where}: shuffle is for the rule systematic, not for {chosen}")
    limits = Limits(
        _count(max_iter, "max_iter", where), MANY if max_support is None else _count(max_support, "max_support", where)
    )
    problem = structure.problem(scores, where)
    if chosen != "active-set":
        for name, given in (("start", start), ("max_support", max_support)):
            if given is not None:
                raise ValueError(f"{where}: {name} is for the rule active-set, not for {chosen}")
        return in_closed_form(structure, problem, chosen, shuffle)
    kernels = kernels_serve(where, structure, scores)
    begin = None if start is None else _start(structure, problem, start, where)
    face = on_the_face(structure, problem, limits, begin, kernels)
    marginals = _marginals(structure, problem, face)
    codes, p, counts = face.support(problem)
    return assemble(structure, problem, codes, p, counts, structure.gap_scale * face.gap, face.steps, marginals)


@dataclass(frozen=True)
class Face:
    """The answer of the active set: active structures, and of weight 0 those that complete the face of the marginals.

    ``weights`` are differentiable, and right in all directions of the face. For users there are only those above 0.
    """

    raw: Tensor  # codes as the solver has them
    codes: Tensor
    theta: Tensor
    weights: Tensor
    counts: Tensor
    example: Tensor
    gap: Tensor
    steps: Tensor
    incidence: Incidence | None

    def support(self, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
        """(codes, weights, counts) of the active structures, the weights as a function of the scores of these alone."""
        inside = (self.weights.detach() > 0) | problem.broken[self.example]
        if bool(inside.all()):
            return self.codes, self.weights, self.counts
        counts = torch.bincount(self.example[inside], minlength=problem.items)
        weights: Tensor = Weights.apply(  # type: ignore[no-untyped-call]
            self.theta[inside], self.weights.detach()[inside], self.raw[inside], counts, self.incidence
        )
        return self.codes[inside], weights, counts


def _marginals(structure: Structure, problem: Problem, face: Face) -> Tensor:
    """Of separable structures by the closed form, where the active set got there: its own span less than their face."""
    if not structure.separable:
        return structure.marginals(face.codes, face.example, face.weights, problem)
    unary = problem.unary.detach()
    finite = torch.where(unary.isfinite(), unary.abs(), 0.0).flatten(1)
    reached = face.gap <= FACE * torch.nn.functional.pad(finite, (0, 1), value=1.0).amax(-1)
    closed = nearest(structure, problem)[0]
    if bool((reached | problem.broken).all()):
        return closed
    own = structure.marginals(face.codes, face.example, face.weights, problem)
    return torch.where(reached.view(-1, *[1] * structure.dims), closed, own)


def on_the_face(structure: Structure, problem: Problem, limits: Limits, start: Start | None, kernels: bool) -> Face:
    """SparseMAP by the active set, with differentiable weights."""
    codes, weights, counts, gap, steps = solve(structure, problem, limits, start, kernels)
    example = torch.repeat_interleave(torch.arange(problem.items, device=counts.device), counts)
    opened = structure.opened(codes, problem)
    theta = structure.score(opened, example, problem, structure.penalised(problem.unary))
    incidence = None if kernels else (lambda codes: structure.incidence(codes, problem))
    weights = torch.where(problem.broken[example], 0.0, weights)
    p: Tensor = Weights.apply(theta, weights, codes, counts, incidence)  # type: ignore[no-untyped-call]
    return Face(codes, opened, theta, p, counts, example, gap, steps, incidence)


def _check_structure(structure: object, where: str) -> None:
    if not isinstance(structure, Structure):
        given = structure.__name__ if isinstance(structure, type) else repr(structure)
        hint = f"; write {given}()" if isinstance(structure, type) else ""
        raise TypeError(f"{where}: the structure is one of parsimax.structured, got {given}{hint}")


def _count(value: object, name: str, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{where}: {name} is a whole number, 1 or more, got {value!r}")
    return min(value, MANY)


def _start(structure: Structure, problem: Problem, start: Distribution, where: str) -> Start:
    if not isinstance(start, Distribution):
        raise TypeError(f"{where}: start is a Distribution, as this function returns it, got {type(start).__name__}")
    if start.counts.numel() != problem.items or start.marginals.shape[len(problem.batch) :] != problem.unary.shape[1:]:
        raise ValueError(
            f"{where}: start is of scores {tuple(start.marginals.shape)}, and does not fit those given, "
            f"{(*problem.batch, *problem.unary.shape[1:])}"
        )
    if isinstance(structure, Custom) and problem.extra is not None:
        raise ValueError(f"{where}: a structure with extra parts cannot begin from an answer, which has not kept them")
    weights = start.probabilities.detach().double()
    parts = problem.unary.shape[1:]
    fits = start.structures.shape[1:] == (parts[:-1] if isinstance(structure, LabelStructure) else parts)
    codes = structure.encode(start.structures) if fits else start.structures
    strange = (weights > 0) & ~(structure.holds(codes) if fits else torch.zeros_like(weights, dtype=torch.bool))
    if bool(strange.any()):  # they would stay, with a gap of 0
        raise ValueError(
            f"{where}: start is of other structures than {structure}, such as {start.structures[strange][0].tolist()}"
        )
    return Start(codes, weights, start.counts.flatten())
