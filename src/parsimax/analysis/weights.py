"""Attention weights of one layer on one example, without their zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Entries(NamedTuple):
    """The non-zero weights of some rows, one per position: all int64 but ``value``, which is float32."""

    head: Tensor
    query: Tensor
    key: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """The weights (heads, queries, keys) of one attention layer, non-zeros only.

    A weight that is not exactly 0 is always kept: one too small for float32 becomes the smallest normal float32.

    Args:
        shape: (heads, queries, keys).
        counts: (heads, queries), int32: the non-zeros of each row.
        keys: (non-zeros,), the key of each, int16 below 32 768 keys and int32 above; by head, then query, then key.
        values: (non-zeros,), float32, in the same order.
        visible: (heads or 1, queries), int32: how many keys each query may attend to; None where it is not known.

    Example:
        >>> import torch
        >>> from parsimax.analysis import SparseWeights
        >>> weights = SparseWeights.from_dense(torch.tensor([[[0.25, 0.0, 0.75], [0.0, 1.0, 0.0]]]))
        >>> weights
        SparseWeights(1 head, 2 × 3, 3 non-zeros)
        >>> weights.density(), weights.dense(0)
        (tensor([0.5000]), tensor([[0.2500, 0.0000, 0.7500],
                [0.0000, 1.0000, 0.0000]]))
    """

    shape: tuple[int, int, int]
    counts: Tensor
    keys: Tensor
    values: Tensor
    visible: Tensor | None = None

    @classmethod
    def from_dense(cls, weights: Tensor) -> SparseWeights:
        """From a tensor (heads, queries, keys) of any floating dtype and device."""
        if weights.dim() != 3:
            raise ValueError(f"SparseWeights: weights must be (heads, queries, keys), got shape {tuple(weights.shape)}")
        heads, queries, keys = weights.shape
        counts, flat, values = non_zeros(weights)
        return cls((heads, queries, keys), counts, flat.to(_key_dtype(keys)), values)

    @classmethod
    def empty(cls, heads: int) -> SparseWeights:
        """Of a layer that did not run: no queries and no keys."""
        return cls.from_dense(torch.zeros(heads, 0, 0))

    @classmethod
    def join(cls, parts: Sequence[SparseWeights], copy: bool = False) -> SparseWeights:
        """The rows of all parts, one part below the other; fewer keys than the widest part has are zeros."""
        if len(parts) == 1 and not copy:
            return parts[0]
        heads, width = parts[0].shape[0], max(part.shape[2] for part in parts)
        ends = [part._ends() for part in parts]
        pieces = [part._between(end, head) for head in range(heads) for part, end in zip(parts, ends, strict=True)]
        return cls(
            (heads, sum(part.shape[1] for part in parts), width),
            torch.cat([part.counts for part in parts], 1),
            torch.cat([keys.to(_key_dtype(width)) for keys, _ in pieces]),
            torch.cat([values for _, values in pieces]),
            _below([part.visible for part in parts]),
        )

    @property
    def nbytes(self) -> int:
        """The memory of the tensors."""
        return sum(t.nbytes for t in (self.counts, self.keys, self.values, self.visible) if t is not None)

    def density(self) -> Tensor:
        """The share of non-zeros of each head, (heads,); 0 where there are no queries or keys."""
        _, queries, keys = self.shape
        return self.counts.sum(1) / max(queries * keys, 1)

    def dense(self, head: int) -> Tensor:
        """The whole matrix (queries, keys) of one head, float32."""
        _, queries, keys = self.shape
        head = check_index(head, self.shape[0], "head", "SparseWeights.dense")
        out = torch.zeros(queries, keys, dtype=torch.float32)
        entry_keys, values = self._between(self._ends(), head)
        rows = torch.arange(queries).repeat_interleave(self.counts[head].long())
        out[rows, entry_keys.long()] = values
        return out

    def row(self, head: int, query: int) -> tuple[Tensor, Tensor]:
        """The keys of the non-zeros of one row, int64, and their weights."""
        head = check_index(head, self.shape[0], "head", "SparseWeights.row")
        query = check_index(query, self.shape[1], "query", "SparseWeights.row")
        keys, values = self._between(self._ends(), head, query, query + 1)
        return keys.long(), values

    def entries(self, start: int = 0, stop: int | None = None) -> Entries:
        """The non-zeros in the rows from ``start`` up to ``stop``, by head, then query, then key."""
        heads, queries, _ = self.shape
        start, stop, _ = slice(start, stop).indices(queries)
        counts = self.counts[:, start:stop].long()
        ends = self._ends()
        pieces = [self._between(ends, head, start, stop) for head in range(heads)]
        return Entries(
            torch.arange(heads).repeat_interleave(counts.sum(1)),
            torch.arange(start, stop).repeat(heads).repeat_interleave(counts.flatten()),
            torch.cat([keys for keys, _ in pieces] or [self.keys]).long(),
            torch.cat([values for _, values in pieces] or [self.values]),
        )

    def trim(self, queries: tuple[int, int], keys: tuple[int, int]) -> SparseWeights:
        """Only the queries and keys inside these two ranges (start, stop), counted from their starts.

        The keys left out count as those that a query may not see, as far as there are any: they are padding.
        """
        heads, rows, width = self.shape
        if queries == (0, rows) and keys == (0, width):
            return self
        head, query, key, value = self.entries(*queries)
        inside = (key >= keys[0]) & (key < keys[1])
        size = queries[1] - queries[0]
        at = (head * size + query - queries[0])[inside]
        width = keys[1] - keys[0]
        return SparseWeights(
            (heads, size, width),
            at.bincount(minlength=heads * size).view(heads, size).int(),
            (key[inside] - keys[0]).to(_key_dtype(width)),
            value[inside],
            None if self.visible is None else self.visible[:, slice(*queries)].clamp_max(width),
        )

    def moved(self, keys: int) -> SparseWeights:
        """With that many empty keys put before the first."""
        heads, queries, width = self.shape
        wider = width + keys
        moved = (self.keys.int() + keys).to(_key_dtype(wider))
        return SparseWeights((heads, queries, wider), self.counts, moved, self.values, self.visible)

    def _ends(self) -> Tensor:
        """(heads · queries + 1,): where each row begins in ``keys``, and the end."""
        ends = torch.zeros(self.counts.numel() + 1, dtype=torch.int64)
        torch.cumsum(self.counts.flatten(), 0, out=ends[1:])
        return ends

    def _between(self, ends: Tensor, head: int, start: int = 0, stop: int | None = None) -> tuple[Tensor, Tensor]:
        queries = self.shape[1]
        first, last = ends[head * queries + start], ends[head * queries + (queries if stop is None else stop)]
        return self.keys[first:last], self.values[first:last]

    def __repr__(self) -> str:
        heads, queries, keys = self.shape
        plural = "" if heads == 1 else "s"
        return f"SparseWeights({heads} head{plural}, {queries} × {keys}, {self.values.numel()} non-zeros)"


class RowBlocks:
    """Collects the weights of one layer on one example from blocks of rows.

    The blocks go into two growing buffers: many small tensors kept among large ones that come and go would leave holes
    in the heap, of ten times their size.

    Args:
        heads: of the layer.
        queries: all rows that will come.
        keys: of each row.
    """

    def __init__(self, heads: int, queries: int, keys: int) -> None:
        self.shape = (heads, queries, keys)
        self.counts = torch.zeros(heads, queries, dtype=torch.int32)
        self.keys = torch.empty(0, dtype=_key_dtype(keys))
        self.values = torch.empty(0, dtype=torch.float32)
        self.ends = [(0, 0)]  # (rows, non-zeros) after each block

    def add(self, weights: Tensor) -> None:
        """The next block, (heads, rows, keys)."""
        counts, keys, values = non_zeros(weights)
        (row, filled), more = self.ends[-1], values.numel()
        rows = row + weights.shape[1]
        if filled + more > self.values.numel():
            expected = (filled + more) * self.shape[1] / max(rows, 1)
            self._grow(max(filled + more, int(1.1 * expected)), filled)
        self.counts[:, row:rows] = counts
        self.keys[filled : filled + more] = keys
        self.values[filled : filled + more] = values
        self.ends.append((rows, filled + more))

    def _grow(self, size: int, filled: int) -> None:
        keys, values = self.keys.new_empty(size), self.values.new_empty(size)
        keys[:filled], values[:filled] = self.keys[:filled], self.values[:filled]
        self.keys, self.values = keys, values

    def join(self, visible: Tensor | None = None) -> SparseWeights:
        """All of them, sorted by head."""
        heads, _, width = self.shape
        parts = []
        for (row, start), (rows, stop) in pairwise(self.ends):
            shape = (heads, rows - row, width)
            parts.append(SparseWeights(shape, self.counts[:, row:rows], self.keys[start:stop], self.values[start:stop]))
        parts = parts or [SparseWeights(self.shape, self.counts, self.keys, self.values)]
        return replace(SparseWeights.join(parts, copy=True), visible=visible)


def non_zeros(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of weights (heads, rows, keys): how many in each row, int32; the key of each, int64; their values, float32."""
    heads, rows, keys = weights.shape
    flat_weights = weights.detach().reshape(-1)
    flat = (flat_weights != 0).nonzero().squeeze(1)  # NaN is one too, so that it shows
    values, flat = flat_weights[flat].cpu(), flat.cpu()
    if values.dtype == torch.float64:
        values = values.clamp_min(torch.finfo(torch.float32).smallest_normal)
    ends = torch.searchsorted(flat, torch.arange(heads * rows + 1) * keys)
    return ends.diff().int().view(heads, rows), flat.remainder_(max(keys, 1)), values.float()


def check_index(index: int, count: int, name: str, where: str) -> int:
    """A number from 0 up; it may be given from the end, below 0."""
    if not -count <= index < count:
        there = f"between 0 and {count - 1}" if count else f"of something, but there is no {name}"
        raise IndexError(f"{where}: {name} must be {there}, got {index}")
    return index % count


def _below(parts: Sequence[Tensor | None]) -> Tensor | None:
    """(heads or 1, rows) of all parts, one below the other."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    heads = max(part.shape[0] for part in known)
    return torch.cat([part.expand(heads, -1) for part in known], 1)


def _key_dtype(keys: int) -> torch.dtype:
    return torch.int16 if keys < 2**15 else torch.int32
