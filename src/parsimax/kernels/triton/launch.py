"""Launch tables: how many rows and columns a program takes, with how many warps.

Apart from the kernels, as the interpreter and the compiler ahead of time need them as numbers. The numbers come from
``python -m parsimax.kernels.triton.ahead``: the most scores a thread that spill nothing worth mentioning. What
``parsimax tune`` has measured on the GPU in use (:mod:`.table`) takes their place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import interpreter, table

THREADS = 1024  # at most, of a program
LANES = 64 if torch.version.hip else 32  # of a warp
LIGHT, HEAVY, ORDERED, HEAVIEST, BACKWARD = "light", "heavy", "ordered", "heaviest", "backward"
# Scores that a thread can hold, by what is done with them, and columns at once of a row that is not held. Heavy are
# powers of any α, heaviest those and their slopes by α, and powers in float64.
SCORES = {LIGHT: 16, HEAVY: 8, ORDERED: 16, HEAVIEST: 4, BACKWARD: 32}
TILE = {LIGHT: 4096, HEAVY: 2048, ORDERED: 4096, HEAVIEST: 2048, BACKWARD: 4096}
MEASURED = table.read()
SCORES |= MEASURED.get("scores", {})
TILE |= MEASURED.get("tile", {})


class Rows(NamedTuple):
    """R rows of up to B scores a program; ``one``: they are held on chip, else R is 1 and the row goes by tiles."""

    R: int
    B: int
    one: bool
    warps: int


def power(n: int) -> int:
    """The least power of 2 that is at least ``n``, and 16."""
    return max(16, 1 << (n - 1).bit_length())


def longest(kind: str) -> int:
    """The longest row that is held."""
    return SCORES[kind] * THREADS


def rows(n: int, kind: str, lanes: int = LANES) -> Rows:
    """For rows of ``n`` scores, by warps of so many ``lanes``."""
    B = power(n)
    if longest(kind) < B:
        return Rows(1, TILE[kind], False, 256 // lanes)
    if interpreter.ON:
        return Rows(max(1, min(32, 8192 // B)), B, True, 1)
    R = max(1, 512 // B)
    each = min(SCORES[kind], 8)
    if each * THREADS < R * B:
        each = SCORES[kind]
    return Rows(R, B, True, max(1, min(THREADS // lanes, R * B // (each * lanes))))


def precision(dim: int, hip: bool = bool(torch.version.hip)) -> str:
    """Of float32 products for heads of up to ``dim`` numbers: three of shorter ones where tensor cores take them and
    there are registers enough for that, else as they are."""
    return "ieee" if hip or dim > 64 else "tf32x3"


class Attention(NamedTuple):
    """Tiles of BM queries by BN keys."""

    BM: int
    BN: int
    warps: int
    stages: int


def attention(dim: int, size: int, heavy: bool, more: bool = False, lanes: int = LANES) -> Attention:
    """For heads of up to ``dim`` numbers of ``size`` bytes; ``heavy``: powers of any α; ``more``: dropout or groups.

    These take registers of their own, which large heads of any α have not got. Large heads of float32 take 256 threads
    on every GPU: of AMD's more would have too few registers each.
    """
    measured = MEASURED.get("attention", {}).get(f"{power(dim)}, {size}, {heavy}")
    if measured:
        return Attention(*measured)
    if interpreter.ON:
        return Attention(32, 32, 1, 1)
    if size == 4:  # three products for one, and twice the registers for what is multiplied
        return Attention(16, 16, 4 if dim <= 64 else 256 // lanes, 1)
    many = dim > 128 or (more and heavy and dim > 64)
    return Attention(16, 16, 8, 1) if many else Attention(32, 32, 4, 1)
