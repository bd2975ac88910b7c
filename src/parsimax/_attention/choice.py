"""The mapping of an attention layer, its settings and its heads, checked when the layer is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..mappings.declaration import Entry, MappingModule
from ..mappings.registry import MappingLike, resolve


def check_mapping(mapping: MappingLike, settings: dict[str, Any], where: str) -> Entry:
    """The mapping, if it can do with these settings."""
    entry, known = resolve(mapping, settings, where)
    if isinstance(mapping, MappingModule):
        if settings:
            raise ValueError(f"{where}: {mapping} has its own settings; pass none beside it")
        if mapping.dim not in (-1, 3):
            raise ValueError(f"{where}: the mapping must go over the keys, dim=-1, got {mapping}")
    setting = entry.setting
    if setting is not None and setting.name not in known and setting.default is None:
        raise TypeError(f"{where}: {entry.name} needs a setting, such as {setting.name}={setting.example:g}")
    return entry


def check_heads(heads: Sequence[int], number: int, where: str) -> Tensor:
    """Which of so many heads were chosen, as booleans."""
    if isinstance(heads, str) or not isinstance(heads, Iterable):
        raise TypeError(f"{where}: heads must be a list of the heads that use the mapping, such as [0], got {heads!r}")
    chosen = torch.zeros(number, dtype=torch.bool, device="cpu")
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int) or not -number <= head < number:
            raise ValueError(f"{where}: heads must be among 0…{number - 1}, got {head!r}")
        chosen[head] = True
    if not chosen.any():
        raise ValueError(f'{where}: heads is empty, so that all would use softmax; pass mapping="softmax" for that')
    return chosen


def check_shape(entry: Entry, value: Any, heads: int, where: str) -> None:
    """A tensor holds one number, or one per head."""
    if entry.setting is None or not isinstance(value, Tensor):
        return
    name = entry.setting.name
    entry.setting.check_tensor(value, f"{where}: {entry.name}")
    if value.numel() != 1 and tuple(value.shape) not in ((heads,), (heads, 1, 1)):
        raise ValueError(
            f"{where}: a tensor {name} must hold one number or one per head, {heads}, got shape {tuple(value.shape)}"
        )
