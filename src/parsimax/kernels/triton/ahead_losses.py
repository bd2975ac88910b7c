"""The loss kernels for :mod:`.ahead`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import launch
from .ahead import POINTERS, Job
from .ahead_rows import KINDS, LENGTHS, LONG, shape_of
from .device import loss

COMMON = {("float32", 32000, "1.5"), ("bfloat16", 32000, "α")}


def forward_shape(n: int, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return shape_of(n, launch.HEAVIEST if kind == "α" else launch.LIGHT)


def jobs() -> Iterator[Job]:
    for type_, x in POINTERS.items():
        for n in (*LENGTHS, LONG):
            for kind, number in KINDS.items():
                shape, held = shape_of(n, launch.HEAVY if kind == "α" else launch.LIGHT)
                yield from _soft(type_, x, n, kind, number.value)
                for smooth in (False, True):
                    for weight in ("*fp64", None) if smooth else (None,):
                        case = f"{type_}, n = {n}, α = {kind}" + (", smoothed" if smooth else "")
                        case += ", weighted" if weight else ""
                        common = (type_, n, kind) in COMMON and not smooth
                        pointers = {"X": x, "Target": "*i64", "Alpha": "*fp64" if kind == "α" else x, "State": "*fp64"}
                        pointers |= {"Weight": weight, "WeightSum": weight} if weight else {}
                        constants = {"KIND": number.value, "SMOOTH": smooth, "SOFT": False, **shape}
                        forward = {**pointers, "Loss": "*fp32"}
                        own, alone = forward_shape(n, kind)
                        by = {**constants, **own, "BY_ALPHA": kind == "α"}
                        numbers = ("smoothing",)
                        yield Job(loss.forward, case, forward, by, **alone, numbers=numbers, common=common)
                        backward = {**pointers, "G": "*fp32", "Dx": x}
                        yield Job(loss.backward, case, backward, constants, **held, numbers=numbers, common=common)


def _soft(type_: str, x: str, n: int, kind: str, number: int) -> Iterator[Job]:
    shape, held = shape_of(n, launch.HEAVY if kind == "α" else launch.LIGHT)
    case, common = f"{type_}, n = {n}, α = {kind}, target probabilities", (type_, n, kind) == ("float32", 1000, "1.5")
    pointers = {"X": x, "Alpha": "*fp64" if kind == "α" else x, "State": "*fp64", "Weight": x, "WeightSum": "*fp32"}
    constants = {"KIND": number, "SMOOTH": False, "SOFT": True, **shape}
    own, alone = forward_shape(n, kind)
    by, numbers = {**constants, **own, "BY_ALPHA": kind == "α"}, ("smoothing",)
    yield Job(loss.forward, case, {**pointers, "Loss": "*fp32"}, by, **alone, numbers=numbers, common=common)
    backward = {**pointers, "G": "*fp32", "Dx": x}
    yield Job(loss.backward, case, backward, constants, **held, numbers=numbers, common=common)
