"""What a structure is to the functions of this room: parts with scores, and the structures that choose among them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

Scores = Tensor | tuple[Tensor, Tensor]
MANY = 2**62  # stands for no limit, and is a whole number to the kernels


@dataclass(frozen=True)
class Problem:
    """Scores of a batch as all solvers want them: float64, one dimension of items, differentiable.

    ``broken`` marks the items with NaN or +inf; their scores are zeros here. ``spoil`` carries the NaN to them: it is 0
    for the others, and so is its gradient.
    """

    unary: Tensor  # (items, *parts)
    extra: Tensor | None
    batch: tuple[int, ...]
    dtype: torch.dtype
    broken: Tensor
    spoil: Tensor

    @property
    def items(self) -> int:
        return len(self.unary)

    def on_cpu(self) -> Problem:
        """Where the solvers are; detached."""
        extra = None if self.extra is None else self.extra.detach().cpu()
        return replace(self, unary=self.unary.detach().cpu(), extra=extra, broken=self.broken.cpu())

    def of(self, item: int) -> tuple[Tensor, Tensor | None]:
        """The scores of one item, detached."""
        extra = self.extra
        own = None if extra is None else extra.detach()[item if len(extra) > 1 else 0]
        return self.unary.detach()[item], own


class Structure:
    """A kind of structure. :func:`sparsemap` and :func:`topk` take any of them.

    Inside, a structure is a *code*, a row of integers; ``decode`` turns codes into what users see.
    """

    dims: ClassVar[int] = 1  # of the scores of one item
    form: ClassVar[str]  # the shape of the scores in words
    kind: ClassVar[int | None] = None  # for the kernels
    limits: tuple[int, int] = (0, 0)  # for the kernels
    rules: ClassVar[tuple[str, ...]] = ("active-set",)  # ways to choose the distribution, the default first
    gap_scale: ClassVar[float] = 1.0
    separable: ClassVar[bool] = False  # whether the marginals have a closed form

    def problem(self, scores: Scores, where: str) -> Problem:
        """Check the scores and put them into one shape."""
        if not isinstance(scores, Tensor):
            raise TypeError(f"{where}: {self} takes scores {self.form} as one tensor, got {_kind_of(scores)}")
        return _problem(self, scores, None, where)

    def check(self, unary: Tensor, where: str) -> None:
        """Raise if no structure fits scores of this shape."""

    def bound(self, problem: Problem) -> int:
        """So many structures an item has at most."""
        return MANY

    def best(self, unary: Tensor, extra: Tensor | None) -> Tensor | None:
        """The code of the best structure of one item, ties to the first; None if nothing is allowed."""
        raise NotImplementedError

    def opened(self, codes: Tensor, problem: Problem) -> Tensor:
        """Codes as the reference has them, from those of the kernels."""
        return codes

    def incidence(self, codes: Tensor, problem: Problem) -> Tensor:
        """(codes, parts) of 0 and 1, in float64."""
        raise NotImplementedError

    def score(self, codes: Tensor, example: Tensor, problem: Problem, unary: Tensor) -> Tensor:
        """The score of each code under ``unary`` and the extra scores of its item, differentiable."""
        raise NotImplementedError

    def marginals(self, codes: Tensor, example: Tensor, weights: Tensor, problem: Problem) -> Tensor:
        """The weighted sum of the codes of each item, (items, *parts)."""
        parts = self.incidence(codes, problem) * weights[:, None]
        flat = parts.new_zeros(problem.items, parts.shape[1]).index_add(0, example, parts)
        return flat.view(problem.unary.shape)

    def decode(self, codes: Tensor, problem: Problem) -> Tensor:
        raise NotImplementedError

    def encode(self, structures: Tensor) -> Tensor:
        raise NotImplementedError

    def holds(self, codes: Tensor) -> Tensor:
        """Whether each code is a structure of this kind, as far as that can be known."""
        return torch.ones(len(codes), dtype=torch.bool, device=codes.device)

    def penalised(self, unary: Tensor) -> Tensor:
        """The scores for which the penalty of SparseMAP is half the square of the marginals."""
        return unary

    def unpenalised(self, unary: Tensor) -> Tensor:
        """The way back from :meth:`penalised`."""
        return unary

    def score_of_parts(self, codes: Tensor, example: Tensor, problem: Problem) -> Tensor:
        """The score of each code under ``problem.unary`` alone."""
        return self.score(codes, example, problem, problem.unary)

    def kbest(self, unary: Tensor, extra: Tensor | None, k: int) -> list[Tensor]:
        """The codes of the k best structures of one item."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class LabelStructure(Structure):
    """One label at each position: scores (positions, labels), and a code has the labels."""

    dims = 2

    def bound(self, problem: Problem) -> int:
        *positions, labels = problem.unary.shape[1:]
        count: int = labels ** math.prod(positions)
        return count

    def incidence(self, codes: Tensor, problem: Problem) -> Tensor:
        labels = problem.unary.shape[-1]
        return torch.nn.functional.one_hot(codes.long(), labels).flatten(1).double()

    def score(self, codes: Tensor, example: Tensor, problem: Problem, unary: Tensor) -> Tensor:
        positions = torch.arange(codes.shape[1], device=codes.device)
        return unary[example[:, None], positions, codes.long()].sum(-1)

    def marginals(self, codes: Tensor, example: Tensor, weights: Tensor, problem: Problem) -> Tensor:
        _, positions, labels = problem.unary.shape
        at = (example[:, None] * positions + torch.arange(positions, device=codes.device)) * labels + codes.long()
        flat = weights.new_zeros(problem.unary.numel())
        return flat.index_add(0, at.flatten(), weights[:, None].expand(at.shape).flatten()).view(problem.unary.shape)

    def decode(self, codes: Tensor, problem: Problem) -> Tensor:
        return codes.long()

    def encode(self, structures: Tensor) -> Tensor:
        return structures.to(torch.int32)

    def kbest(self, unary: Tensor, extra: Tensor | None, k: int) -> list[Tensor]:
        def best(fixed: int, code: Tensor, forbidden: list[int]) -> tuple[float, Tensor] | None:
            r = unary.clone()
            for position in range(fixed):
                allowed = r[position, code[position]].clone()
                r[position] = -math.inf
                r[position, code[position]] = allowed
            if forbidden:
                r[fixed, forbidden] = -math.inf
            found = self.best(r, extra)
            return None if found is None else (self.value(unary, extra, found), found)

        return split_at_the_best(unary.shape[0], k, best)

    def value(self, unary: Tensor, extra: Tensor | None, code: Tensor) -> float:
        return float(unary.gather(1, code.long()[:, None]).sum())


