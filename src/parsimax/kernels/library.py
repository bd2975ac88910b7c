"""The compiled library, if it was built."""

from __future__ import annotations

from pathlib import Path

import torch

PATH = Path(__file__).with_name("_cpu.so")
LEVELS = ("base", "avx2", "avx512")
MEND = "pip install --no-build-isolation --force-reinstall --no-deps .   (in a clone, with torch and a C++ compiler)"


def _load() -> str | None:
    """Load the library; the reason if that cannot be done."""
    if not PATH.exists():
        return f"the C++ kernels were not built; to build them: {MEND}"
    try:
        torch.ops.load_library(PATH)
    except OSError as error:
        return f"the C++ kernels were built for another torch ({error}); to build them anew: {MEND}"
    return None


PROBLEM = _load()
AVAILABLE = PROBLEM is None


def level() -> str:
    """The instruction set in use."""
    return LEVELS[torch.ops.parsimax._isa()] if AVAILABLE else "none"
