"""The row kernels for :mod:`.ahead`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import launch
from .ahead import POINTERS, Job
from .device import entmax, gradient, normmax, order, scaled, steps

LENGTHS = (64, 1000, 8000, 32000, 200_000)
LONG = 65536  # held by several programs, where there are clusters
KINDS = {"1.5": steps.ENTMAX15, "2": steps.SPARSEMAX, "α": steps.ANY, "1": steps.SOFTMAX, "∞": steps.ARGMAX}
# The common ones: attention-sized rows, the last layer's, and long ones, for the α of most models.
COMMON = {("float32", 64, "1.5"), ("float32", 64, "α"), ("float32", 32000, "1.5"), ("float32", 32000, "2")}
COMMON |= {("bfloat16", 32000, "α"), ("float32", 8000, "α"), ("bfloat16", 200_000, "1.5")}
COMMON |= {("float32", LONG, "1.5")}


def shape_of(n: int, effort: str, scans: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants of the kernel, and how it is launched."""
    table = launch.rows(n, effort, lanes=32, cluster=launch.MOST if n == LONG and not scans else 1)
    return {"R": table.R, "B": table.B, "ONE": table.one}, {"warps": table.warps, "cluster": table.cluster}


def jobs() -> Iterator[Job]:
    for type_, x in POINTERS.items():
        for n in (*LENGTHS, LONG):
            for kind, number in KINDS.items():
                yield from _entmax(type_, x, n, kind, number.value)
        for n in (64, 1000, 8000, launch.longest(launch.ORDERED), 200_000, LONG):
            yield from _ordered(type_, x, n)


def _entmax(type_: str, x: str, n: int, kind: str, number: int) -> Iterator[Job]:
    effort = launch.HEAVY if kind == "α" else launch.LIGHT
    common = (type_, n, kind) in COMMON
    read = {"Alpha": "*fp64"} if kind == "α" else {"Alpha": x}
    for write, more in enumerate(({}, {"State": "*fp64"}, {"Index": "*i64", "Count": "*i64"})):
        if write == 1 and kind != "α":
            continue
        case = f"{type_}, n = {n}, α = {kind}" + ("", ", learned", ", support")[write]
        pointers = {"X": x, "P": x, **read, **more}
        shape, held = shape_of(n, effort, scans=write == 2)
        constants = {"KIND": number, "WRITE": write, **shape}
        yield Job(entmax.forward, case, pointers, constants, **held, common=common and write == 0)
    for by, scores in ((False, False), (True, False), (True, True)):
        if by and kind != "α":
            continue
        case = f"{type_}, n = {n}, α = {kind}" + (", dα" if by else "") + (", learned" if scores else "")
        pointers = {"X": x, "G": x, "Dx": x, **read}
        pointers |= ({"Dalpha": "*fp64"} if by else {}) | ({"State": "*fp64"} if scores else {})
        shape, held = shape_of(n, effort if by else launch.BACKWARD)
        constants = {"KIND": number, "BY_ALPHA": by, "SCORES": scores, **shape}
        yield Job(gradient.backward, case, pointers, constants, **held, common=common and scores == (kind == "α"))


def _ordered(type_: str, x: str, n: int) -> Iterator[Job]:
    shape, held = shape_of(n, launch.ORDERED)
    case, common = f"{type_}, n = {n}", (type_, n) == ("bfloat16", 8000)
    by_tiles = (type_, n) == ("float32", 200_000)  # the place in a row by histograms
    pointers, (scanned, alone) = {"X": x, "P": x, "Certain": "*i8"}, shape_of(n, launch.ORDERED, scans=True)
    yield Job(order.topk, case, pointers, scanned, **alone, common=common or by_tiles)
    yield Job(order.budget, case, {"X": x, "P": x, "Budget": "*fp64"}, shape, **held, common=common)
    yield Job(order.rsoftmax, case, {"X": x, "P": x, "Rate": "*fp64"}, shape, **held, common=common)
    need = {"NEED": True, **shape}
    heavy, held_heavy = shape_of(n, launch.HEAVY)
    pointers = {"P": x, "G": x, "Dx": x, "Dbudget": "*fp64"}
    yield Job(order.budget_backward, case, pointers, need, **held, common=common)
    pointers = {"X": x, "G": x, "Rate": "*fp64", "Dx": x, "Drate": "*fp64"}
    yield Job(order.rsoftmax_backward, case, pointers, {"NEED": True, **heavy}, **held_heavy, common=common)
    one = {"X": x, "P": x}
    yield Job(scaled.tsoftmax, case, {**one, "T": "*fp64"}, shape, **held, common=common)
    yield Job(scaled.sigsoftmax, case, one, shape, **held, common=common)
    yield Job(scaled.sparsegen, case, {**one, "Lam": "*fp64"}, shape, **held, common=common)
    yield Job(scaled.hourglass, case, {**one, "Q": "*fp64"}, shape, **held, common=common)
    back = {"G": x, "Dx": x}
    pointers = {**back, "X": x, "T": "*fp64", "Dt": "*fp64"}
    yield Job(scaled.tsoftmax_backward, case, pointers, {"NEED": True, **heavy}, **held_heavy, common=common)
    yield Job(scaled.sigsoftmax_backward, case, {**back, "X": x}, shape, **held, common=common)
    pointers = {**back, "P": x, "Lam": "*fp64", "Dlam": "*fp64"}
    yield Job(scaled.sparsegen_backward, case, pointers, need, **held, common=common)
    pointers = {**back, **one, "Q": "*fp64", "Dq": "*fp64"}
    yield Job(scaled.hourglass_backward, case, pointers, need, **held, common=common)
    shape, held = shape_of(n, launch.HEAVIEST)
    yield Job(normmax.forward, case, {**one, "Alpha": "*fp64"}, shape, **held, common=common)
    pointers = {**back, "P": x, "Alpha": "*fp64", "Dalpha": "*fp64"}
    for by in (False, True):
        words = f"{case}, dα" if by else case
        own = {name: type_ for name, type_ in pointers.items() if by or name != "Dalpha"}
        yield Job(normmax.backward, words, own, {"NEED": by, **shape}, **held, common=common and by)
