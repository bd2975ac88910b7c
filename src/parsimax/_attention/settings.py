"""The mapping of an attention layer and its settings, checked when the layer is made."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.arguments import check_count, check_number
from ..mappings.modules import MappingModule
from ..mappings.registry import REGISTRY, MappingLike, resolve
from ..schedules import Ramp


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


def check_value(mapping: str, name: str, value: Any, where: str, at: str = "") -> Any:
    """The value of a setting, checked. ``at`` says where a schedule gave it; of those a count is rounded."""
    setting = REGISTRY[mapping].setting
    if setting is None or name != setting.name:
        return value  # a switch such as detach_threshold
    if setting.continuous:
        return check_number(value, setting.domain, name + at, where)
    if at and isinstance(value, numbers.Real) and math.isfinite(value):
        value = value if isinstance(value, bool) else round(value)
    return check_count(value, name + at, where)


def check_ends(mapping: str, name: str, schedule: Any, where: str) -> None:
    """The values of a ramp lie between its ends, so that these speak for all."""
    if isinstance(schedule, Ramp):
        for end in ("start", "end"):
            check_value(mapping, name, getattr(schedule, end), where, f" at the {end} of {schedule}")


def check_step(step: object, where: str) -> int:
    if isinstance(step, bool) or not isinstance(step, numbers.Integral):
        raise TypeError(f"{where}: step must be an int, the global step of training, got {step!r}")
    if step < 0:
        raise ValueError(f"{where}: step must be at least 0, got {step}")
    return int(step)


def check_tensor(mapping: str, name: str, value: Tensor, heads: int, where: str) -> None:
    setting = REGISTRY[mapping].setting
    if setting is None or name != setting.name or not setting.continuous:
        raise TypeError(f"{where}: {name} of {mapping} cannot be a tensor; pass a number")
    if not value.is_floating_point():
        raise TypeError(f"{where}: a tensor {name} must be floating point, got {value.dtype}; pass {name}.float()")
    if value.numel() != 1 and tuple(value.shape) not in ((heads,), (heads, 1, 1)):
        raise ValueError(
            f"{where}: a tensor {name} must hold one number or one per head, {heads}, got shape {tuple(value.shape)}"
        )
