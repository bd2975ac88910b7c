"""``torch.jit.script`` cannot compile what is here, and says so in a sentence rather than in a stack of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NoReturn

from torch import nn


def _refuse(*_: object) -> NoReturn:
    raise TypeError(
        "torch.jit.script cannot compile the functions and modules of parsimax; use torch.compile or torch.export, "
        "which hold its kernels, or torch.jit.trace"
    )


def refuse_scripting(public: Iterable[Any]) -> None:
    """Give functions and modules the hook that ``torch.jit.script`` calls first."""
    for each in public:
        if inspect.isfunction(each) or (inspect.isclass(each) and issubclass(each, nn.Module)):
            each.__prepare_scriptable__ = _refuse  # type: ignore[union-attr]
