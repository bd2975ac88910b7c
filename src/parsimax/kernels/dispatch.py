"""Which kernel runs, and why not another.

``PARSIMAX_KERNELS`` is ``auto`` (the default: the fastest that can), ``cpu`` (the C++ kernels, or an error) or
``torch`` (the plain torch reference). :func:`use` changes it for a while.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import library

CHOICES = ("auto", "cpu", "torch")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# What the C++ kernels can do, and the mappings and losses that each serves.
CPU_KERNELS = (
    "softmax",
    "sparsemax",
    "entmax15",
    "entmax",
    "topk_sparsemax",
    "rsoftmax",
    "budget_sparsemax",
    "sparsemax_loss",
    "entmax15_loss",
    "entmax_loss",
    "linear_entmax_loss",
    "entmax_attention",
)


class _State:
    def __init__(self) -> None:
        self.wanted = os.environ.get("PARSIMAX_KERNELS", "auto")
        if self.wanted not in CHOICES:
            raise ValueError(f"PARSIMAX_KERNELS must be one of {', '.join(CHOICES)}, got {self.wanted!r}")
        if self.wanted == "cpu" and not library.AVAILABLE:
            raise RuntimeError(f"PARSIMAX_KERNELS=cpu, but {library.PROBLEM}")
        self.told = False


_state = _State()


@contextmanager
def use(kernels: str) -> Iterator[None]:
    """Run with ``auto``, ``cpu`` or ``torch`` kernels inside of the block.

    Example:
        >>> import torch, parsimax
        >>> with parsimax.use_kernels("torch"):
        ...     parsimax.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    if kernels not in CHOICES:
        raise ValueError(f"use_kernels: choose one of {', '.join(CHOICES)}, got {kernels!r}")
    if kernels == "cpu" and not library.AVAILABLE:
        raise RuntimeError(f"use_kernels: the C++ kernels cannot be used: {library.PROBLEM}")
    before, _state.wanted = _state.wanted, kernels
    try:
        yield
    finally:
        _state.wanted = before


def reasons_against(name: str, *tensors: Tensor) -> list[str]:
    """Why the C++ kernels cannot run for these inputs; empty if they can."""
    reasons = []
    if not library.AVAILABLE:
        reasons.append(str(library.PROBLEM))
    if name not in CPU_KERNELS:
        reasons.append(f"there is no C++ kernel for {name}")
    for tensor in tensors:
        if tensor.device.type != "cpu":
            reasons.append(f"a tensor is on {tensor.device}, the kernels run on the CPU")
        if tensor.is_floating_point() and tensor.dtype not in DTYPES:
            reasons.append(f"a tensor is {tensor.dtype}, the kernels take {', '.join(str(d) for d in DTYPES)}")
    return reasons


def cpu(name: str, *tensors: Tensor) -> bool:
    """Whether the C++ kernel runs. An explicit request that cannot be met raises."""
    wanted = _state.wanted
    if wanted == "torch":
        return False
    reasons = reasons_against(name, *tensors)
    if not reasons:
        return True
    if wanted == "cpu" and name in CPU_KERNELS:
        raise RuntimeError(f"{name}: the C++ kernels were asked for, but {'; '.join(reasons)}")
    if not library.AVAILABLE and name in CPU_KERNELS and not _state.told:
        _state.told = True
        warnings.warn(f"parsimax runs in plain torch, which is slower: {library.PROBLEM}", stacklevel=4)
    return False


def quick(x: Tensor, dim: int) -> bool:
    """Whether a kernel can be called on ``x`` as it is: nothing to check, to cast or to differentiate.

    The mappings ask this first of all: on a tiny tensor the checks cost more than the kernel.
    """
    return (
        type(x) is Tensor
        and library.AVAILABLE
        and _state.wanted != "torch"
        and x.is_cpu
        and x.dtype in DTYPES
        and x.dim() > 0
        and (dim == -1 or dim == x.dim() - 1)
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.is_autocast_enabled("cpu")
    )


def explain(name: str, *tensors: Tensor) -> str:
    """Which kernel would run for a mapping or loss on these tensors, and why not the others.

    Args:
        name: the name of a public function, such as ``"entmax"`` or ``"entmax_loss"``.
        tensors: what it would be called with.

    Returns:
        A few lines of text.

    Example:
        >>> import torch, parsimax
        >>> print(parsimax.explain("normmax", torch.randn(2, 3)))
        normmax: torch
          cpu: not used: there is no C++ kernel for normmax
    """
    reasons = reasons_against(name, *tensors)
    if _state.wanted == "torch":
        reasons.append("PARSIMAX_KERNELS or use_kernels asks for torch")
    if reasons:
        return f"{name}: torch\n" + "\n".join(f"  cpu: not used: {reason}" for reason in reasons)
    return (
        f"{name}: cpu ({library.level()})\n"
        f"  under torch.compile and torch.export: cpu, as an operator of the graph{_doubt(name, tensors)}\n"
        "  under torch.func and forward-mode derivatives: torch"
    )


def _doubt(name: str, tensors: tuple[Tensor, ...]) -> str:
    """Where eager code looks at values, which a graph cannot."""
    if name == "entmax" and len(tensors) > 1 and tensors[0].dtype == torch.float64:
        return "; but torch for float64 scores with a tensor alpha, which may be above 2"
    if name == "linear_entmax_loss":
        return "; but torch for label smoothing with a bias, which may be infinite"
    return ""
