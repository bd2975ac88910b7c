"""Finding a threshold: searches that no tracer looks into.

A search loops until it has converged, so its length depends on the values. It is therefore an opaque operator with a
shape rule and a batching rule, and it is only ever called on detached scores: derivatives come from the closed form
that uses its answer.

A graph that must run without this library holds the search itself: a formula with a sort where there is one, or else
the loop, which ONNX has, or so many steps of it that every row has converged (``torch.jit.trace``, which has none).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from .modes import can_hold_a_loop
from .sums import is_lean, moved, threshold

MAX_STEPS = 400  # far above what bisection to the last bit needs: only a safeguard against an endless loop
WRITTEN_OUT = 96  # steps in a graph without loops, in which none can stop; rows that are hard for entmax take up to 77
LONG = 2048  # below this length a look at the whole row costs less than gathering from it


_written_out: ContextVar[bool] = ContextVar("written_out", default=False)


def repeat(step: Callable[..., tuple[Tensor, ...]], *state: Tensor) -> tuple[Tensor, ...]:
    """``step(*state) -> (*state, done)`` again and again, until all rows are done."""
    if _written_out.get() and can_hold_a_loop():
        return _loop(step, state)
    for _ in range(WRITTEN_OUT if _written_out.get() else MAX_STEPS):
        *state, done = step(*state)  # type: ignore[assignment]
        if not _written_out.get() and bool(done.all()):
            break
    return tuple(state)


def _loop(step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same as one node of a graph."""

    def goes_on(count: Tensor, busy: Tensor, *state: Tensor) -> Tensor:
        return busy & (count < MAX_STEPS)

    def body(count: Tensor, busy: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        *new, done = step(*state)
        return (count + 1, ~done.all(), *new)

    device = state[0].device
    begin = (torch.zeros((), dtype=torch.long, device=device), torch.ones((), dtype=torch.bool, device=device))
    found: tuple[Tensor, ...] = torch.while_loop(goes_on, body, (*begin, *state))
    return found[2:]


def any_of(rows: Tensor) -> bool:
    """Whether some rows are so; a graph has to be ready for it."""
    return _written_out.get() or bool(rows.any())


def log_length(z: Tensor) -> float | Tensor:
    """The logarithm of the length of the rows; a graph serves rows of any length, so there it is a tensor."""
    return torch.ones_like(z).sum(-1, keepdim=True).log() if _written_out.get() else math.log(z.shape[-1])


def best(z: Tensor, rank: Tensor) -> Tensor:
    """The largest entries in order, at least as many as the largest ``rank``."""
    if _written_out.get():
        return z.sort(-1, descending=True).values
    return z.topk(int(rank.max()) if rank.numel() else 1).values


class Search:
    """A function of rows (and a parameter of size 1 along them) with its twin, the operator ``parsimax::name``."""

    def __init__(
        self, run: Callable[..., Tensor], width: int, lean: int, formula: Callable[..., Tensor] | None = None
    ) -> None:
        self.run, self.formula = run, formula
        self.opaque: Any = torch.library.custom_op(f"parsimax::{run.__name__}", run, mutates_args=())

        def fake(*args: Tensor) -> Tensor:
            lead = torch.broadcast_shapes(*(a.shape[:-1] for a in args))
            return args[0].new_empty((*lead, lean if is_lean(args[0]) else width))

        def batched(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> tuple[Tensor, int]:
            front = [
                a.expand(info.batch_size, *a.shape) if d is None else a.movedim(d, 0)
                for a, d in zip(args, in_dims, strict=True)
            ]
            rank = max(a.dim() for a in front)
            return self.opaque(*(a.reshape(a.shape[:1] + (1,) * (rank - a.dim()) + a.shape[1:]) for a in front)), 0

        self.opaque.register_fake(fake)
        self.opaque.register_vmap(batched)

    def written_out(self, *args: Tensor) -> Tensor:
        """The search in ordinary operators that look at no value."""
        if self.formula is not None:
            return threshold(self.formula(*args))
        z, *rest = args
        # A parameter for each row: torch.while_loop takes a size of 1 for one that may change.
        args = (z, *(torch.zeros_like(z[..., :1]) + parameter for parameter in rest))
        before = _written_out.set(True)
        try:
            return self.run(*args)
        finally:
            _written_out.reset(before)


def search(
    width: int = 1, lean: int = 2, formula: Callable[..., Tensor] | None = None
) -> Callable[[Callable[..., Tensor]], Search]:
    """Make a search of ``run(z, [parameter]) -> (..., width)``, in float32 ``(..., lean)``: a threshold in two parts.

    ``z`` has maximum 0 and -inf at forbidden entries. ``formula`` finds the same without a loop, more slowly.
    """
    return lambda run: Search(run, width, lean, formula)


def ascend(step: Callable[[Tensor], Tensor], start: Tensor, tolerance: float) -> Tensor:
    """Newton from below on a convex decreasing function: every step goes up and none passes the root."""

    def next_(at: Tensor) -> tuple[Tensor, Tensor]:
        delta = step(at).clamp(min=0)
        return moved(at, delta), ~(delta > tolerance)

    return repeat(next_, start)[0]


def narrowed(
    z: Tensor,
    start: Tensor,
    find: Callable[[Tensor, Tensor], Tensor],
    edge: Callable[[Tensor], Tensor],
    long: int = LONG,
) -> Tensor:
    """``find(z, start)``, for long rows on the few entries that can matter.

    The root of a part of the row is a bound for the root of the row, so it serves as a start, and entries below its
    ``edge`` are out. The part is the maxima of blocks: they hold the maximum and nearly all of the largest entries.
    """
    n = z.shape[-1]
    if not _written_out.get() and n >= long and z.numel():
        block = 64 if n >= LONG else 16
        whole = n // block * block
        part = torch.cat([z[..., :whole].unflatten(-1, (-1, block)).amax(-1), z[..., whole:]], -1)
        start = find(part, start)
        z = above(z, edge(start))
    return find(z, start)


def above(z: Tensor, edge: Tensor | float) -> Tensor:
    """Rows that hold the entries above ``edge``, shorter ones if that spares much."""
    return z if _written_out.get() or not z.numel() else largest(z, int((z > edge).sum(-1).amax()))


def largest(z: Tensor, count: int) -> Tensor:
    """The ``count`` largest entries of each row, or the rows as they are if that would not spare much."""
    return z if count > z.shape[-1] // 4 else z.topk(max(count, 1), sorted=False).values
