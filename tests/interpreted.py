"""Tests of Triton kernels run in Triton's interpreter, in processes of their own: it has to be chosen before Triton is
imported. There the Triton kernels stand for the C++ ones, so that the public functions call them on CPU tensors."""

import os
import warnings
from pathlib import Path

import pytest

import fresh

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
    words = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", path)
    ran = fresh.run(*words, env={**os.environ, "TRITON_INTERPRET": "1", **env})
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]
