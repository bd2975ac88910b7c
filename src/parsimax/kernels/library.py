"""The compiled library, if it was built and this torch can load it."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

PATH = Path(__file__).with_name("_cpu.so")
LEVELS = ("base", "avx2", "avx512")
NEEDS = (2, 10)  # the first torch with all of the stable ABI that the kernels use; the formulas run on older ones
MEND = "pip install --force-reinstall --no-deps .   (in a clone, with torch and a C++ compiler)"


def too_old(version: str) -> str | None:
    """Why the kernels cannot run in this version of torch, if it is that."""
    if tuple(int(part) for part in version.split(".")[:2]) >= NEEDS:
        return None
    return f"the C++ kernels need torch {'.'.join(map(str, NEEDS))} or newer and this is {version}"


def _load() -> str | None:
    """Load the library; the reason if that cannot be done."""
    problem = too_old(torch.__version__)
    if problem is not None:
        return problem
    if not PATH.exists():
        return f"the C++ kernels were not built; to build them: {MEND}"
    try:
        torch.ops.load_library(PATH)
    except OSError as error:
        return f"the C++ kernels were built for another torch ({error}); to build them anew: {MEND}"
    return None


PROBLEM = _load()
AVAILABLE = PROBLEM is None
if PROBLEM is not None:
    logging.getLogger("parsimax").info("parsimax runs in plain torch: %s", PROBLEM)


def level() -> str:
    """The instruction set in use."""
    return LEVELS[torch.ops.parsimax._isa()] if AVAILABLE else "none"
