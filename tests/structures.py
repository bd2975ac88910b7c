"""Brute-force twins of the structures: all of them, listed, for sizes at which that can be done."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cases import normal
from parsimax import structured as st

Scores = Tensor | tuple[Tensor, Tensor]


def labels_to_parts(codes: list[tuple[int, ...]], labels: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(codes), labels).double()


def all_bits(n: int, low: int = 0, high: int | None = None) -> list[tuple[int, ...]]:
    high = n if high is None else high
    return [bits for bits in itertools.product((0, 1), repeat=n) if low <= sum(bits) <= high]


def all_trees(words: int, single: bool) -> list[tuple[int, ...]]:
    def rooted(heads: tuple[int, ...], word: int) -> bool:
        seen = set()
        while word and word not in seen:
            seen.add(word)
            word = heads[word - 1]
        return word == 0

    every = itertools.product(range(words + 1), repeat=words)
    found = [h for h in every if all(rooted(h, word) for word in range(1, words + 1))]
    return [h for h in found if h.count(0) == 1] if single else found


@dataclass(frozen=True)
class Twin:
    """A structure, random scores for it, and all its codes with their parts and extra parts."""

    structure: st.Structure
    scores: Callable[[int, float], Scores]  # (items, scale)
    codes: list[tuple[int, ...]]
    parts: Tensor  # (structures, …)
    extra: Tensor | None = None  # (structures, …)

    def values(self, scores: Scores) -> Tensor:
        """(items, structures)."""
        unary, more = scores if isinstance(scores, tuple) else (scores, None)
        total = picked(self.parts, unary)
        return total if more is None else total + picked(self.extra, more)

    @property
    def paired(self) -> bool:
        """Whether a bit has two parts, on and off."""
        return type(self.structure) is st.Bits

    def penalised(self, unary: Tensor) -> Tensor:
        return (1 + unary) / 2 if self.paired else unary

    @property
    def scale(self) -> float:
        return 2.0 if self.paired else 1.0

    def index(self, structures: Tensor) -> Tensor:
        """Where in the list each structure stands."""
        rows = structures.reshape(len(structures), -1).long().tolist()
        at = {code: i for i, code in enumerate(self.codes)}
        return torch.tensor([at[tuple(row)] for row in rows], dtype=torch.long)

    def gap(self, scores: Scores, found: st.Distribution) -> Tensor:
        """The Frank–Wolfe gap over the whole list, from the probabilities alone."""
        unary, more = scores if isinstance(scores, tuple) else (scores, None)
        p = self.dense(found)
        marginals = torch.einsum("bs,s...->b...", p, self.parts)
        residual = self.penalised(unary) - marginals
        value = self.values(residual if more is None else (residual, more))
        own = torch.where(p > 0, p * value, 0.0).sum(1)
        return self.scale * (value.amax(1) - own)

    def dense(self, found: st.Distribution) -> Tensor:
        p = torch.zeros(found.counts.numel(), len(self.codes), dtype=torch.float64)
        return p.index_put((found.example, self.index(found.structures)), found.probabilities.detach().double())


def picked(parts: Tensor, scores: Tensor) -> Tensor:
    """Sums of the scores of the parts that are there, so that -inf of the others does not count."""
    flat, there = scores.flatten(1), parts.flatten(1) > 0
    return torch.where(there[None], flat[:, None], 0.0).sum(-1)


def _bits(n: int, low: int = 0, high: int | None = None) -> Twin:
    codes = all_bits(n, low, high)
    made = st.Bits(low, high)
    return Twin(made, lambda b, s: s * normal(b, n), codes, torch.tensor(codes).double())


def _labels(structure: st.Structure, codes: list[tuple[int, ...]], shape: tuple[int, int]) -> Twin:
    return Twin(structure, lambda b, s: s * normal(b, *shape), codes, labels_to_parts(codes, shape[1]))


def _chain(positions: int, labels: int) -> Twin:
    codes = [*itertools.product(range(labels), repeat=positions)]
    table = torch.tensor(codes)
    pairs = torch.nn.functional.one_hot(table[:, :-1] * labels + table[:, 1:], labels**2).double()

    def scores(b: int, s: float) -> Scores:
        return s * normal(b, positions, labels), s * normal(b, positions - 1, labels, labels, seed=1)

    return Twin(st.Chain(), scores, codes, labels_to_parts(codes, labels), pairs)


def _dense(n: int) -> Twin:
    codes = all_bits(n)

    def scores(b: int, s: float) -> Scores:
        return s * normal(b, n), s * normal(b, *[2] * n, seed=1)

    places = torch.eye(2**n).double().view(-1, *[2] * n)  # the vectors are listed in the order of the table
    return Twin(st.Dense(), scores, codes, torch.tensor(codes).double(), places)


def _custom(n: int) -> Twin:
    """Bits without neighbours that are both on, by an oracle that looks at all of them."""
    codes = [c for c in all_bits(n) if not any(a and b for a, b in itertools.pairwise(c))]
    table = torch.tensor(codes).double()

    def kbest(scores: Tensor, k: int) -> list[Tensor]:
        value = picked(table, scores[None])[0]
        order = value.sort(descending=True, stable=True).indices[:k]
        return [table[i] for i in order if value[i] > -torch.inf]

    return Twin(st.Custom(lambda s: kbest(s, 1)[0], kbest=kbest), lambda b, s: s * normal(b, n), codes, table)


TWINS = {
    "bits": _bits(5),
    "budget": _bits(5, 0, 2),
    "exactly": _bits(5, 2, 2),
    "between": _bits(5, 1, 3),
    "each": _labels(st.OneOfEach(), [*itertools.product(range(3), repeat=3)], (3, 3)),
    "chain": _chain(3, 3),
    "permutation": _labels(st.Assignment(), [*itertools.permutations(range(4))], (4, 4)),
    "assignment": _labels(st.Assignment(), [*itertools.permutations(range(4), 3)], (3, 4)),
    "tree": _labels(st.Tree(), all_trees(3, False), (3, 4)),
    "single root": _labels(st.Tree(single_root=True), all_trees(4, True), (4, 5)),
    "dense": _dense(4),
    "custom": _custom(5),
}
