"""Who is looking at this call?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from ..kernels import dispatch, library

PLAIN = (Tensor, torch.nn.Parameter)
TRACEABLE = (*PLAIN, FakeTensor)


def is_plain(*tensors: Tensor) -> bool:
    """Nothing but reverse-mode autograd looks at this call."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or any(type(t) not in PLAIN or t.is_meta or torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)
    )


def in_graph(*tensors: Tensor) -> bool:
    """Whether this call is being traced into a graph in which an operator may stand for it."""
    if not torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if forward_ad._current_level >= 0 and not torch.compiler.is_exporting():
        raise RuntimeError(
            "torch.compile drops forward-mode tangents of its inputs; take the derivative inside of the compiled "
            "function, with torch.func.jvp, or call the function uncompiled"
        )
    return all(type(t) in TRACEABLE for t in tensors)


def derivative_is_observed(*tensors: Tensor) -> bool:
    """Something else than a first reverse pass looks at the gradient that is being computed."""
    return (
        torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or any(torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)
    )


def quick(x: Tensor, dim: int) -> bool:
    """Whether a kernel can be called on ``x`` as it is: nothing to check, to cast or to differentiate.

    The mappings ask this first of all: on a tiny tensor the checks cost more than the kernel.
    """
    return (
        type(x) is Tensor
        and library.AVAILABLE
        and not torch.compiler.is_compiling()
        and dispatch.wanted() != "torch"
        and x.is_cpu
        and x.dtype in dispatch.DTYPES
        and x.dim() > 0
        and not x.is_nested
        and (dim == -1 or dim == x.dim() - 1)
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.is_autocast_enabled("cpu")
    )
