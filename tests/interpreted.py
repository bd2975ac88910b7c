"""Tests of Triton kernels run in Triton's interpreter, in processes of their own: it has to be chosen before Triton is
imported. There the Triton kernels stand for the C++ ones, so that the public functions call them on CPU tensors."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ON = os.environ.get("TRITON_INTERPRET") == "1"


def only() -> None:
    """At the top of a module of such tests."""
    if not ON:
        pytest.skip("runs in Triton's interpreter, started by test_triton.py", allow_module_level=True)
    from parsimax.kernels import triton

    with warnings.catch_warnings():  # that they take the place of others is the point
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel", UserWarning)
        triton.register("CPU")


def run(path: Path, **env: str) -> None:
    """The tests of a file, in the interpreter."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(path)]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", **env}
    ran = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]
