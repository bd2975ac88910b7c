"""``python tools/check_wheel.py WHEEL [--tests]``: is this wheel fit to be given away?

Its binary may need libtorch and what every Linux or macOS has, and nothing else: a second OpenMP runtime in one process
deadlocks or doubles the threads, and the kernels use torch's own pool. No Python symbol either, as one wheel serves
every Python. ``--tests`` also installs it beside this environment's torch and runs the tests of the kernels on it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = "parsimax/kernels/_cpu.so"
LINUX = r"libtorch_cpu\.so|lib(c|m)\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|libpthread\.so\.0|ld-linux[-\w]*\.so\.\d"
MACOS = r"@rpath/libtorch_cpu\.dylib|/usr/lib/libc\+\+\.1\.dylib|/usr/lib/libSystem\.B\.dylib"
SOURCES = (".cpp", ".h", ".inl")


def needed(library: Path) -> list[str]:
    """The libraries that a binary asks the loader for, from its dynamic section."""
    if sys.platform == "darwin":
        text = subprocess.run(["otool", "-L", library], capture_output=True, text=True, check=True).stdout
        return re.findall(r"^\t(\S+) \(", text, re.M)
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", text)


def python_symbols(library: Path) -> list[str]:
    text = subprocess.run(["nm", "-D" if sys.platform != "darwin" else "-g", library], capture_output=True, text=True)
    return re.findall(r"\bU (_?Py\w+)", text.stdout)


def complaints(wheel: Path, folder: Path) -> list[str]:
    """What is wrong with a wheel, unpacked into ``folder``; a pure wheel is one that says so in its name."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        names = archive.namelist()
    found = [f"{name} is a source of the kernels" for name in names if name.endswith(SOURCES)]
    tag = "-".join(wheel.stem.split("-")[-3:])
    if tag == "py3-none-any":
        return found + [f"{name} in a pure wheel" for name in names if name.endswith((".so", ".dylib"))]
    if not tag.startswith("py3-none-"):
        found.append(f"its tag is {tag} and not py3-none-…, so it serves one Python only")
    if BINARY not in names:
        return [*found, f"{BINARY} is not in it"]
    usual = MACOS if sys.platform == "darwin" else LINUX
    found += [f"the kernels need {name}" for name in needed(folder / BINARY) if not re.fullmatch(usual, name)]
    return found + [f"the kernels need Python's {name}" for name in python_symbols(folder / BINARY)]


def audited(library: Path) -> bool:
    """What torch-abi-audit says of the binary: only the stable ABI, and of no newer torch than the kernels need."""
    tool = Path(sys.executable).with_name("torch-abi-audit")
    if not tool.exists():
        print("torch-abi-audit is not installed, so the symbols were not audited")
        return True
    run = subprocess.run([tool, library, "--check", "torch"], capture_output=True, text=True)
    print(run.stdout, run.stderr, sep="", end="")
    newest = max(
        (tuple(map(int, v)) for v in re.findall(r"(?i)min[- ]torch[:=]\s*(\d+)\.(\d+)", run.stdout)), default=None
    )
    if newest is not None and newest > (2, 10):
        print(f"the binary needs torch {newest[0]}.{newest[1]}")
    return run.returncode == 0 and newest == (2, 10)


LOADED = "import parsimax.kernels.library as l; print(l.PATH, l.PROBLEM or l.level()); assert l.AVAILABLE"
TESTS = ["tests/kernels/test_kernels.py", "tests/mappings/test_contract.py", "-k", "cpu or kernel"]


def tested(folder: Path) -> bool:
    """The tests of the kernels on the unpacked wheel, with no source of the package in reach."""
    shutil.copytree(ROOT / "tests", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    alone = {"PYTHONPATH": str(folder), "PATH": os.defpath, "PARSIMAX_KERNEL_CASES": "50", "OMP_NUM_THREADS": "1"}
    commands = ["-c", LOADED], ["-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    return all(subprocess.run([sys.executable, *c], cwd=folder, env=alone).returncode == 0 for c in commands)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--tests", action="store_true", help="run the tests of the kernels on the wheel")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = complaints(options.wheel, Path(folder))
        print(*found, sep="\n") if found else print(f"{options.wheel.name}: nothing to complain about")
        fit = not found and (not (Path(folder) / BINARY).exists() or audited(Path(folder) / BINARY))
        return 0 if fit and (not options.tests or tested(Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
