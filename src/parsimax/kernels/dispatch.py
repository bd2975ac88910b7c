"""Which kernel runs, and why not another.

``PARSIMAX_KERNELS`` is ``auto`` (the default: the fastest that can), ``cpu`` (the C++ kernels, or an error), ``triton``
(those of a GPU, or an error), ``torch`` (the plain torch reference, in float64) or ``lean`` (the same in float32, as
devices without kernels run it). :func:`set_default` changes it, and :func:`use` for a while and for its caller.
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

from .backends import BACKENDS, PLAIN, Request, near

Function = TypeVar("Function", bound=Callable[..., Any])
CHOICES = ("auto", *BACKENDS, *PLAIN)


def _checked(kernels: str, where: str) -> str:
    if kernels not in CHOICES:
        raise ValueError(f"{where}: choose one of {', '.join(CHOICES)}, got {kernels!r}")
    backend = BACKENDS.get(kernels)
    if backend is not None and backend.problem is not None:
        raise RuntimeError(f"{where}: the {backend.title} cannot be used: {backend.problem}")
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

process = _State()
_traced = _Traced()
blocks: ContextVar[Blocks | None] = ContextVar("parsimax.kernels", default=None)
_trial: ContextVar[bool] = ContextVar("parsimax.trial", default=False)  # a call is made to see what it asks for


def wanted() -> str:
    """The choice that holds here."""
    if torch.compiler.is_dynamo_compiling():
        return _traced.inner or process.default
    return wanted_in_eager_code()


def wanted_in_eager_code() -> str:
    """The same where it is known that nothing is being compiled."""
    found = blocks.get()
    return process.default if found is None else found[0]


def plain_in_eager_code() -> bool:
    """Whether plain torch was asked for, or is all there is, and not to learn what would be asked of a back end."""
    asked = wanted_in_eager_code()
    return (asked == "torch" or (asked == "auto" and process.told)) and not _trial.get()


class use(ContextDecorator):
    """Run with kernels of your choice inside the block, or in the function this decorates.

    Args:
        kernels: ``"auto"`` is the fastest that can run, ``"cpu"`` the C++ kernels or an error, ``"triton"`` those of a
            GPU or an error, ``"torch"`` the plain torch reference in float64, ``"lean"`` the same in float32 with sums
            and thresholds in two parts, which is what a GPU runs where it has no kernel.

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
            blocks.set((self.kernels, blocks.get()))
        _traced.inner = self.kernels

    def __exit__(self, *error: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            _traced.inner = self._outer
            return
        found = blocks.get()
        outer = None if found is None else found[1]
        blocks.set(outer)
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
    """Run with these kernels from here on, in all threads, outside :func:`use_kernels`.

    Args:
        kernels: as in :func:`use_kernels`. At the start it is what the environment variable ``PARSIMAX_KERNELS`` says,
            or ``"auto"``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.set_kernels("auto")
    """
    process.default = _checked(kernels, "set_kernels")


class Requested(Exception):
    """What :func:`request_of` wants to know, on its way out of the call."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.name)
        self.request = request


def served(request: Request) -> bool:
    """Whether kernels run this. An explicit request that cannot be met raises; an automatic choice falls through."""
    asked = wanted()
    if asked in PLAIN:
        if not torch.compiler.is_dynamo_compiling() and _trial.get():
            raise Requested(request)
        return False
    for backend in near(request, asked):
        reasons = backend.reasons_against(request)
        if not reasons:
            return True
        if asked != "auto":
            raise RuntimeError(f"{request.name}: the {backend.title} were asked for, but {'; '.join(reasons)}")
        missed = backend.problem is not None and request.name in backend.serves
        if missed and not process.told and all(t.device.type == backend.device for t in request.tensors):
            process.told = True
            warnings.warn(f"parsimax runs in plain torch, which is slower: {backend.problem}", stacklevel=4)
    return False


def request_of(function: Callable[..., Any], *args: Any, **options: Any) -> Request | None:
    """What a call asks the back ends for, found by making it up to that point; None if it asks for nothing."""
    asked = _trial.set(True)
    try:
        with use("torch"):  # so that no shortcut passes the question by
            function(*args, **options)
    except Requested as found:
        return found.request
    finally:
        _trial.reset(asked)
    return None
