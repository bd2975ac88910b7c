"""Which kernel runs, and why not another.

``PARSIMAX_KERNELS`` is ``auto`` (the default: the fastest that can), ``cpu`` (the C++ kernels, or an error) or
``torch`` (the plain torch reference). :func:`set_default` changes it, and :func:`use` for a while and for its caller.
"""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from . import library

Function = TypeVar("Function", bound=Callable[..., Any])
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


def _checked(kernels: str, where: str) -> str:
    if kernels not in CHOICES:
        raise ValueError(f"{where}: choose one of {', '.join(CHOICES)}, got {kernels!r}")
    if kernels == "cpu" and not library.AVAILABLE:
        raise RuntimeError(f"{where}: the C++ kernels cannot be used: {library.PROBLEM}")
    return kernels


class _State:
    """What holds for the whole process."""

    def __init__(self) -> None:
        default = os.environ.get("PARSIMAX_KERNELS", "auto")
        self.default = _checked(default, f"PARSIMAX_KERNELS={default}")
        self.told = False


class _Traced(threading.local):
    """The choice of the block around a call, for code that is being traced.

    torch.compile cannot read a context variable, and it guards on this. Two asyncio tasks of one thread share it, so
    that a compiled function may take the kernels of the other task; the answer is the same.
    """

    def __init__(self) -> None:
        self.inner: str | None = None


Blocks = tuple[str, Any]  # (the choice of the innermost block, the blocks around it)

_state = _State()
_traced = _Traced()
_blocks: ContextVar[Blocks | None] = ContextVar("parsimax.kernels", default=None)


def wanted() -> str:
    """The choice that holds here."""
    if torch.compiler.is_dynamo_compiling():
        return _traced.inner or _state.default
    blocks = _blocks.get()
    return _state.default if blocks is None else blocks[0]


class use(ContextDecorator):
    """Run with ``auto``, ``cpu`` or ``torch`` kernels inside the block, or in the function that this decorates.

    Args:
        kernels: ``"auto"`` is the fastest that can run, ``"cpu"`` the C++ kernels or an error, ``"torch"`` the plain
            torch reference.

    It is a context variable: what one thread or asyncio task chooses, no other sees, in whatever order they leave. A
    task has the choice of the code that made it; a thread begins with that of the process, which is
    ``PARSIMAX_KERNELS`` or :func:`set_kernels`. A call without ``with`` chooses nothing, and warns.

    Example:
        >>> import torch, parsimax
        >>> with parsimax.use_kernels("torch"):
        ...     parsimax.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """

    def __init__(self, kernels: str) -> None:
        self.kernels = _checked(kernels, "use_kernels")
        self._used = False

    def __enter__(self) -> None:
        self._used = True
        if torch.compiler.is_dynamo_compiling():
            self._outer = _traced.inner
        else:
            _blocks.set((self.kernels, _blocks.get()))
        _traced.inner = self.kernels

    def __exit__(self, *error: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            _traced.inner = self._outer
            return
        blocks = _blocks.get()
        outer = None if blocks is None else blocks[1]
        _blocks.set(outer)
        _traced.inner = None if outer is None else outer[0]

    def __call__(self, function: Function) -> Function:
        self._used = True
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"use_kernels cannot decorate the generator {function.__name__}; write `with` inside it")
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @wraps(function)
        async def within(*args: Any, **options: Any) -> Any:
            with self:
                return await function(*args, **options)

        return cast(Function, within)

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warnings.warn(
                f"use_kernels({self.kernels!r}) chose nothing, since no block was entered; write `with "
                f"use_kernels({self.kernels!r}):`, or set_kernels({self.kernels!r}) for the whole process",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"use_kernels({self.kernels!r})"


def set_default(kernels: str) -> None:
    """Run with ``auto``, ``cpu`` or ``torch`` kernels from here on, in all threads, outside :func:`use_kernels`.

    Args:
        kernels: as in :func:`use_kernels`. At the start it is what the environment variable ``PARSIMAX_KERNELS`` says,
            or ``"auto"``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.set_kernels("auto")
    """
    _state.default = _checked(kernels, "set_kernels")


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
    asked = wanted()
    if asked == "torch":
        return False
    reasons = reasons_against(name, *tensors)
    if not reasons:
        return True
    if asked == "cpu" and name in CPU_KERNELS:
        raise RuntimeError(f"{name}: the C++ kernels were asked for, but {'; '.join(reasons)}")
    if not library.AVAILABLE and name in CPU_KERNELS and not _state.told:
        _state.told = True
        warnings.warn(f"parsimax runs in plain torch, which is slower: {library.PROBLEM}", stacklevel=4)
    return False


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
    if wanted() == "torch":
        reasons.append("PARSIMAX_KERNELS, set_kernels or use_kernels asks for torch")
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
