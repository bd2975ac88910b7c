"""The attention kernels for :mod:`.ahead`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import WIDEST, launch
from .ahead import POINTERS, Job
from .device import attention, steps

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KINDS = {"1.5": steps.ENTMAX15, "2": steps.SPARSEMAX, "α": steps.ANY}
MASKS = {"": 0, ", boolean mask": 1, ", added mask": 2}
COMMON = {("bfloat16", 64, "1.5", 0), ("bfloat16", 128, "α", 0)}


def jobs() -> Iterator[Job]:
    for type_, x in POINTERS.items():
        for dim in (d for d in (32, 64, 128, 256) if d <= WIDEST[BYTES[type_]]):
            for kind, number in KINDS.items():
                for words, mask in MASKS.items():
                    for causal in (True, False):
                        yield from _case(type_, x, dim, kind, number.value, words, mask, causal)


def _case(type_: str, x: str, dim: int, kind: str, number: int, words: str, mask: int, causal: bool) -> Iterator[Job]:
    drops = mask == 1 and not causal  # neither changes what dropout needs
    table = launch.attention(dim, BYTES[type_], kind == "α", drops)
    case = f"{type_}, d = {dim}, α = {kind}{words}" + (", causal" if causal else "")
    constants: dict[str, Any] = {"GROUP": 1, "CAUSAL": causal, "MASK": mask, "KIND": number, "BM": table.BM}
    constants |= {"BN": table.BN, "D": dim, "DIM": dim, "DV": dim, "DIMV": dim}
    constants["PRECISION"] = "tf32x3" if type_ == "float32" else "ieee"
    pointers = {"Q": x, "K": x, "V": x, "Mask": "*i8" if mask == 1 else x, "Alpha": "*fp32" if kind == "α" else x}
    pointers |= {"State": "*fp64", "Live": "*i8"}
    if drops:
        pointers["Drop"], case = "*i64", case + ", dropout"
    common = causal and (type_, dim, kind, mask) in COMMON
    by = kind == "α"

    def job(kernel: Any, more: dict[str, str], **options: Any) -> Job:
        return Job(
            kernel,
            case,
            {**pointers, **more},
            {**constants, **options},
            table.warps,
            table.stages,
            numbers=("scale", "rescale"),
            lanes=None,
            common=common,
        )

    yield job(attention.forward, {"Out": x}, KEEP=True)
    more = {"G": x, "Dq": x, "Facts": "*fp32", "Dalpha": "*fp64"} | ({"Dmask": "*fp32"} if mask == 2 else {})
    yield job(attention.queries, more, BY_ALPHA=by, BY_MASK=mask == 2)
    yield job(attention.keys, {"G": x, "Facts": "*fp32", "Dk": x, "Dv": x})
