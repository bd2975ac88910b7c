"""The heads of one model against the heads of another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .measures import chunks, row_sums
from .recording import Recording
from .tables import Table
from .weights import SparseWeights

PIECE = 1 << 20  # pairs of weights at a time


@dataclass(frozen=True)
class Match:
    """A head and the nearest one of the other model; ``mutual``: it is the nearest to that one too."""

    layer: str
    kind: str
    head: int
    other_layer: str
    other_head: int
    divergence: float
    mutual: bool


@dataclass(frozen=True, eq=False)
class Comparison:
    """Head against head: see :func:`compare`.

    Args:
        heads: (layer, head) of each row.
        other_heads: (layer, head) of each column.
        divergence: (rows, columns), float64, from 0 to 1; NaN for two layers that cannot be compared.
        kinds: of the layers of the first model, by their names.
    """

    heads: list[tuple[str, int]]
    other_heads: list[tuple[str, int]]
    divergence: Tensor
    kinds: dict[str, str]

    def between(self, layer: str, other: str) -> Tensor:
        """The matrix (heads, heads of the other) of one pair of layers."""
        rows = [i for i, (name, _) in enumerate(self.heads) if name == layer]
        columns = [i for i, (name, _) in enumerate(self.other_heads) if name == other]
        for given, found, heads in ((layer, rows, self.heads), (other, columns, self.other_heads)):
            if not found:
                raise KeyError(f"no layer {given!r}; there are {', '.join(dict.fromkeys(name for name, _ in heads))}")
        return self.divergence[rows][:, columns]

    def matches(self) -> Table[Match]:
        """For each head that can be compared, the nearest of the other model."""
        filled = self.divergence.nan_to_num(nan=math.inf)
        rows = []
        for i, (layer, head) in enumerate(self.heads):
            if not self.other_heads or filled[i].min() == math.inf:
                continue
            j = int(filled[i].argmin())
            mutual = bool(filled[i, j] == filled[:, j].min())
            rows.append(Match(layer, self.kinds[layer], head, *self.other_heads[j], float(filled[i, j]), mutual))
        return Table(rows)


def compare(recording: Recording, other: Recording) -> Comparison:
    r"""How far each head of one model is from each head of another, on the same examples.

    The divergence of two heads is that of Jensen and Shannon, between their weights p and q for the same query,

    .. math:: H_2(\tfrac{p + q}{2}) - \tfrac12 H_2(p) - \tfrac12 H_2(q)

    in bits, so that it is 0 for equal weights and 1 if they share no key; averaged over the queries of an example, then
    over the examples. Only layers of one kind can be compared. Where both are sparse it costs what their shared keys
    cost.

    Args:
        recording: of the first model, such as one with softmax.
        other: of the second, on the same examples with the same tokens.

    Returns:
        A :class:`Comparison`; its ``matches()`` are a table of the nearest heads.

    Example:
        >>> import torch
        >>> from parsimax import analysis
        >>> to_first, to_self = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.eye(2)
        >>> one = analysis.Recording.from_weights({"layer.0": torch.stack([to_first, to_self])[None]})
        >>> two = analysis.Recording.from_weights({"layer.0": torch.stack([to_self, to_self])[None]})
        >>> comparison = analysis.compare(one, two)
        >>> comparison.divergence
        tensor([[0.5000, 0.5000],
                [0.0000, 0.0000]], dtype=torch.float64)
        >>> print(comparison.matches())
        layer    kind  head  other_layer  other_head  divergence  mutual
        layer.0  self     0  layer.0               0       0.500      no
        layer.0  self     1  layer.0               0       0.000     yes

    Reference: Lin, Divergence measures based on the Shannon entropy, 1991.
    """
    _check(recording, other)
    rows = [(layer.name, head) for layer in recording.layers for head in range(layer.heads)]
    columns = [(layer.name, head) for layer in other.layers for head in range(layer.heads)]
    total = torch.zeros(len(rows), len(columns), dtype=torch.float64)
    count = torch.zeros_like(total)
    top = 0
    for i, layer in enumerate(recording.layers):
        left = 0
        for j, against in enumerate(other.layers):
            part = (slice(top, top + layer.heads), slice(left, left + against.heads))
            if layer.kind == against.kind:
                for mine, theirs in zip(recording.examples, other.examples, strict=True):
                    mean, there = _divergence(mine.weights[i], theirs.weights[j])
                    total[part] += torch.where(there, mean, 0)
                    count[part] += there
            left += against.heads
        top += layer.heads
    return Comparison(rows, columns, total / count, {layer.name: layer.kind for layer in recording.layers})


def _check(recording: Recording, other: Recording) -> None:
    if len(recording.examples) != len(other.examples):
        raise ValueError(
            f"compare: both must have the same examples, got {len(recording.examples)} and {len(other.examples)}"
        )
    for i, (mine, theirs) in enumerate(zip(recording.examples, other.examples, strict=True)):
        for side in mine.sides:
            a, b = mine.sides[side], theirs.sides[side]
            if len(a.tokens) != len(b.tokens) or (a.named and b.named and a.tokens != b.tokens):
                raise ValueError(
                    f"compare: both must have the same tokens, but the {side} of example {i} has {len(a.tokens)} here, "
                    f"{a.tokens[:6]}, and {len(b.tokens)} there, {b.tokens[:6]}"
                )


def _divergence(mine: SparseWeights, theirs: SparseWeights) -> tuple[Tensor, Tensor]:
    """(heads, heads): the mean over the queries that both heads have weights for, and whether there are any.

    A key of p alone adds p/2 bits, so 1 bit is what weights without a shared key are apart. Each shared key takes from
    it ((p + q) log₂(p + q) − p log₂ p − q log₂ q) / 2.
    """
    heads, others = mine.shape[0], theirs.shape[0]
    if mine.shape[1:] != theirs.shape[1:]:
        return torch.zeros(heads, others, dtype=torch.float64), torch.zeros(heads, others, dtype=torch.bool)
    shared = torch.zeros(heads, others, dtype=torch.float64)
    my_sums, their_sums = row_sums(mine), row_sums(theirs)
    for start, stop, (head, query, key, value) in chunks(theirs, others):
        dense = torch.zeros(others, stop - start, theirs.shape[2], dtype=torch.float64)
        dense[head, query - start, key] = value.double() / their_sums[head, query]
        head, query, key, value = mine.entries(start, stop)
        p = value.double() / my_sums[head, query]
        step = max(1, PIECE // max(1, others))
        for at in range(0, len(p), step):
            now = slice(at, at + step)
            q = dense[:, query[now] - start, key[now]].T
            own = p[now, None]
            both = torch.xlogy(own + q, own + q) - torch.xlogy(own, own) - torch.xlogy(q, q)
            shared.index_add_(0, head[now], both)
    queries = (mine.counts > 0).double() @ (theirs.counts > 0).double().T
    return (1 - shared / (2 * math.log(2) * queries)).clamp_min(0), queries > 0
