"""Code compiled for one instruction set must not leak into what another machine runs."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from mutations import exits

SOURCES = Path(__file__).parents[2] / "src/parsimax/kernels/cpu"
FLAGS = {"level_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"]}
FLAGS["level_avx512.cpp"] = [*FLAGS["level_avx2.cpp"], "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
FLAGS |= {name.replace("level", "heads"): flags for name, flags in FLAGS.items()}
TOOLS = all(shutil.which(tool) for tool in ("g++", "nm"))


@pytest.mark.skipif(not TOOLS or platform.machine() != "x86_64", reason="needs g++ and nm on x86-64")
@pytest.mark.parametrize("source", FLAGS)
def test_a_level_has_no_function_that_the_linker_could_share(source, tmp_path):
    """Without optimisation nothing is inlined away: every function that is used has its symbol."""
    command = [
        "g++",
        "-std=c++20",
        "-O0",
        "-Wno-psabi",
        *FLAGS[source],
        "-c",
        str(SOURCES / source),
        "-o",
        tmp_path / "o",
    ]
    subprocess.run(command, check=True)
    listed = subprocess.run(["nm", "--defined-only", "-C", tmp_path / "o"], capture_output=True, text=True, check=True)
    symbols = [line for line in listed.stdout.splitlines() if "DW.ref." not in line]  # a pointer, to what throws
    shared = [line for line in symbols if line.split()[1] in "TWVui"]
    assert Path(source).stem in listed.stdout and not shared, "\n".join(shared)


def test_every_exit_that_can_be_made_wrong_is_one_of_a_kernel():
    """``make test-mutations`` goes through this list."""
    names = exits()
    assert len(names) == len({*names}) >= 10
    code = "".join(file.read_text() for file in SOURCES.glob("*.inl") if file.name != "proof.inl")
    assert [name for name in names if f"parsimax::{name}" not in code] == []
