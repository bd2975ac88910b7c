"""One label, several independent ones, and chains of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .structure import LabelStructure, Problem, Scores, _kind_of, _problem, _tensors


class OneOf(LabelStructure):
    """One of n: SparseMAP is sparsemax. Scores are (…, n), a structure is an index.

    Example:
        >>> import torch, parsimax
        >>> found = parsimax.sparsemap(torch.tensor([0.1, 0.4, -3.0]), parsimax.structured.OneOf())
        >>> found.structures, found.probabilities
        (tensor([0, 1]), tensor([0.3500, 0.6500]))
    """

    dims = 1
    form = "(…, n)"
    rules = ("sparsemax",)
    separable = True

    def check(self, unary: Tensor, where: str) -> None:
        if not unary.shape[-1]:
            raise ValueError(f"{where}: {self} needs something to choose from, got scores {tuple(unary.shape)}")

    def incidence(self, codes: Tensor, problem: Problem) -> Tensor:
        return torch.nn.functional.one_hot(codes.long(), problem.unary.shape[-1]).double()

    def score(self, codes: Tensor, example: Tensor, problem: Problem, unary: Tensor) -> Tensor:
        return unary[example, codes.long()]

    def marginals(self, codes: Tensor, example: Tensor, weights: Tensor, problem: Problem) -> Tensor:
        return torch.zeros_like(problem.unary).index_put((example, codes.long()), weights, accumulate=True)


class OneOfEach(LabelStructure):
    """One label for each of several independent variables. Scores are (…, variables, labels).

    A structure has one label a variable. The marginals are a sparsemax of each variable; the distribution over their
    combinations has at most as many structures as there are non-zeros beyond the first of each variable, plus one.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[0.5, 0.0], [0.2, 0.0]])
        >>> found = parsimax.sparsemap(scores, parsimax.structured.OneOfEach())
        >>> found.structures, found.probabilities
        (tensor([[0, 0], [0, 1], [1, 1]]), tensor([0.6000, 0.1500, 0.2500]))
    """

    form = "(…, variables, labels)"
    kind = 2
    separable = True
    rules = ("quantile", "active-set")

    def check(self, unary: Tensor, where: str) -> None:
        if not unary.shape[-1] or not unary.shape[-2]:
            raise ValueError(f"{where}: {self} needs a variable and a label, got scores {tuple(unary.shape)}")

    def best(self, unary: Tensor, extra: Tensor | None) -> Tensor | None:
        top, code = unary.max(-1)
        return None if bool((top == -math.inf).any()) else code.int()


class Chain(LabelStructure):
    """A label at each position of a sequence, with scores of the transitions between neighbours.

    Scores are a tuple: (…, positions, labels), and transitions from row to column, (labels, labels) shared by all,
    (positions − 1, labels, labels), or the same with the leading dimensions of the first. A structure has one label a
    position. The penalty of SparseMAP is on the labels, not on the transitions.

    Example:
        >>> import torch, parsimax
        >>> labels, stay = torch.tensor([[2.0, 0.0], [0.0, 0.6], [0.3, 0.0]]), 0.4 * torch.eye(2)
        >>> found = parsimax.sparsemap((labels, stay), parsimax.structured.Chain())
        >>> found.structures, found.probabilities
        (tensor([[0, 0, 0], [0, 1, 1]]), tensor([0.5250, 0.4750]))
    """

    form = "a tuple of (…, positions, labels) and transitions (labels, labels) or (…, positions − 1, labels, labels)"
    kind = 1

    def problem(self, scores: Scores, where: str) -> Problem:
        if not isinstance(scores, tuple | list) or len(scores) != 2:
            raise TypeError(f"{where}: {self} takes scores that are {self.form}, got {_kind_of(scores)}")
        unary, moves = _tensors(scores, where)
        if unary.dim() < 2 or not unary.shape[-1] or not unary.shape[-2]:
            raise ValueError(
                f"{where}: {self} takes scores that are {self.form}, got {tuple(unary.shape)} as the first"
            )
        positions, labels = unary.shape[-2:]
        square, full = (labels, labels), (positions - 1, labels, labels)
        if tuple(moves.shape) == square:
            own = moves.reshape(1, 1, *square)
        elif tuple(moves.shape) == full:
            own = moves.unsqueeze(0)
        elif tuple(moves.shape) == (*unary.shape[:-2], *full):
            own = moves.reshape(math.prod(unary.shape[:-2]), *full)
        else:
            raise ValueError(
                f"{where}: for labels {tuple(unary.shape)} the transitions are {square}, {full} or "
                f"{(*unary.shape[:-2], *full)}, got {tuple(moves.shape)}"
            )
        if positions == 1:
            own = own.new_zeros(1, 1, *square)
        return _problem(self, unary, own, where)

    def best(self, unary: Tensor, extra: Tensor | None) -> Tensor | None:
        assert extra is not None
        value, back = unary[0], []
        for position in range(1, len(unary)):
            best, origin = (value[:, None] + extra[min(position - 1, len(extra) - 1)]).max(0)
            value = best + unary[position]
            back.append(origin)
        if bool(value.max() == -math.inf):
            return None
        code = [value.argmax()]
        for origin in reversed(back):
            code.append(origin[code[-1]])
        return torch.stack(code[::-1]).int()

    def score(self, codes: Tensor, example: Tensor, problem: Problem, unary: Tensor) -> Tensor:
        own = super().score(codes, example, problem, unary)
        if codes.shape[1] == 1:
            return own
        assert problem.extra is not None
        items, steps = problem.extra.shape[:2]
        item = (example if items > 1 else torch.zeros_like(example))[:, None]
        step = torch.arange(codes.shape[1] - 1, device=codes.device) if steps > 1 else 0
        return own + problem.extra[item, step, codes[:, :-1].long(), codes[:, 1:].long()].sum(-1)

    def score_of_parts(self, codes: Tensor, example: Tensor, problem: Problem) -> Tensor:
        return LabelStructure.score(self, codes, example, problem, problem.unary)

    def value(self, unary: Tensor, extra: Tensor | None, code: Tensor) -> float:
        assert extra is not None
        steps = torch.arange(len(code) - 1) if len(extra) > 1 else 0
        return super().value(unary, extra, code) + float(extra[steps, code[:-1].long(), code[1:].long()].sum())
