"""``python -m parsimax.info``: versions, and which kernel runs for which function on a CPU in float32."""

from __future__ import annotations

import os
import platform

import torch

from . import __version__
from ._attention import __all__ as attention
from .kernels import dispatch, library
from .losses import __all__ as losses
from .mappings import __all__ as mappings


def _functions() -> list[str]:
    """The public mappings, losses and attention functions."""
    return [name for name in (*mappings, *losses, *attention) if name.islower()]


def _row(name: str) -> str:
    """The kernel that would run, and why not the others."""
    reasons = dispatch.reasons_against(name, torch.empty(1))
    if dispatch.wanted() == "torch":
        reasons.append("torch was asked for")
    return f"{name:22} {'torch' if reasons else 'cpu':6} {'; '.join(reasons)}".rstrip()


def text() -> str:
    lines = [
        f"python             {platform.python_version()}",
        f"torch              {torch.__version__}",
        f"parsimax           {__version__}",
        f"C++ kernels        {'loaded' if library.AVAILABLE else library.PROBLEM}",
        f"instruction set    {library.level()}",
        f"threads            {torch.get_num_threads()}",
        f"PARSIMAX_KERNELS   {os.environ.get('PARSIMAX_KERNELS', 'not set, so auto')}",
        "",
        f"{'function':22} {'kernel':6} why not the other",
    ]
    return "\n".join([*lines, *map(_row, _functions())])


if __name__ == "__main__":
    print(text())
