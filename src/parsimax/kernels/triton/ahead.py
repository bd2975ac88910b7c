"""Compile kernels ahead of time for architectures that are not here, and read off what they use.

``python -m parsimax.kernels.triton.ahead [--arch sm_90 …]`` prints a table of registers, spills and shared memory, and
ends with 1 if a kernel spills more than it may or wants more shared memory than there is, which the table has in bold.
It compiles the most used cases; with ``--sweep`` every option of every kernel in every type; with ``--all`` every
combination of options too, which takes hours. It needs no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

TARGETS: dict[str, tuple[str, Any, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
CLUSTERED = ("sm_90", "sm_100")  # several programs can hold a row together
SHARED = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}  # KB that a program can have
ALLOWED = 256  # bytes of spills a thread: scalars that do not fit; a tile that spills costs kilobytes
SIZES = ("H", "KVH", "L", "S")  # integers with capital letters; other capitals are pointers
# Kernels that compile in half a second where the row is held, or they go backward, and α is known.
QUICK = {"entmax.forward", "gradient.backward", "loss.forward", "loss.backward", "normmax.backward"}
QUICK |= {"order.budget_backward", "scaled.tsoftmax", "scaled.sigsoftmax", "scaled.sparsegen"}
QUICK |= {"scaled.sparsegen_backward"}
POINTERS = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16"}


@dataclass(frozen=True)
class Job:
    """One kernel with one set of options. Arguments that are named nowhere are None."""

    kernel: Any
    case: str
    pointers: dict[str, str]
    constants: dict[str, Any]
    warps: int
    stages: int = 1
    fusion: bool = False
    integers: str = "i32"
    numbers: tuple[str, ...] = ()  # arguments that are float32
    cluster: int = 1  # programs that hold a row together
    lanes: int | None = 32  # of a warp, if the launch reckons with threads: then warps of 64 are half as many
    common: bool = field(default=False, compare=False)  # among the most used

    @property
    def quick(self) -> bool:
        """To compile."""
        from .device import steps

        some = self.cluster == 1 and self.name in QUICK and (self.constants["ONE"] or self.name.endswith("backward"))
        return some and self.constants.get("KIND") != steps.ANY.value

    def fits(self, arch: str) -> bool:
        return self.cluster == 1 or arch in CLUSTERED

    @property
    def name(self) -> str:
        return f"{self.kernel.fn.__module__.rpartition('.')[2]}.{self.kernel.fn.__name__}"


@dataclass(frozen=True)
class Usage:
    registers: int
    spilled: int  # bytes a thread
    shared: int  # bytes

    def wrong(self, arch: str) -> str | None:
        if self.spilled > ALLOWED:
            return f"spills {self.spilled} bytes a thread, more than {ALLOWED}"
        if self.shared > SHARED[arch] * 1024:
            return f"wants {self.shared} bytes of shared memory, more than {SHARED[arch]} KB"
        return None


def compiled(job: Job, arch: str) -> Usage:
    """Compile, and read what the assembler says."""
    made, said = _made(job, arch)
    shared = made.metadata.shared
    if TARGETS[arch][0] == "hip":
        text = made.asm["amdgcn"]
        found = {k: int(v) for k, v in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text)}
        return Usage(found["vgpr_count"], 4 * found["vgpr_spill_count"], shared)
    registers = [int(x) for x in re.findall(r"Used (\d+) registers", said)]
    assert registers, f"ptxas said nothing of registers: {said!r}"
    return Usage(max(registers), max(int(x) for x in re.findall(r"(\d+) bytes spill stores", said)), shared)


def assembly(job: Job, arch: str) -> str:
    """The PTX of a kernel for NVIDIA's GPUs."""
    text: str = _made(job, arch)[0].asm["ptx"]
    return text


