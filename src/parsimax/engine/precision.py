"""The precision to compute in, and the one to answer in."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ..kernels.backends import LEAN, formulas_of
from ..kernels.dispatch import wanted
from .modes import leaves_the_library

WIDE = (torch.float32, torch.float64)
P = ParamSpec("P")
T = TypeVar("T")


def has_float64(device: torch.device) -> bool:
    """MPS has none, and of Intel's GPUs not all do."""
    kind = device.type
    if kind == "xpu":
        return bool(getattr(torch.xpu.get_device_properties(device), "has_fp64", True))
    return kind != "mps"


def work_dtype(device: torch.device) -> torch.dtype:
    """Of parameters and of one number a row: float64 where there is one, so that sums over rows are right."""
    return torch.float64 if has_float64(device) else torch.float32


def in_float64(function: Callable[P, T]) -> Callable[P, T]:
    """A function that computes in float64, on the CPU where the device of its tensors has none; differentiable.

    The answer comes back to the device, with float32 for float64. For small tables, and for what has no formula in
    float32.
    """

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> T:
        home = _without_float64(args)
        if home is None:
            return function(*args, **options)
        found = function(*moved(args, "cpu"), **moved(options, "cpu"))
        back: T = moved(found, home, narrow=True)
        return back

    return run


def _without_float64(things: tuple[Any, ...]) -> torch.device | None:
    """The device of the first tensor in there, if it has no float64."""
    for thing in things:
        if isinstance(thing, Tensor):
            # Whoever holds a float64 tensor has float64.
            return None if thing.dtype == torch.float64 or has_float64(thing.device) else thing.device
        if isinstance(thing, tuple) and thing and isinstance(thing[0], Tensor):
            return _without_float64(thing)
    return None


def moved(thing: Any, device: torch.device | str, narrow: bool = False) -> Any:
    """Tensors on another device, be they in tuples, dicts or dataclasses; ``narrow``: float64 becomes float32."""
    if isinstance(thing, Tensor):
        return (thing.float() if narrow and thing.dtype == torch.float64 else thing).to(device)
    if isinstance(thing, tuple):
        return tuple(moved(each, device, narrow) for each in thing)
    if isinstance(thing, dict):
        return {name: moved(each, device, narrow) for name, each in thing.items()}
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
        return dataclasses.replace(thing, **moved(fields, device, narrow))
    return thing


def formula_dtype(x: Tensor) -> torch.dtype:
    """What a formula computes rows of ``x`` in: float64, or float32 with sums and thresholds in two parts.

    On the CPU float64 costs little; elsewhere it is slow, or does not exist. float64 scores are computed in float64.
    """
    device = x.device.type
    if x.dtype == torch.float64 or formulas_of(device, wanted()) != LEAN:
        return torch.float64
    # A graph that leaves the library holds formulas with a sort, whose sums over a row are plain.
    return torch.float64 if has_float64(x.device) and leaves_the_library() else torch.float32


def softmax_dtype(scores: Tensor) -> torch.dtype:
    """What ``torch.softmax`` would return: under autocast that is not always the dtype of the scores."""
    if not scores.is_meta and torch.is_autocast_enabled(scores.device.type):
        return torch.softmax(torch.empty(1, dtype=scores.dtype, device=scores.device), -1).dtype
    return scores.dtype
