"""Numbers that say how a head attends: how much is zero, how sure it is, how different the heads of a layer are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .recording import Recording
from .tables import Table
from .weights import Entries, SparseWeights

CHUNK = 1 << 20  # numbers in a dense buffer


@dataclass(frozen=True)
class HeadMeasures:
    """One head: see :func:`measures`."""

    layer: str
    kind: str
    mapping: str
    head: int
    alpha: float | None
    density: float
    entropy: float
    support: float
    confidence: float
    diversity: float


def measures(recording: Recording) -> Table[HeadMeasures]:
    r"""How each head attends, from the exact weights.

    With the weights p of one query over the keys that it may see:

    - **density**: the share of keys with p > 0. Keys that a mask forbids do not count, so that softmax has density 1
      under any mask. Where only weights were given (:meth:`Recording.from_weights`), the masks are not known: see its
      argument ``causal``.
    - **support**: the number of keys with p > 0.
    - **entropy**: :math:`-\sum p \log p`, in nats.
    - **confidence**: the largest p.
    - **diversity**, one number for a layer of H heads: their Jensen–Shannon divergence
      :math:`\big( H(\tfrac1H \sum_h p_h) - \tfrac1H \sum_h H(p_h) \big) / \log H`, from 0, all heads agree, to 1, no
      two heads share a key. NaN for a single head.

    Each is averaged over the queries of an example, then over the examples. A query without any weight, because it may
    see nothing, does not count. Weights that do not sum to 1 are divided by their sum for entropy and diversity.

    Args:
        recording: what to measure.

    Returns:
        A table with a row for each head, which also has the α that was last seen.

    Example:
        >>> import torch
        >>> from parsimax import analysis
        >>> heads = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]])
        >>> recording = analysis.Recording.from_weights({"layer.0": heads[None]}, mapping="entmax")
        >>> print(analysis.measures(recording))
        layer    kind  mapping  head  alpha  density  entropy  support  confidence  diversity
        layer.0  self  entmax      0      –    0.500    0.000    1.000       1.000      0.311
        layer.0  self  entmax      1      –    1.000    0.693    2.000       0.500      0.311

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019 (density, diversity).
    """
    rows = []
    for i, layer in enumerate(recording.layers):
        causal = recording.causal(i)
        seen = [_average(example.weights[i], causal) for example in recording.examples if example.weights[i].shape[1]]
        table = mean_over_examples(seen, (layer.heads, 5))
        for head, values in enumerate(table.tolist()):
            alpha = layer.alpha[head] if layer.alpha else None
            rows.append(HeadMeasures(layer.name, layer.kind, layer.mapping, head, alpha, *values))
    return Table(rows)


def mean_over_examples(seen: Sequence[tuple[Tensor, Tensor]], shape: tuple[int, ...]) -> Tensor:
    """The mean of the values of those examples that have one: pairs (values, which there are); NaN where none has."""
    total, count = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for values, there in seen:
        total += torch.where(there, values, 0)
        count += there
    return total / count


def _average(weights: SparseWeights, causal: bool) -> tuple[Tensor, Tensor]:
    """(heads, 5): density, entropy, support, confidence and the layer's diversity, over the rows of one example; and
    which of these there are."""
    heads, queries, keys = weights.shape
    counts, sums = weights.counts.double(), row_sums(weights)
    entropy, confidence = torch.zeros_like(counts), torch.zeros_like(counts)
    entropy_of_mean = torch.zeros(queries, dtype=torch.float64)
    for start, stop, (head, query, key, value) in chunks(weights, heads):
        row = head * queries + query
        p = value.double() / sums.view(-1)[row]
        entropy.view(-1).index_add_(0, row, -torch.xlogy(p, p))
        confidence.view(-1).scatter_reduce_(0, row, value.double(), "amax")
        mean = torch.zeros((stop - start) * keys, dtype=torch.float64)
        mean.index_add_(0, (query - start) * keys + key, p / heads)
        entropy_of_mean[start:stop] = -torch.xlogy(mean, mean).view(-1, keys).sum(1)
    kept = counts > 0
    columns = [entropy, counts, confidence]
    averages = [torch.where(kept, column, 0).sum(1) / kept.sum(1) for column in columns]
    apart = (entropy_of_mean - entropy.mean(0))[kept.all(0)].mean() / (math.log(heads) if heads > 1 else math.nan)
    there = torch.cat([kept.any(1, keepdim=True).expand(-1, 4), kept.all(0).any().expand(heads, 1)], 1)
    return torch.stack([densities(weights, causal), *averages, apart.expand(heads)], 1), there


def densities(weights: SparseWeights, causal: bool) -> Tensor:
    """(heads,): the share of visible keys, averaged over the queries that have weights. ``causal`` says what is visible
    where the weights themselves do not tell."""
    _, queries, keys = weights.shape
    counts = weights.counts.double()
    if weights.visible is not None:
        # A query whose keys all have the lowest number added may attend to none, and still has weights.
        visible = torch.maximum(weights.visible.double(), counts)
    else:
        visible = torch.arange(1, queries + 1) + keys - queries if causal else torch.tensor(keys)
    kept = counts > 0
    return torch.where(kept, counts / visible, 0).sum(1) / kept.sum(1)


def row_sums(weights: SparseWeights) -> Tensor:
    """(heads, queries), float64."""
    ends = weights.counts.flatten().long()
    sums = torch.zeros(ends.numel(), dtype=torch.float64)
    sums.index_add_(0, torch.arange(ends.numel()).repeat_interleave(ends), weights.values.double())
    return sums.view(weights.shape[:2])


def chunks(weights: SparseWeights, copies: int = 1) -> Iterator[tuple[int, int, Entries]]:
    """(start, stop, non-zeros) of runs of queries so short that ``copies`` dense matrices of one are small."""
    _, queries, keys = weights.shape
    size = max(1, CHUNK // max(1, copies * keys))
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        yield start, stop, weights.entries(start, stop)