def _made(job: Job, arch: str) -> tuple[Any, str]:
    """The compiled kernel, and what the assembler said."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = job.kernel.arg_names
    constants = dict(job.constants)
    if TARGETS[arch][0] == "hip" and constants.get("PRECISION") == "tf32x3":
        constants["PRECISION"] = "ieee"  # as launch.precision has it there
    signature, hints = {}, {}
    for place, name in enumerate(names):
        kind = job.pointers.get(name)
        if name in constants or (kind is None and name[0].isupper() and name not in SIZES):
            constants.setdefault(name, None)
            signature[name] = "constexpr"
            continue
        signature[name] = kind or ("fp32" if name in job.numbers else job.integers)
        if kind is not None:
            hints[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=job.kernel, signature=signature, constexprs=constants, attrs=hints)
    warps = job.warps if job.lanes is None else max(1, job.warps * job.lanes // TARGETS[arch][2])
    options = {"num_warps": warps, "num_stages": job.stages, "enable_fp_fusion": job.fusion}
    if TARGETS[arch][0] == "hip" and job.stages > 1:
        options["matrix_instr_nonkdim"] = 16
    if job.cluster > 1:
        options["num_ctas"] = job.cluster
    log = io.StringIO()
    with triton.knobs.compilation.scope(), triton.knobs.nvidia.scope(), contextlib.redirect_stdout(log):
        triton.knobs.compilation.disable_line_info = True  # nobody reads it, and it takes time
        triton.knobs.compilation.always_compile = True  # what is taken from the cache says nothing
        triton.knobs.nvidia.dump_ptxas_log = True
        made = triton.compile(source, target=GPUTarget(*TARGETS[arch]), options=options)
    return made, log.getvalue()


def jobs() -> list[Job]:
    """Every kernel with every type and option that changes its code: rows by tiles are the same at every length."""
    from . import ahead_attention, ahead_losses, ahead_rows

    found: dict[str, Job] = {}
    for job in (*ahead_rows.jobs(), *ahead_losses.jobs(), *ahead_attention.jobs()):
        code = repr((job.name, job.pointers, job.constants, job.warps, job.stages, job.cluster))
        first = found.setdefault(code, job)
        found[code] = replace(first, common=first.common or job.common)
    return list(found.values())


def options(job: Job) -> set[tuple[str, Any]]:
    """What its code is made with, each by itself; the type of its scores is among the pointers."""
    return {*job.constants.items(), *job.pointers.items(), ("warps", job.warps), ("cluster", job.cluster)}


@lru_cache
def sweep() -> list[Job]:
    """The most used jobs, and others until every option of every kernel in every type is there.

    Of those that bring as many new options the one with most pointers is taken, as that needs most registers.
    """
    kinds: dict[tuple[str, str], list[Job]] = {}
    for job in jobs():
        kinds.setdefault((job.name, job.case.partition(",")[0]), []).append(job)
    found = []
    for own in kinds.values():
        missing = set().union(*map(options, own))
        while missing:
            best = max(own, key=lambda job: (job.common, len(options(job) & missing), len(job.pointers)))
            missing -= options(best)
            own.remove(best)
            found.append(best)
        found += [job for job in own if job.common]
    return found


def selection(arch: str) -> list[Job]:
    """What ``make test`` compiles for an architecture, in about two minutes of two cores for all of them.

    One architecture compiles all that is most used, the others some of it. Beside these each has a third of what
    compiles in half a second, no powers of any α and no attention, so that one of them has each. What differs between
    architectures is the back end of Triton.
    """
    number = [*TARGETS].index(arch)
    common = [job for job in sweep() if job.common]
    quick = [job for job in sweep() if job.quick and not job.common]
    some = common if arch == "sm_90" else common[number::9]
    return [*(job for job in some if job.fits(arch)), *quick[number % 3 :: 3]]


def usage_of(number: int, arch: str) -> Usage:
    """Of a job by its number: kernels do not travel between processes."""
    return compiled(_every()[number], arch)


@lru_cache
def _every() -> list[Job]:
    return jobs()


def cell(usage: Usage, arch: str) -> str:
    """Registers, bytes spilled and KB of shared memory, where there are any."""
    words = f"{usage.registers}"
    words += f", spills {usage.spilled} B" if usage.spilled else ""
    words += f", {usage.shared / 1024:.0f} KB" if usage.shared >= 1024 else ""
    return f"**{words}**" if usage.wrong(arch) else words


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m parsimax.kernels.triton.ahead", description=__doc__)
    parser.add_argument("--arch", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--sweep", action="store_true", help="every option of every kernel in every type")
    parser.add_argument("--all", action="store_true", help="every combination of options")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--processes", type=int, default=1, help="compile so many at a time")
    chosen = parser.parse_args()
    print("| kernel | case | warps | " + " | ".join(chosen.arch) + " |\n" + "|---" * (3 + len(chosen.arch)) + "|")
    wanted = {*map(repr, sweep())} if chosen.sweep else set()
    some = [
        (i, job)
        for i, job in enumerate(_every())
        if chosen.only in job.name and (chosen.all or job.common or repr(job) in wanted)
    ]
    failed = 0
    with ProcessPoolExecutor(chosen.processes, get_context("spawn")) as pool:
        found = [{arch: pool.submit(usage_of, i, arch) for arch in chosen.arch if job.fits(arch)} for i, job in some]
        for (_, job), usages in zip(some, found, strict=True):
            cells = [cell(usages[arch].result(), arch) if arch in usages else "–" for arch in chosen.arch]
            failed += any(words.startswith("**") for words in cells)
            print(f"| {' | '.join((job.name, job.case, str(job.warps), *cells))} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
