"""The Triton kernels without a GPU: in the interpreter. ``make test-triton`` runs a longer sweep."""

import importlib.util
from pathlib import Path

import pytest

import interpreted

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(interpreted.ON, reason="starts the interpreter itself"),
]


@pytest.mark.parametrize("what", ["rows"])
def test_in_the_interpreter(what):
    interpreted.run(Path(__file__).with_name(f"test_triton_{what}.py"))
