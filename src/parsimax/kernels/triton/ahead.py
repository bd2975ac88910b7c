"""Compile kernels ahead of time for architectures that are not here, and read off what they use.

``python -m parsimax.kernels.triton.ahead [--arch sm_90 …]`` prints a table of registers, spills and shared memory, and
ends with 1 if a kernel spills more than it may or wants more shared memory than there is, which the table has in bold.
It compiles the most used cases; with ``--sweep`` every option of every kernel in every type; with ``--all`` every
combination of options too, which takes hours. It needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

TARGETS: dict[str, tuple[str, Any, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
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
    lanes: int | None = 32  # of a warp, if the launch reckons with threads: then warps of 64 are half as many
    common: bool = field(default=False, compare=False)  # among the most used

    @property
    def quick(self) -> bool:
        """To compile."""
        from .device import steps

        some = self.name in QUICK and (self.constants["ONE"] or self.name.endswith("backward"))
        return some and self.constants.get("KIND") != steps.ANY.value

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
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True  # nobody reads it, and it takes time
        made = triton.compile(source, target=GPUTarget(*TARGETS[arch]), options=options)
    shared = made.metadata.shared
    if TARGETS[arch][0] == "hip":
        text = made.asm["amdgcn"]
        found = {k: int(v) for k, v in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text)}
        return Usage(found["vgpr_count"], 4 * found["vgpr_spill_count"], shared)
    return Usage(*_assembled(made.asm["ptx"], made.asm["cubin"], TARGETS[arch][1]), shared)


def _assembled(ptx: str, cubin: bytes, version: int) -> tuple[int, int]:
    """Registers and spilled bytes. The frame that cuobjdump shows counts calls too; what is spilled, ptxas says."""
    import triton.backends.nvidia as nvidia

    tools = Path(next(iter(nvidia.__path__))) / "bin"
    with tempfile.TemporaryDirectory() as folder:
        binary, text = Path(folder, "kernel.cubin"), Path(folder, "kernel.ptx")
        binary.write_bytes(cubin)
        text.write_text(ptx)
        said = subprocess.run([tools / "cuobjdump", "-res-usage", binary], capture_output=True, text=True).stdout
        usage = re.search(r"REG:(\d+) STACK:(\d+)", said)
        target = re.search(r"\.target (sm_\w+)", ptx)
        assert usage is not None and target is not None, said
        if usage.group(2) == "0":
            return int(usage.group(1)), 0
        for tool in ("ptxas-blackwell", "ptxas") if version >= 90 else ("ptxas", "ptxas-blackwell"):
            command: list[str | Path] = [tools / tool, "-v", f"-arch={target.group(1)}", text, "-o", os.devnull]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode == 0:
                spilled = [int(x) for x in re.findall(r"(\d+) bytes spill stores", ran.stderr)]
                return int(usage.group(1)), max(spilled, default=0)
    return int(usage.group(1)), int(usage.group(2))


def jobs() -> list[Job]:
    """Every kernel with every type and option that changes its code: rows by tiles are the same at every length."""
    from . import ahead_attention, ahead_losses, ahead_rows

    found: dict[str, Job] = {}
    for job in (*ahead_rows.jobs(), *ahead_losses.jobs(), *ahead_attention.jobs()):
        code = repr((job.name, job.pointers, job.constants, job.warps, job.stages))
        first = found.setdefault(code, job)
        found[code] = replace(first, common=first.common or job.common)
    return list(found.values())


def options(job: Job) -> set[tuple[str, Any]]:
    """What its code is made with, each by itself; the type of its scores is among the pointers."""
    return {*job.constants.items(), *job.pointers.items(), ("warps", job.warps)}


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
    return [*(common if arch == "sm_90" else common[number::9]), *quick[number % 3 :: 3]]


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
        found = [[pool.submit(usage_of, i, arch) for arch in chosen.arch] for i, _ in some]
        for (_, job), usages in zip(some, found, strict=True):
            cells = [cell(usage.result(), arch) for usage, arch in zip(usages, chosen.arch, strict=True)]
            failed += any(words.startswith("**") for words in cells)
            print(f"| {' | '.join((job.name, job.case, str(job.warps), *cells))} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
