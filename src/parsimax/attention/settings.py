"""The mapping of an attention layer and its settings, checked when the layer is made."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import check_count, check_number
from ..mappings.modules import MappingModule
from ..mappings.registry import REGISTRY, MappingLike, resolve


def check_mapping(mapping: MappingLike, settings: dict[str, Any], learned: str | None, where: str) -> str:
    """The name of the mapping, if it can do with these settings; ``learned`` is an alpha given as a string."""
    entry, known = resolve(mapping, settings, where)
    if isinstance(mapping, MappingModule):
        if settings or learned:
            raise ValueError(f"{where}: {mapping} has its own settings; pass none beside it")
        if mapping.dim not in (-1, 3):
            raise ValueError(f"{where}: the mapping must go over the keys, dim=-1, got {mapping}")
    if learned is not None and (learned != "learned" or entry.name != "entmax"):
        raise ValueError(
            f'{where}: alpha must be a number, a tensor, a schedule or, for "entmax", "learned"; '
            f"got alpha={learned!r} for {entry.name}"
        )
    setting = entry.setting
    if setting is not None and setting.name not in known and learned is None:
        parameter = inspect.signature(entry.function).parameters[setting.name]
        if parameter.default is parameter.empty:
            raise TypeError(f"{where}: {entry.name} needs a setting, such as {setting.name}={setting.example:g}")
    return entry.name


def check_heads(heads: Sequence[int] | None, number: int, where: str) -> Tensor | None:
    """Which of so many heads were chosen, as booleans; None for all."""
    if heads is None:
        return None
    chosen = torch.zeros(number, dtype=torch.bool)
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int) or not -number <= head < number:
            raise ValueError(f"{where}: heads must be among 0…{number - 1}, got {head!r}")
        chosen[head] = True
    return chosen


def check_value(mapping: str, name: str, value: Any, where: str) -> Any:
    setting = REGISTRY[mapping].setting
    if setting is None or name != setting.name:
        return value  # a switch such as detach_threshold
    if not setting.continuous:
        return check_count(value, name, where)
    return check_number(value, setting.domain, name, where)


def check_tensor(name: str, value: Tensor, heads: int, where: str) -> None:
    if value.numel() != 1 and tuple(value.shape) not in ((heads,), (heads, 1, 1)):
        raise ValueError(
            f"{where}: a tensor {name} must hold one number or one per head, {heads}, got shape {tuple(value.shape)}"
        )
