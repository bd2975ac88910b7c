"""Checks of what users pass in. An error says what was given and what is allowed."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    """The domain of a parameter; an end counts as inside if it is closed."""

    low: float
    high: float
    closed_low: bool = True
    closed_high: bool = True

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.closed_low else value > self.low
        below = value <= self.high if self.closed_high else value < self.high
        return above and below

    def holds(self, value: Tensor) -> Tensor:
        """Elementwise membership; NaN is outside."""
        above = value >= self.low if self.closed_low else value > self.low
        below = value <= self.high if self.closed_high else value < self.high
        return above & below

    def __str__(self) -> str:
        return f"{'[' if self.closed_low else '('}{self.low:g}, {self.high:g}{']' if self.closed_high else ')'}"


FINITE = Interval(-math.inf, math.inf, closed_low=False, closed_high=False)
POSITIVE = Interval(0, math.inf, closed_low=False, closed_high=False)


def check_scores(
    scores: Tensor, dtype: torch.dtype | None, where: str, least: int = 1, *, has_dtype: bool = False
) -> None:
    """``least`` is the number of dimensions that there must be; ``has_dtype`` says that callers can give a dtype."""
    if not isinstance(scores, Tensor):
        raise TypeError(f"{where}: scores must be a torch.Tensor, got {type(scores).__name__}")
    if scores.is_nested:
        raise TypeError(
            f"{where}: scores must not be a nested tensor; pad it with to_padded_tensor(-math.inf), since -inf forbids "
            "an entry, or pass its values()"
        )
    if dtype is not None and not dtype.is_floating_point:
        raise TypeError(f"{where}: dtype must be a floating-point type, got {dtype}")
    if dtype is None and not scores.is_floating_point():
        way = "convert them or pass dtype=torch.float32" if has_dtype else "convert them, as by .float()"
        raise TypeError(f"{where}: scores must be floating point, got {scores.dtype}; {way}")
    if scores.dim() < least:
        raise ValueError(f"{where}: scores must have at least one dimension, got shape ()")


def check_dim(dim: int, rank: int, where: str) -> int:
    """``dim`` as a number from 0 up."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"{where}: dim must be an int, got {dim!r}")
    if not -rank <= dim < rank:
        raise IndexError(f"{where}: dim must be between {-rank} and {rank - 1} for scores of rank {rank}, got {dim}")
    return dim % rank


def _broadcasts(shape: tuple[int, ...], onto: tuple[int, ...]) -> bool:
    return len(shape) <= len(onto) and all(
        a in (1, b) for a, b in zip(shape, onto[len(onto) - len(shape) :], strict=True)
    )


def check_mask(mask: Tensor, scores: Tensor, where: str) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{where}: mask must be a boolean tensor (True = may be chosen), got {given}")
    if mask.is_nested:
        raise TypeError(f"{where}: mask must not be a nested tensor; pad it with to_padded_tensor(False)")
    if not _broadcasts(tuple(mask.shape), tuple(scores.shape)):
        raise ValueError(
            f"{where}: mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {tuple(scores.shape)}"
        )


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_number(value: object, domain: Interval, name: str, where: str) -> float:
    if type(value) is float:  # asking for numbers.Real costs a microsecond
        number = value
    elif isinstance(value, Tensor):  # whoever takes tensors has looked before
        raise TypeError(f"{where}: {name} must be a number, got a tensor of shape {tuple(value.shape)}")
    elif not is_number(value):
        raise TypeError(f"{where}: {name} must be a number or a tensor, got {value!r}")
    else:
        number = float(value)
    if number not in domain:  # NaN is in none
        raise ValueError(f"{where}: {name} must be in {domain}, got {number:g}")
    return number


def check_count(value: object, name: str, where: str, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{where}: {name} must be an int, got {value!r}")
    if value < least:
        raise ValueError(f"{where}: {name} must be at least {least}, got {value}")
    return int(value)


def check_parameter(value: Tensor, scores: Tensor, dim: int, name: str, where: str) -> Tensor:
    """A parameter tensor with the rank of the scores and ``dim`` last, of size 1 there."""
    if not value.is_floating_point():
        raise TypeError(f"{where}: {name} must be floating point, got {value.dtype}")
    if value.dim() == 0:
        return value.reshape((1,) * scores.dim())
    per_row = tuple(1 if i == dim else size for i, size in enumerate(scores.shape))
    if not _broadcasts(tuple(value.shape), per_row):
        hint = ""
        if value.dim() == 1 and value.shape[0] in scores.shape[:-1]:
            ones = ", 1" * (scores.dim() - 1 - tuple(scores.shape).index(value.shape[0]))
            hint = f"; for one value per row of that size use {name}.view({value.shape[0]}{ones})"
        raise ValueError(
            f"{where}: {name} of shape {tuple(value.shape)} must be 0-dim or broadcast to {per_row} "
            f"(size 1 along dim {dim} of scores {tuple(scores.shape)}){hint}"
        )
    return value.reshape((1,) * (scores.dim() - value.dim()) + tuple(value.shape)).movedim(dim, -1)
