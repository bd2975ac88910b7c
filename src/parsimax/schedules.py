"""Settings that change in training: small functions of the step, for ``alpha=``, ``rate=`` and the like.

>>> from parsimax import schedules
>>> anneal = schedules.Linear(1.01, 1.5, steps=100)
>>> anneal
Linear(start=1.01, end=1.5, steps=100)
>>> anneal(0), anneal(50), anneal(100), anneal(1000)
(1.01, 1.255, 1.5, 1.5)

They are values: they compare by what they hold, and can be pickled. Any other function of the step does as well.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, fields

from .engine.arguments import FINITE, Interval, check_count, check_number


@dataclass(frozen=True, repr=False)
class Constant:
    """The same value at each step.

    Example:
        >>> from parsimax.schedules import Constant
        >>> Constant(1.5)(1000)
        1.5
    """

    value: float

    def __post_init__(self) -> None:
        check_number(self.value, Interval(-math.inf, math.inf), "value", type(self).__name__)

    def __call__(self, step: float) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"Constant({self.value:g})"


@dataclass(frozen=True, repr=False)
class Ramp:
    """From ``start`` to ``end`` in ``steps`` steps after the first ``wait`` ones, and constant before and after."""

    start: float
    end: float
    steps: int
    _: KW_ONLY
    wait: int = 0

    def __post_init__(self) -> None:
        where = type(self).__name__
        for name in ("start", "end"):
            check_number(getattr(self, name), FINITE, name, where)
        check_count(self.steps, "steps", where)
        if self.wait != 0:
            check_count(self.wait, "wait", where)

    def __call__(self, step: float) -> float:
        if step <= self.wait:
            return self.start
        if step >= self.wait + self.steps:
            return self.end  # exactly
        value = self.at((step - self.wait) / self.steps)
        return min(max(value, min(self.start, self.end)), max(self.start, self.end))  # rounding stays inside

    def at(self, done: float) -> float:
        """The value when this share of the way is done, strictly between 0 and 1."""
        raise NotImplementedError

    def __repr__(self) -> str:
        held = [(each.name, getattr(self, each.name)) for each in fields(self)]
        shown = ", ".join(f"{name}={value!r}" for name, value in held if name != "wait" or value)
        return f"{type(self).__name__}({shown})"


@dataclass(frozen=True, repr=False)
class Linear(Ramp):
    """A straight line.

    Args:
        start: the value at first.
        end: the value at last.
        steps: how many steps it takes from one to the other.
        wait: how many steps it stays at ``start`` before.

    Example:
        >>> from parsimax.schedules import Linear
        >>> rate = Linear(0.0, 0.9, steps=100, wait=50)
        >>> rate(50), rate(100), rate(150)
        (0.0, 0.45, 0.9)

    Reference: α from 1.01 to its target over the first half of training: Gonçalves et al., AdaSplash, ICML 2025.
    """

    def at(self, done: float) -> float:
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True, repr=False)
class Cosine(Ramp):
    """Half a wave: slow at first, fast in the middle, slow at last. Arguments as in :class:`Linear`.

    Example:
        >>> from parsimax.schedules import Cosine
        >>> alpha = Cosine(1.0, 2.0, steps=100)
        >>> round(alpha(25), 4), round(alpha(50), 4)
        (1.1464, 1.5)
    """

    def at(self, done: float) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, repr=False)
class Geometric(Ramp):
    """Multiplies by the same factor each step. Arguments as in :class:`Linear`.

    Args:
        start: the value at first.
        end: the value at last.
        steps: how many steps it takes from one to the other.
        wait: how many steps it stays at ``start`` before.
        base: what is measured from; ``base=1`` for α lets its distance from softmax grow geometrically. Start and end
            must lie on the same side of it.

    Example:
        >>> from parsimax.schedules import Geometric
        >>> alpha = Geometric(1.01, 2.0, steps=100, base=1)
        >>> [round(alpha(step), 3) for step in (0, 50, 100)]
        [1.01, 1.1, 2.0]
    """

    base: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.base, FINITE, "base", "Geometric")
        if (self.start - self.base) * (self.end - self.base) <= 0:
            raise ValueError(
                f"Geometric: start and end must lie on one side of base={self.base:g} and not on it, got "
                f"{self.start:g} and {self.end:g}; from 0 on use Linear or Cosine, or another base"
            )

    def at(self, done: float) -> float:
        ratio = (self.end - self.base) / (self.start - self.base)
        return self.base + (self.start - self.base) * math.pow(ratio, done)

    def __repr__(self) -> str:
        shown = super().__repr__()
        return shown if self.base else shown.replace(", base=0.0", "")