def split_at_the_best(length: int, k: int, best: Any) -> list[Tensor]:
    """The k best by splitting a set of structures at its best one, into those that first differ from it at i.

    ``best(fixed, code, forbidden)`` is (value, code) of the best structure that begins with ``fixed`` units of the code
    and has none of the forbidden choices at the next one.
    """
    start = best(0, torch.zeros(length, dtype=torch.int32), [])
    queue: list[tuple[float, Tensor, int, list[int]]] = [] if start is None else [(*start, 0, [])]
    found: list[Tensor] = []
    while queue and len(found) < k:
        at = max(range(len(queue)), key=lambda i: queue[i][0])
        _, code, fixed, forbidden = queue.pop(at)
        found.append(code)
        for position in range(fixed, length):
            without = [*(forbidden if position == fixed else []), int(code[position])]
            child = best(position, code, without)
            if child is not None:
                queue.append((*child, position, without))
    return found


def _kind_of(scores: object) -> str:
    if isinstance(scores, tuple | list):
        return f"a {type(scores).__name__} of {len(scores)}"
    return str(tuple(scores.shape)) if isinstance(scores, Tensor) else type(scores).__name__


def _tensors(scores: tuple[Tensor, Tensor], where: str) -> tuple[Tensor, Tensor]:
    if not all(isinstance(each, Tensor) and each.is_floating_point() for each in scores):
        kinds = [str(each.dtype) if isinstance(each, Tensor) else type(each).__name__ for each in scores]
        raise TypeError(f"{where}: both scores are floating point tensors, got {' and '.join(kinds)}")
    return scores


def _problem(structure: Structure, unary: Tensor, extra: Tensor | None, where: str) -> Problem:
    """``extra``, if there is one, has a leading dimension of the items or of 1."""
    if not unary.is_floating_point():
        raise TypeError(f"{where}: the scores must be floating point, got {unary.dtype}")
    if unary.dim() < structure.dims:
        raise ValueError(f"{where}: {structure} takes scores {structure.form}, got {tuple(unary.shape)}")
    structure.check(unary, where)
    split = unary.dim() - structure.dims
    batch, parts = tuple(unary.shape[:split]), unary.shape[split:]
    flat = unary.double().reshape(math.prod(batch), *parts)
    broken = ~(flat.detach() < math.inf).flatten(1).all(1)
    clean = torch.where(broken.view(-1, *[1] * structure.dims), 0.0, flat)
    if extra is not None:
        given = extra.double()
        bad = ~(given.detach() < math.inf).flatten(1).all(1)
        extra = torch.where(bad.view(-1, *[1] * (given.dim() - 1)), 0.0, given)
        broken = broken | bad
    spoil = flat.new_zeros(len(flat))
    if bool(broken.any()):  # by index: a product with NaN has the gradient NaN wherever it stands
        cause = flat.flatten(1).sum(1)
        if extra is not None:  # clean ones that all items share are not spoilt by one of them
            cause = cause + torch.where(broken if len(given) == len(flat) else bad, given.flatten(1).sum(1), 0.0)
        spoil = spoil.index_put((broken.nonzero()[:, 0],), cause[broken] * math.nan)
    return Problem(clean, extra, batch, unary.dtype, broken, spoil)
