"""The row kernels for :mod:`.ahead`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import launch
from .ahead import POINTERS, Job
from .device import entmax, gradient, normmax, order, scaled, steps

LENGTHS = (64, 1000, 8000, 32000, 200_000)
KINDS = {"1.5": steps.ENTMAX15, "2": steps.SPARSEMAX, "α": steps.ANY, "1": steps.SOFTMAX, "∞": steps.ARGMAX}
# The common ones: attention-sized rows, the last layer's, and long ones, for the α of most models.
COMMON = {("float32", 64, "1.5"), ("float32", 64, "α"), ("float32", 32000, "1.5"), ("float32", 32000, "2")}
COMMON |= {("bfloat16", 32000, "α"), ("float32", 8000, "α"), ("bfloat16", 200_000, "1.5")}


def shape_of(n: int, effort: str) -> tuple[dict[str, Any], int]:
    table = launch.rows(n, effort, lanes=32)
    return {"R": table.R, "B": table.B, "ONE": table.one}, table.warps


def jobs() -> Iterator[Job]:
    for type_, x in POINTERS.items():
        for n in LENGTHS:
            for kind, number in KINDS.items():
                yield from _entmax(type_, x, n, kind, number.value)
        for n in (64, 1000, 8000, launch.longest(launch.ORDERED), 200_000):
            yield from _ordered(type_, x, n)


def _entmax(type_: str, x: str, n: int, kind: str, number: int) -> Iterator[Job]:
    shape, warps = shape_of(n, launch.HEAVY if kind == "α" else launch.LIGHT)
    common = (type_, n, kind) in COMMON
    read = {"Alpha": "*fp64"} if kind == "α" else {"Alpha": x}
    for write, more in enumerate(({}, {"State": "*fp64"}, {"Index": "*i64", "Count": "*i64"})):
        if write == 1 and kind != "α":
            continue
        case = f"{type_}, n = {n}, α = {kind}" + ("", ", learned", ", support")[write]
        pointers = {"X": x, "P": x, **read, **more}
        constants = {"KIND": number, "WRITE": write, **shape}
        yield Job(entmax.forward, case, pointers, constants, warps, common=common and write == 0)
    for by, scores in ((False, False), (True, False), (True, True)):
        if by and kind != "α":
            continue
        case = f"{type_}, n = {n}, α = {kind}" + (", dα" if by else "") + (", learned" if scores else "")
        pointers = {"X": x, "G": x, "Dx": x, **read}
        pointers |= ({"Dalpha": "*fp64"} if by else {}) | ({"State": "*fp64"} if scores else {})
        held, few = (shape, warps) if by else shape_of(n, launch.BACKWARD)
        constants = {"KIND": number, "BY_ALPHA": by, "SCORES": scores, **held}
        yield Job(gradient.backward, case, pointers, constants, few, common=common and scores == (kind == "α"))


def _ordered(type_: str, x: str, n: int) -> Iterator[Job]:
    shape, warps = shape_of(n, launch.ORDERED)
    case, common = f"{type_}, n = {n}", (type_, n) == ("bfloat16", 8000)
    by_tiles = (type_, n) == ("float32", 200_000)  # the place in a row by histograms
    yield Job(order.topk, case, {"X": x, "P": x, "Certain": "*i8"}, shape, warps, common=common or by_tiles)
    yield Job(order.budget, case, {"X": x, "P": x, "Budget": "*fp64"}, shape, warps, common=common)
    yield Job(order.rsoftmax, case, {"X": x, "P": x, "Rate": "*fp64"}, shape, warps, common=common)
    need = {"NEED": True, **shape}
    pointers = {"P": x, "G": x, "Dx": x, "Dbudget": "*fp64"}
    yield Job(order.budget_backward, case, pointers, need, warps, common=common)
    pointers = {"X": x, "G": x, "Rate": "*fp64", "Dx": x, "Drate": "*fp64"}
    yield Job(order.rsoftmax_backward, case, pointers, need, warps, common=common)
    one = {"X": x, "P": x}
    yield Job(scaled.tsoftmax, case, {**one, "T": "*fp64"}, shape, warps, common=common)
    yield Job(scaled.sigsoftmax, case, one, shape, warps, common=common)
    yield Job(scaled.sparsegen, case, {**one, "Lam": "*fp64"}, shape, warps, common=common)
    yield Job(scaled.hourglass, case, {**one, "Q": "*fp64"}, shape, warps, common=common)
    back = {"G": x, "Dx": x}
    pointers = {**back, "X": x, "T": "*fp64", "Dt": "*fp64"}
    yield Job(scaled.tsoftmax_backward, case, pointers, need, warps, common=common)
    yield Job(scaled.sigsoftmax_backward, case, {**back, "X": x}, shape, warps, common=common)
    pointers = {**back, "P": x, "Lam": "*fp64", "Dlam": "*fp64"}
    yield Job(scaled.sparsegen_backward, case, pointers, need, warps, common=common)
    pointers = {**back, **one, "Q": "*fp64", "Dq": "*fp64"}
    yield Job(scaled.hourglass_backward, case, pointers, need, warps, common=common)
    shape, warps = shape_of(n, launch.HEAVIEST)
    yield Job(normmax.forward, case, {**one, "Alpha": "*fp64"}, shape, warps, common=common)
    pointers = {**back, "P": x, "Alpha": "*fp64", "Dalpha": "*fp64"}
    for by in (False, True):
        words = f"{case}, dα" if by else case
        own = {name: type_ for name, type_ in pointers.items() if by or name != "Dalpha"}
        yield Job(normmax.backward, words, own, {"NEED": by, **shape}, warps, common=common and by)
