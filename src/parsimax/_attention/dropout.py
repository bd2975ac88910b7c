"""Dropout of attention weights as a function of a seed, so that a backward pass can repeat it without storing it.

The kernel computes the same function (``kernels/cpu/dropout.inl``): which keys of a row are kept depends on the seed,
the number of the row and the key alone. The seed is drawn from torch's generator; the stream is not that of
``F.dropout``.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64
_WORD = 0xFFFFFFFF


def draw_seed() -> Tensor:
    """One int64, by which ``manual_seed``, ``fork_rng`` and activation checkpointing repeat the mask."""
    return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device="cpu")


def factors(seed: Tensor, shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """What weights (…, queries, keys) of this shape are multiplied by: 0, or 1 / (1 - p)."""
    *lead, keys = shape
    rows = torch.arange(1, int(torch.Size(lead).numel()) + 1, device=like.device).view(*lead, 1)
    key = _splitmix(seed.to(like.device) + rows * _signed(_GOLDEN))
    first, second = key & _WORD, _right(key, 32)
    bits = _mixed(_mixed(torch.arange(keys, device=like.device) ^ first) ^ second)
    least = min(int(p * 2**32), _WORD)
    return (bits >= least).to(like.dtype) * (1 / (1 - p) if p < 1 else 0.0)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


def _right(x: Tensor, bits: int) -> Tensor:
    """A shift that fills with zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _splitmix(x: Tensor) -> Tensor:
    x = (x ^ _right(x, 30)) * _signed(_FIRST)
    x = (x ^ _right(x, 27)) * _signed(_SECOND)
    return x ^ _right(x, 31)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ (x >> 16)) * 0x7FEB352D & _WORD
    x = (x ^ (x >> 15)) * 0x846CA68B & _WORD
    return x ^ (x >> 16)
