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
from torch.autograd import forward_ad

from ..kernels import dispatch
from ..kernels.schemas import LIBRARY as _fragment


def define(
    schema: str, kernel: Callable[..., Tensor], formula: Callable[..., Tensor], fake: Callable[..., Tensor]
) -> None:
    """The operator ``parsimax::schema`` with one result.

    ``kernel`` and ``formula`` compute the same; the first derivative of ``kernel`` is by a kernel, too. ``fake`` is a
    tensor of the shape and type of the result.
    """
    name = schema.partition("(")[0]
    _fragment.define(schema)
    operator = getattr(torch.ops.parsimax, name).default

    def below(*args: Any) -> Tensor:
        return kernel(*args) if dispatch.cpu(name, *_tensors(args)) else formula(*args)

    def autograd(*args: Any) -> Tensor:
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return formula(*args)
        compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        if compiling or (torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(args))):
            return below(*args)
        with torch._C._AutoDispatchBelowAutograd():
            out: Tensor = operator(*args)
        return out

    _fragment.impl(name, below, "CompositeExplicitAutograd")
    _fragment.impl(name, autograd, "Autograd")
    _fragment.impl(name, formula, "FuncTorchBatched")  # torch.func.vmap goes through the formula
    torch.library.register_fake(operator, fake, lib=_fragment)


def _tensors(args: tuple[Any, ...]) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]
