"""Compile kernels ahead of time for architectures that are not here, and read off what they use.

``python -m parsimax.kernels.triton.ahead [--arch sm_90 …] [--all]`` prints a table of registers, spills and shared
memory, and ends with 1 if a kernel spills more than it may or wants more shared memory than there is. It needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    common: bool = field(default=False, compare=False)  # among the most used third

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
        constants["PRECISION"] = "ieee"  # as launch.PRECISION has it there
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


def jobs() -> Iterator[Job]:
    """Every kernel with every type and option that changes its code."""
    from . import ahead_attention, ahead_losses, ahead_rows

    yield from ahead_rows.jobs()
    yield from ahead_losses.jobs()
    yield from ahead_attention.jobs()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m parsimax.kernels.triton.ahead", description=__doc__)
    parser.add_argument("--arch", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--all", action="store_true", help="every option, not only the most used third")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    chosen = parser.parse_args()
    print("| kernel | case | architecture | warps | registers | spilled bytes | shared KB |")
    print("|---" * 7 + "|")
    failed = 0
    for job in jobs():
        if chosen.only not in job.name or not (chosen.all or job.common):
            continue
        for arch in chosen.arch:
            usage = compiled(job, arch)
            wrong = usage.wrong(arch)
            failed += wrong is not None
            spilled = f"**{usage.spilled}**" if wrong else str(usage.spilled)
            shared = f"{usage.shared / 1024:.0f}"
            row = (job.name, job.case, arch, job.warps, usage.registers, spilled, shared)
            print(f"| {' | '.join(map(str, row))} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
