"""Tensors of a module that are fixed: not saved, and not lost where a module goes through the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class FixedTensors(nn.Module):
    """A module that knows what its buffers hold, and fills them again after ``to_empty`` and ``assign=True``."""

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[str, Tensor] = {}

    def fix(self, name: str, value: Tensor, persistent: bool = False) -> None:
        """A buffer with this value."""
        self._given[name] = value.detach()
        self.register_buffer(name, value, persistent)

    def fix_anew(self, name: str, value: Tensor, persistent: bool = False) -> None:
        """The same for a value that was made on the CPU, and belongs where new tensors are made."""
        self.fix(name, value.to(torch.get_default_device()), persistent)
        self._given[name] = value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        before = {name: self._buffers[name] for name in self._given}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new, given = self._buffers[name], self._given[name]
            if old is None or new is None or new is old or new.is_meta or new.requires_grad:
                continue
            known = given if old.is_meta else old
            if not known.is_meta:
                with torch.no_grad():
                    new.copy_(known)
        return self

    def revive(self, device: torch.device) -> None:
        """What stayed on the meta device when weights were assigned is made here."""
        for name, given in self._given.items():
            now = self._buffers[name]
            if now is not None and now.is_meta and not given.is_meta and device.type != "meta":
                self._buffers[name] = given.to(device, now.dtype)
