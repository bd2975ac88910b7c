"""Who is looking at this call? The only file that touches private names of torch.

A call is *plain* if nothing but a reverse pass looks at it: the kernels run, and values may be read. It is *in a graph*
if torch.compile or torch.export traces it: an operator may stand for it, and no value may be read. Otherwise something
wants derivatives that only a formula has (torch.func, forward mode), or sees every operation (a mode, a tensor
subclass, fake tensors).

Each private name below has no public equal in torch 2.13; ``tests/engine/test_torch_names.py`` says by name which one a
release of torch has moved.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,  # what export and make_fx trace with; nothing public names its type
)
from torch.autograd import forward_ad

from ..kernels import backends, dispatch

# torch.func.vmap, grad, jvp, … around this call. Public code only sees tensors, and a transform may wrap none of ours.
_transforms_are_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
# Modes that see every operation, such as a fake mode. torch.overrides lists function modes only.
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
# Gradients of is_grads_batched=True come as tensors of the old vmap, whose type is Tensor.
_is_batched: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
# torch.jit.trace records this call. torch.jit.is_tracing, which torch.compile knows, asks the same at twice the price.
_is_tracing: Callable[[], bool] = torch._C._is_tracing
_is_tracing_in_graphs: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
# torch.is_autocast_enabled("cpu") is exact, but at three times the price, in every call.
_autocasts: Callable[[], bool] = torch._C._is_any_autocast_enabled
# Below the autograd key: how an operator's autograd rule calls the operator itself.
below_autograd: Callable[[], AbstractContextManager[object]] = torch._C._AutoDispatchBelowAutograd
# The backward pass that this thread is in, or -1. Hooks could tell, but only of graphs that one has seen before.
_backward_pass: Callable[[], int] = torch._C._current_graph_task_id

# What a tensor class has that leaves torch's functions as they are; __torch_function__ is the protocol, this its "no".
_NO_TORCH_FUNCTION: Any = torch._C._disabled_torch_function_impl

# By what nn.MultiheadAttention and nn.TransformerEncoderLayer compute softmax in eval mode: verify looks out for them.
FAST_PATHS: tuple[Any, Any] = (torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd)

# torch.onnx.export translates torch.while_loop; that of 2.10 fails on some graphs (pytorch issue 192040).
_ONNX_HAS_LOOPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

PLAIN = (Tensor, torch.nn.Parameter)
_block, _process = dispatch.blocks.get, dispatch.process  # what wanted_in_eager_code() asks, without its call
_BUILT, _DTYPES, _QUICK = backends.CPU.problem is None, backends.CPU.dtypes, ("auto", backends.CPU.name)  # for quick()
_WIDE = (torch.float32, torch.float64)  # half types have their gradients from the formula, and not from a rounded p
TRACEABLE = (*PLAIN, FakeTensor)
TINY_ROW = 16  # numbers in a row: beyond, a search is quicker than a sort


def _forward_mode() -> bool:
    """Inside forward_ad.dual_level. unpack_dual would look at each tensor, and make two of it."""
    return forward_ad._current_level >= 0


def transformed() -> bool:
    """Somebody wants derivatives that only a formula has."""
    return _transforms_are_active() or _forward_mode()


def leaves_the_library() -> bool:
    """The graph that is being recorded must run where parsimax is not: torch.jit.trace and torch.onnx.export."""
    return _is_tracing_in_graphs() or torch.onnx.is_in_onnx_export()


def can_hold_a_loop() -> bool:
    """Whether the graph that is being recorded may have a loop that stops by what it has found: one of ONNX may."""
    return not _is_tracing() and torch.onnx.is_in_onnx_export() and _ONNX_HAS_LOOPS


def is_plain(*tensors: Tensor) -> bool:
    """Nothing but reverse-mode autograd looks at this call."""
    return not (
        torch.compiler.is_compiling()
        or _is_tracing()
        or _transforms_are_active()
        or forward_ad._current_level >= 0
        or _dispatch_modes() > 0
        or any(type(t) not in PLAIN or t.is_meta or _is_batched(t) for t in tensors)
    )


def in_graph(*tensors: Tensor) -> bool:
    """Whether this call is being traced into a graph in which an operator may stand for it."""
    if not torch.compiler.is_compiling() or _transforms_are_active() or leaves_the_library():
        return False
    if _forward_mode() and not torch.compiler.is_exporting():
        raise RuntimeError(
            "torch.compile drops forward-mode tangents of its inputs; take the derivative inside the compiled "
            "function, with torch.func.jvp, or call the function uncompiled"
        )
    return all(type(t) in TRACEABLE for t in tensors)


def values_are_hidden() -> bool:
    """A graph is being traced, so the shape of a result must not depend on values."""
    return torch.compiler.is_compiling() or _dispatch_modes() > 0


def derivative_is_observed(*tensors: Tensor) -> bool:
    """Something else than a first reverse pass looks at the gradient that is being computed."""
    return torch.is_grad_enabled() or transformed() or any(_is_batched(t) for t in tensors)


def in_backward() -> bool:
    """A forward pass that a backward pass runs again: activation checkpointing."""
    return _backward_pass() != -1


def redefines_functions(kind: Any) -> bool:
    """Whether a tensor class gives torch's functions another meaning."""
    return kind not in PLAIN and kind.__torch_function__ is not _NO_TORCH_FUNCTION


def kernels_serve(name: str, *tensors: Tensor, **options: Any) -> bool:
    """Whether kernels run this call: at once, or as an operator of the graph that is being traced."""
    mode = backends.EAGER if is_plain(*tensors) else backends.GRAPH if in_graph(*tensors) else backends.TRANSFORM
    return dispatch.served(backends.Request(name, mode, tensors, options))


def quick(x: Tensor, dim: int) -> bool:
    """Whether a CPU kernel can be called on ``x`` as it is: nothing to check or to cast, and reverse mode at most.

    The mappings ask this first of all: on a tiny tensor the checks cost more than the kernel. False only means that
    somebody has to look closer.
    """
    return (
        type(x) in PLAIN
        and _BUILT
        and not torch.compiler.is_dynamo_compiling()  # other tracers are modes, or bring tensors of their own
        and (_process.default if (block := _block()) is None else block[0]) in _QUICK
        and x.is_cpu
        and x.dtype in _DTYPES
        and x.dim() > 0
        and not x.is_nested
        and (dim == -1 or dim == x.dim() - 1)
        and not _transforms_are_active()
        and forward_ad._current_level < 0
        and _dispatch_modes() == 0
        and not _autocasts()
        and not _is_tracing()
    )


def tiny(x: Tensor, dim: int) -> bool:
    """The same where no kernel serves, and rows so short that :mod:`~parsimax.engine.tiny` takes them."""
    return (
        type(x) in PLAIN
        and not torch.compiler.is_compiling()
        and dispatch.plain_in_eager_code()
        and x.is_cpu
        and x.dtype in _WIDE
        and x.dim() > 0
        and x.numel() > 0
        and not x.is_nested
        and x.shape[-1] <= TINY_ROW
        and (dim == -1 or dim == x.dim() - 1)
        and not _transforms_are_active()
        and forward_ad._current_level < 0
        and _dispatch_modes() == 0
        and not _autocasts()
        and not _is_tracing()
    )


def direct(overload: Any) -> Any:
    """What an operator's overload calls: that goes through Python, which costs a third of a microsecond."""
    return getattr(overload, "_op", overload)
