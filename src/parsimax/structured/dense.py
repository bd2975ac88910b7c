"""A score for every joint value of a few bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .bits import Bits
from .structure import Problem, Scores, _kind_of, _problem, _tensors

MOST = 16  # bits: the table has two to the power of them


class Dense(Bits):
    r"""Vectors of a few bits with a score for every one of them, found by looking at all.

    Scores are a tuple: (…, bits), and a table (2, …, 2) with a dimension for each bit, shared by all, or the same with
    the leading dimensions of the first. −inf in the table forbids that vector. Unlike in :class:`Bits` a bit has one
    part, so that under a table of zeros it is on with probability :math:`\operatorname{clip}(t, 0, 1)`. The penalty of
    SparseMAP is on the bits, not on the table. As a factor of a :class:`FactorGraph` its table is an extra tensor.

    Example:
        >>> import torch, parsimax
        >>> both_or_none = torch.tensor([[0.0, -2.0], [-2.0, 0.0]])
        >>> found = parsimax.sparsemap((torch.tensor([0.9, 0.3]), both_or_none), parsimax.structured.Dense())
        >>> found.structures, found.probabilities
        (tensor([[1., 1.], [0., 0.]]), tensor([0.6000, 0.4000]))
    """

    form = "a tuple of (…, bits) and a table (2, …, 2) with a dimension for each bit"
    kind = 5
    gap_scale = 1.0
    separable = False
    rules = ("active-set",)

    def __init__(self) -> None:
        super().__init__()

    def check(self, unary: Tensor, where: str) -> None:
        if not 0 < unary.shape[-1] <= MOST:
            raise ValueError(f"{where}: {self} takes 1 to {MOST} bits, got scores {tuple(unary.shape)}")

    def problem(self, scores: Scores, where: str) -> Problem:
        if not isinstance(scores, tuple | list) or len(scores) != 2:
            raise TypeError(f"{where}: {self} takes scores that are {self.form}, got {_kind_of(scores)}")
        unary, table = _tensors(scores, where)
        if not unary.dim():
            raise ValueError(f"{where}: {self} takes scores that are {self.form}, got () as the first")
        self.check(unary, where)
        batch, one = tuple(unary.shape[:-1]), (2,) * unary.shape[-1]
        if tuple(table.shape) not in (one, (*batch, *one)):
            raise ValueError(
                f"{where}: for bits {tuple(unary.shape)} the table is {one} or {(*batch, *one)}, got "
                f"{tuple(table.shape)}"
            )
        items = 1 if tuple(table.shape) == one else math.prod(batch)
        return _problem(self, unary, table.reshape(items, 2 ** unary.shape[-1]), where)

    def penalised(self, unary: Tensor) -> Tensor:
        return unary

    def unpenalised(self, unary: Tensor) -> Tensor:
        return unary

    def best(self, unary: Tensor, extra: Tensor | None) -> Tensor | None:
        found = self.kbest(unary, extra, 1)
        return found[0] if found else None

    def kbest(self, unary: Tensor, extra: Tensor | None, k: int) -> list[Tensor]:
        assert extra is not None
        codes = self._all(len(unary))
        value = torch.where(codes > 0, unary, 0.0).sum(-1) + extra
        order = value.sort(descending=True, stable=True).indices[:k]
        return [codes[i] for i in order.tolist() if value[i] > -math.inf]

    @staticmethod
    def _all(bits: int) -> Tensor:
        """Every vector, in the order of the table: the first bit is the highest of its number."""
        return (torch.arange(2**bits)[:, None] >> torch.arange(bits - 1, -1, -1) & 1).int()

    def score(self, codes: Tensor, example: Tensor, problem: Problem, unary: Tensor) -> Tensor:
        own = super().score(codes, example, problem, unary)
        if problem.extra is None:
            return own
        bits = self.opened(codes, problem).long()
        place = (bits << torch.arange(bits.shape[1] - 1, -1, -1, device=bits.device)).sum(-1)
        return own + problem.extra[example if len(problem.extra) > 1 else torch.zeros_like(example), place]

    def score_of_parts(self, codes: Tensor, example: Tensor, problem: Problem) -> Tensor:
        return super().score(codes, example, problem, problem.unary)

    def __repr__(self) -> str:
        return "Dense()"
