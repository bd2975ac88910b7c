"""Kernels for GPUs in Triton: implementations of ``kernels/schemas.py`` for the device type of CUDA, which ROCm shares.

Importing this registers them and imports no Triton: an operator does that when it is first called on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from ..schemas import LIBRARY

# operator -> the module here that has its implementation, a function of the same name without the underscore
IMPLEMENTED = dict.fromkeys(
    (
        "_entmax_fwd",
        "_entmax_bwd",
        "_entmax_dx",
        "_entmax_learned_fwd",
        "_entmax_learned_bwd",
        "_support_fwd",
        "_topk_sparsemax_fwd",
        "_rsoftmax_fwd",
        "_rsoftmax_keep",
        "_rsoftmax_bwd",
        "_budget_fwd",
        "_budget_bwd",
    ),
    "rows",
)
IMPLEMENTED |= {
    f"_{name}_{way}": "scaled"
    for name in ("tsoftmax", "sigsoftmax", "sparsegen", "hourglass", "normmax")
    for way in ("fwd", "bwd")
}
IMPLEMENTED |= dict.fromkeys(("_loss_fwd", "_loss_bwd", "_soft_loss_fwd", "_soft_loss_bwd"), "losses")
IMPLEMENTED |= dict.fromkeys(("_linear_loss_fwd", "_linear_loss_bwd"), "linear")
IMPLEMENTED |= dict.fromkeys(("_attention_fwd", "_attention_bwd"), "attention")
WIDEST = 256  # the largest head of attention


def _problem() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; pip install 'parsimax[triton]', or a torch that brings it"
    return None


PROBLEM = _problem()


def implementation(name: str) -> Callable[..., Any]:
    """What runs for an operator; its module, and with it Triton, is imported at the first call.

    On the GPU of its first argument, a tensor: Triton launches on the current one, wherever the tensors are.
    """

    def run(*args: Any) -> Any:
        with torch.cuda.device_of(args[0]):
            return getattr(importlib.import_module(f".{IMPLEMENTED[name]}", __name__), name[1:])(*args)

    return run


def register(key: str) -> None:
    """Put the implementations under a dispatch key of torch."""
    for name in IMPLEMENTED:
        LIBRARY.impl(name, implementation(name), key)


if PROBLEM is None:
    register("CUDA")
