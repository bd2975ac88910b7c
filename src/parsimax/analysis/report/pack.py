"""Sparse weights as compressed text: small, exact about zeros, quick to read in a browser."""

from __future__ import annotations

import base64
import ctypes
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ..weights import SparseWeights

# A weight is a whole number of steps, 1 to LEVELS; NaN is one above. Zeros are not stored, and nothing becomes zero.
LEVELS = 65534


@dataclass(frozen=True)
class Block:
    """The weights of one layer on one example: base64 text, and what one needs to read it."""

    text: str
    planes: tuple[int, int]  # bytes of each count and of each distance between keys
    scale: float  # what LEVELS stands for


def pack(weights: SparseWeights) -> Block:
    """Counts, distances between keys, and levels, each as planes of bytes, deflated together."""
    counts, steps = weights.counts.flatten().long(), _distances(weights)
    planes = _width(counts), _width(steps)
    finite = weights.values[weights.values.isfinite()]
    scale = max(1.0, float(finite.max()) if len(finite) else 1.0)
    levels = (weights.values.double() / scale * LEVELS).round().clamp(1, LEVELS)
    levels = levels.nan_to_num(LEVELS + 1).long()
    data = _planes(counts, planes[0]) + _planes(steps, planes[1]) + _planes(levels, 2)
    return Block(base64.b64encode(zlib.compress(data, 6)).decode("ascii"), planes, scale)


def _distances(weights: SparseWeights) -> Tensor:
    """Each key less the one before it in its row; the first of a row is itself."""
    counts, keys = weights.counts.flatten().long(), weights.keys.long()
    steps = keys.clone()
    steps[1:] -= keys[:-1]
    first = (counts.cumsum(0) - counts)[counts > 0]
    steps[first] = keys[first]
    return steps


def _width(numbers: Tensor) -> int:
    return max(1, (int(numbers.max()).bit_length() + 7) // 8) if len(numbers) else 1


def _planes(numbers: Tensor, count: int) -> bytes:
    """All lowest bytes, then all second bytes, …"""
    return b"".join(_bytes(numbers >> (8 * plane) & 255) for plane in range(count))


def _bytes(numbers: Tensor) -> bytes:
    plain = numbers.to(torch.uint8).contiguous()
    return ctypes.string_at(plain.data_ptr(), len(plain)) if len(plain) else b""  # torch alone, without NumPy
