"""The attention kernels for :mod:`.ahead`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from . import launch
from .ahead import POINTERS, Job
from .device import attention, steps

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KINDS = {"1.5": steps.ENTMAX15, "2": steps.SPARSEMAX, "α": steps.ANY}
MASKS = {"": 0, ", boolean mask": 1, ", added mask": 2}
COMMON = {("bfloat16", 64, "1.5", 0), ("bfloat16", 128, "α", 0)}
GROUP = 4  # heads that share keys, where some do


def jobs() -> Iterator[Job]:
    for type_, x in POINTERS.items():
        for dim in (32, 64, 128, 256):
            for kind in KINDS:
                for words, mask in MASKS.items():
                    for causal in (True, False):
                        drops = mask == 1 and not causal
                        yield from _case(Case(type_, x, dim, kind, words, mask, causal, drops))
                plain = Case(type_, x, dim, kind)
                yield from _case(plain._replace(drops=True))
                yield from _case(plain._replace(group=GROUP))
                yield from _case(plain._replace(used=dim * 5 // 8))  # 80 of 128, as some models have it
                for causal in (True, False):
                    yield from _case(plain._replace(causal=causal, trains=False))


class Case(NamedTuple):
    type_: str
    x: str
    dim: int  # a power of 2
    kind: str
    words: str = ""  # of the mask
    mask: int = 0
    causal: bool = True
    drops: bool = False
    group: int = 1
    used: int = 0  # of dim, if not all
    trains: bool = True

    def __str__(self) -> str:
        said = f"{self.type_}, d = {self.used or self.dim}, α = {self.kind}{self.words}"
        said += (", causal" if self.causal else "") + (", dropout" if self.drops else "")
        return said + (f", groups of {self.group}" if self.group > 1 else "") + ("" if self.trains else ", inference")


def _case(case: Case) -> Iterator[Job]:
    type_, x, by = case.type_, case.x, case.kind == "α"
    table = launch.attention(case.dim, BYTES[type_], by, case.drops or case.group > 1, lanes=32)
    used = case.used or case.dim
    constants: dict[str, Any] = {"GROUP": case.group, "CAUSAL": case.causal, "MASK": case.mask, "BM": table.BM}
    constants |= {"KIND": KINDS[case.kind].value, "BN": table.BN, "D": case.dim, "DIM": used, "DV": case.dim}
    constants |= {"DIMV": used, "PRECISION": launch.precision(case.dim, hip=False) if type_ == "float32" else "ieee"}
    pointers = {"Q": x, "K": x, "V": x, "Mask": "*i8" if case.mask == 1 else x, "Alpha": "*fp32" if by else x}
    pointers |= {"State": "*fp64", "Live": "*i8"} | ({"Drop": "*i64"} if case.drops else {})
    usual = case == Case(type_, x, case.dim, case.kind)
    common = (usual and (type_, case.dim, case.kind, case.mask) in COMMON) or case in ALSO_COMMON

    def job(kernel: Any, more: dict[str, str], **options: Any) -> Job:
        return Job(
            kernel,
            str(case),
            {**pointers, **more},
            {**constants, **options},
            table.warps,
            table.stages,
            numbers=("scale", "rescale"),
            lanes=32 if type_ == "float32" and case.dim > 64 else None,  # as launch.attention has it
            common=common,
        )

    yield job(attention.forward, {"Out": x}, KEEP=case.trains)
    if not case.trains:
        return
    more = {"G": x, "Dq": x, "Facts": "*fp32", "Dalpha": "*fp64"} | ({"Dmask": "*fp32"} if case.mask == 2 else {})
    yield job(attention.queries, more, BY_ALPHA=by, BY_MASK=case.mask == 2)
    yield job(attention.keys, {"G": x, "Facts": "*fp32", "Dk": x, "Dv": x})


_HALF = Case("bfloat16", "*bf16", 128, "1.5")  # as large language models have it
ALSO_COMMON = {_HALF._replace(group=GROUP), _HALF._replace(used=80), _HALF._replace(trains=False)}
ALSO_COMMON |= {Case("float32", "*fp32", 256, "1.5")}  # its products are two sums
