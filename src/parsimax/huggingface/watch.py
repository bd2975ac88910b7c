"""A core that its own layer never calls: only counting shows it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .interface import CORE


class _Watch:
    """A forward hook of one attention module, until its first pass has told."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():  # what is traced has no first pass
            return
        unwatch(module)
        core = getattr(module, CORE, None)
        if core is not None and not core.reached:
            warnings.warn(
                f"{self.name} ({type(module).__name__}) ran without its mapping: the layer computed its own attention, "
                "most likely softmax; parsimax.verify(model, …) says what every layer computes",
                stacklevel=2,
            )


def watch(modules: Mapping[str, nn.Module]) -> None:
    """Let every one of these attention modules say, after its first pass, if its core was not asked."""
    for name, module in modules.items():
        getattr(module, CORE).reached = False
        module.register_forward_hook(_Watch(name))


def unwatch(model: nn.Module) -> None:
    for module in model.modules():
        hooks = module._forward_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, _Watch)]:
            del hooks[key]
