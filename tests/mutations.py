"""Every exit of the kernels' searches, made to accept one step too soon, must fail a test: ``make test-mutations``.

The exits are those of ``kernels/cpu/proof.inl``; the build that this runs on reads from the environment which is wrong.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import parsimax

HERE = Path(__file__).parent
TESTS = ["kernels/test_sweep.py", "kernels/test_kernels.py"]


def exits() -> list[str]:
    source = (Path(parsimax.__file__).parent / "kernels/cpu/proof.inl").read_text()
    names = re.search(r"enum Exit \{(.*?)\}", source, re.DOTALL)
    assert names, "proof.inl no longer lists its exits as `enum Exit`"
    return [name.split("=")[0].strip() for name in names[1].split(",")]


def fails(number: int, level: str = "avx512") -> bool:
    """Whether some test fails with that exit wrong, on that instruction set at most; 0 is none."""
    env = {**os.environ, "PARSIMAX_MUTATION": str(number), "PARSIMAX_CPU": level}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        *(str(HERE / t) for t in TESTS),
    ]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    if run.returncode == 0:
        return False
    if " failed" not in run.stdout:  # it could not run at all
        sys.exit(run.stdout + run.stderr)
    return True


def main() -> int:
    if fails(0):
        sys.exit("the tests fail without a mutation: mend them first")
    survivors = []
    for number, name in enumerate(exits(), 1):
        caught = fails(number, "avx2" if name.endswith("_COLUMN") else "avx512")  # AVX-512 does without columns
        print(f"{name:16} {'caught' if caught else 'SURVIVED'}", flush=True)
        survivors += [] if caught else [name]
    return len(survivors)


if __name__ == "__main__":
    sys.exit(main())
