"""Times of the two sides of a case: checked, then taken in turns in one process."""

from __future__ import annotations

import ctypes
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from .cases import Case, Scaling
from .check import WrongAnswer, check
from .inputs import Inputs, make, nonzeros
from .memory import peak_extra
from .sides import SIDES, Side, evaluate

ROUNDS = 3  # at least, whatever the budget of seconds
SHORTEST = 1e-3  # seconds between two looks at the clock: quick calls are repeated until they fill it
CHECKED: dict[Case, float] = {}  # inputs follow from the case, so an answer is checked once
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


@dataclass(frozen=True)
class Times:
    """Seconds of one call over the rounds."""

    minimum: float
    p20: float
    p50: float
    rounds: int


@dataclass(frozen=True)
class Result:
    """A row of the table. ``value`` is what the limit is for: a ratio of minima, or a slope."""

    case: Case | Scaling
    problem: str | None = None
    value: float = math.nan
    ours: Times | None = None
    against: Times | None = None
    error: float = math.nan
    nonzeros: float = math.nan
    memory: tuple[float, float] | None = None
    slopes: tuple[float, float] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def memory_ratio(self) -> float:
        return self.memory[0] / self.memory[1] if self.memory else math.nan

    @property
    def passed(self) -> bool | None:
        """None if there was nothing to hold against a limit."""
        if self.problem is not None:
            return None if self.problem.startswith("skipped") else False
        if self.case.limit is None:
            return None
        most = self.case.memory_limit if isinstance(self.case, Case) else None
        return self.value <= self.case.limit and (most is None or self.memory_ratio <= most)


def keep_freed_memory() -> None:
    """Fix malloc's thresholds, before anything is allocated.

    By default glibc gives large blocks back to the system when they are freed, and each call pays for the page faults
    of its outputs again: up to half of the time, and which side pays depends on the order of the sizes before it.
    """
    if platform.system() == "Linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # glibc
            libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def measure(case: Case | Scaling, seconds: float) -> Result:
    """Check and time a case. What cannot be timed comes back with the problem."""
    try:
        return _scaling(case, seconds) if isinstance(case, Scaling) else _case(case, seconds)
    except WrongAnswer as wrong:
        return Result(case, problem=str(wrong))


def _case(case: Case, seconds: float) -> Result:
    ours, against = SIDES[case.ours], SIDES[case.against]
    if against.missing:
        return Result(case, problem=f"skipped: pip install {against.missing}")
    with _threads(case.threads):
        return _checked_and_timed(case, ours, against, seconds)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _checked_and_timed(case: Case, ours: Side, against: Side, seconds: float) -> Result:
    inputs = make(case)
    error = _error(case, inputs)
    kept = nonzeros(case, inputs)
    mine, theirs = interleaved([_call(side, case, inputs) for side in (ours, against)], seconds)
    memory = (peak_extra(case, case.ours), peak_extra(case, case.against)) if case.memory else None
    return Result(case, None, mine.minimum / theirs.minimum, mine, theirs, error, kept, memory)


def _error(case: Case, inputs: Inputs) -> float:
    """The check takes longer than the timing; cases that differ in the other side only share it."""
    key = replace(case, name="", group="", against="", limit=None, memory=False, memory_limit=None)
    if key not in CHECKED:
        CHECKED[key] = check(case, inputs)
    return CHECKED[key]


def _call(side: Side, case: Case, inputs: Inputs) -> Callable[[], object]:
    """Forward and backward, without a layer in between that a tiny tensor would feel."""
    inputs = inputs if side.prepare is None else side.prepare(inputs)
    if not case.gradient:
        call = side.call
        return lambda: call(inputs)
    return lambda: evaluate(side, inputs)


def interleaved(calls: list[Callable[[], object]], seconds: float) -> list[Times]:
    """Each call once a round, until the seconds are over: what disturbs the machine disturbs all of them."""
    repeats = [max(1, math.ceil(SHORTEST / _roughly(call))) for call in calls]
    taken: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(taken[-1]) < ROUNDS or time.perf_counter() < end:
        for call, times, repeat in zip(calls, taken, repeats, strict=True):
            times.append(_timed(call, repeat))
    return [_summary(times) for times in taken]


def _roughly(call: Callable[[], object]) -> float:
    """Seconds of a call once it is warm: the first one of a quick call may take a thousand times as long."""
    first = _timed(call, 1)
    return first if first > 50 * SHORTEST else min(_timed(call, 1) for _ in range(10))


def _timed(call: Callable[[], object], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def _summary(times: list[float]) -> Times:
    order = sorted(times)

    def quantile(share: float) -> float:
        return order[round(share * (len(order) - 1))]

    return Times(order[0], quantile(0.2), quantile(0.5), len(order))


def _scaling(case: Scaling, seconds: float) -> Result:
    mine, theirs = [], []
    notes = []
    for size, one in zip(case.sizes, case.cases, strict=True):
        if case.quantity == "memory":
            pair = peak_extra(one, one.ours), peak_extra(one, one.against)
            notes.append(f"{size}: {pair[0] / 1e6:.1f} / {pair[1] / 1e6:.1f} MB")
        else:
            result = _case(one, seconds / len(case.cases))
            assert result.ours and result.against
            pair = result.ours.minimum, result.against.minimum
            notes.append(f"{size}: {1e3 * pair[0]:.1f} / {1e3 * pair[1]:.1f} ms")
        mine.append(pair[0])
        theirs.append(pair[1])
    slopes = _slope(case.sizes, mine), _slope(case.sizes, theirs)
    value = slopes[0] if case.quantity == "memory" else slopes[0] - slopes[1]
    return Result(case, value=value, slopes=slopes, notes=notes)


def _slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Of the least-squares line through the logarithms."""
    x, y = [math.log(s) for s in sizes], [math.log(max(v, 1e-12)) for v in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / sum((a - mean_x) ** 2 for a in x)
