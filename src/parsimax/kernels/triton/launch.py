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
# Scores that each of so many threads can hold, by what is done with them, and columns at once of a row that is not
# held. Heavy are powers of any α and gradients that need the scores themselves, heaviest powers with their slopes by α,
# or in float64: what a thread needs for a power spills unless half as many threads hold twice the scores each, with
# twice the registers.
SCORES = {LIGHT: 16, HEAVY: 8, ORDERED: 16, HEAVIEST: 4, BACKWARD: 32}
POWERS = (HEAVY, HEAVIEST)
TILE = {LIGHT: 4096, HEAVY: 2048, ORDERED: 4096, HEAVIEST: 2048, BACKWARD: 4096}
# Programs that may hold a row together, each a part of it: GPUs of NVIDIA from sm_90 on let them reduce over the shared
# memory of all. That cannot be run here, so it is on only where ``parsimax tune`` found it right, and faster.
CLUSTER = dict.fromkeys(SCORES, 1)
MOST = 8  # that every such GPU takes
TOGETHER, PART = 512, 8192  # threads of each of them, and scores: half as many threads have twice the registers
MEASURED = table.read()
SCORES |= MEASURED.get("scores", {})
TILE |= MEASURED.get("tile", {})
CLUSTER |= MEASURED.get("cluster", {})


class Rows(NamedTuple):
    """R rows of up to B scores a program; ``one``: they are held on chip, else R is 1 and the row goes by tiles.

    A row that one program cannot hold may be held by a ``cluster`` of them.
    """

    R: int
    B: int
    one: bool
    warps: int
    cluster: int = 1


def power(n: int) -> int:
    """The least power of 2 that is at least ``n``, and 16."""
    return max(16, 1 << (n - 1).bit_length())


def part(kind: str) -> int:
    """Scores that each of several programs holds at most."""
    return min(PART, SCORES[kind] * THREADS)


def longest(kind: str, cluster: int | None = None) -> int:
    """The longest row that is held, by up to so many programs."""
    return max(SCORES[kind] * THREADS, part(kind) * (cluster or CLUSTER[kind]))


def rows(n: int, kind: str, lanes: int = LANES, cluster: int | None = None) -> Rows:
    """For rows of ``n`` scores, by warps of so many ``lanes`` and up to ``cluster`` programs, if not as the table says.

    Kernels that number what they find take 1: Triton has no scan over several programs.
    """
    B = power(n)
    if longest(kind, cluster) < B:
        return Rows(1, TILE[kind], False, 256 // lanes)
    if SCORES[kind] * THREADS < B:
        return Rows(1, B, True, TOGETHER // lanes, B // part(kind))
    if interpreter.ON:
        return Rows(max(1, min(32, 8192 // B)), B, True, 1)
    R = max(1, 512 // B)
    each = min(SCORES[kind], 8)
    if each * THREADS < R * B:
        each = SCORES[kind]
    most = THREADS // 2 if kind in POWERS else THREADS
    return Rows(R, B, True, max(1, min(most // lanes, R * B // (each * lanes))))


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
