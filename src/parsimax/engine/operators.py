"""The kernels as operators, for compiled and exported graphs.

A traced call becomes ``parsimax::entmax``, ``parsimax::entmax_loss``, … What such an operator does depends on who looks
at it. An exported program keeps it whole, and it runs the kernel, or the formula where the kernels cannot run; plain
reverse mode takes the kernels forward and backward; transforms and forward mode take the formula. So an exported
program runs and is differentiable wherever ``parsimax`` can be imported. ``torch.compile``, whose graphs nobody can
differentiate again (torch refuses), goes through it to the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels.backends import EAGER, Request
from ..kernels.dispatch import served
from ..kernels.schemas import LIBRARY
from .modes import below_autograd, transformed


def define(
    schema: str, kernel: Callable[..., Tensor], formula: Callable[..., Tensor], fake: Callable[..., Tensor]
) -> None:
    """The operator ``parsimax::schema`` with one result.

    ``kernel`` and ``formula`` compute the same; the first derivative of ``kernel`` is by a kernel, too. ``fake`` is a
    tensor of the shape and type of the result.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    operator = getattr(torch.ops.parsimax, name).default

    def below(*args: Any) -> Tensor:
        return kernel(*args) if served(Request(name, EAGER, _tensors(args), {})) else formula(*args)

    def autograd(*args: Any) -> Tensor:
        if transformed():
            return formula(*args)
        compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        if compiling or (torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(args))):
            return below(*args)
        with below_autograd():
            out: Tensor = operator(*args)
        return out

    LIBRARY.impl(name, below, "CompositeExplicitAutograd")
    LIBRARY.impl(name, autograd, "Autograd")
    LIBRARY.impl(name, formula, "FuncTorchBatched")  # torch.func.vmap goes through the formula
    torch.library.register_fake(operator, fake, lib=LIBRARY)


def _tensors(args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return tuple(a for a in args if isinstance(a, Tensor))
