"""Whether the answer of a case is right: against plain torch in float64, before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import EllipsisType

import torch
from torch import Tensor

import parsimax

from .cases import MAPPED, Case
from .inputs import Inputs, make, padded
from .sides import SIDES, Side, evaluate

# Of the largest difference to the largest value of the same tensor. Half types: an ulp of the largest value.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-7, "float16": 2.0**-10, "float64": 1e-10}
HEAD_ROWS = 40  # more than a chunk of a mixture holds
BLOCK = 1000  # pieces of PLIF
PIECE = 1 << 22  # scores at a time, so that float64 fits in memory
MOST = 0.9  # of the rows must have the support that float64 finds
JUMPS = 0.02  # of the queries or keys may have another gradient, where a mapping's gradient jumps
HEADS = (0, -1)  # heads do not meet, and these two stand for all
ITEMS = 2  # of structures: the truth is a loop that takes a second for a few
SPLIT = {
    "scores": 0,
    "transitions": 0,
    "couplings": 0,
    "hidden": 0,
    "query": 1,
    "key": 1,
    "value": 1,
}  # leaves without an entry are shared by all rows


class WrongAnswer(Exception):
    """A case must not be timed."""


def check(case: Case, inputs: Inputs) -> float:
    """The largest error of the result and its gradients; raises :class:`WrongAnswer` if it is too large."""
    side = SIDES[case.ours]
    if side.head:  # a mixture of float64 takes minutes: a few rows of all classes
        case = replace(case, shape=(min(case.shape[0], HEAD_ROWS), *case.shape[1:]))
        inputs = make(case)
    if inputs.ptr is not None:
        return _accepted(case, _segment_errors(side, inputs))
    out, grads = _seeded(side, inputs, case.gradient)
    if "dropout" in case.ours:
        inputs = replace(inputs, kept=_kept(side, inputs))
    shared, errors = _Shared(), [0.0]
    by_head: list[tuple[Tensor, Tensor]] = []  # one number a head: the heads that are checked are one tensor
    for part, share in _parts(case):
        exact = _exact(case, inputs, part)
        with parsimax.use_kernels("torch"):
            true_out, true_grads = evaluate(side, exact, case.gradient, truth=True)
        rows: Tensor | EllipsisType = ...
        if inputs.upstream is None:
            shared.add("loss", out, share * true_out)
        else:
            mine = _rows(case, out)[part]
            errors.append(_error(mine, true_out))
            rows = _settled(mine, true_out, true_grads) if "scores" in inputs.leaves else ...
        names = (*inputs.leaves, *(["alpha"] if side.learned else []), *(inputs.own if side.head else []))
        for name, mine, true in zip(names, grads, true_grads, strict=bool(grads)):
            if name == "alpha" and "query" in inputs.leaves:
                by_head.append((mine[part[1]], true))
            elif name == "alpha":
                shared.add(name, mine, true.sum(), true.square().sum())
            elif name in SPLIT:
                jumps = JUMPS if case.ours.removeprefix("attention_") in MAPPED else 0.0
                kept = rows if name == "scores" else ...
                own, wanted = _rows(case, mine)[part], share * true
                if case.ours.startswith("rsoftmax"):
                    own, wanted = (over_ties(exact["scores"].detach(), g.double()) for g in (own, wanted))
                errors.append(_error(own[kept], wanted[kept], jumps))
            elif name == "raw_slopes":
                shared.add(name, _in_blocks(mine), share * _in_blocks(true))
            else:
                shared.add(name, mine, share * true)
    errors += shared.errors()
    if by_head:
        mine, true = (torch.cat(parts) for parts in zip(*by_head, strict=True))
        errors.append(_error(mine, true))
    return _accepted(case, errors)


def _accepted(case: Case, errors: list[float]) -> float:
    worst = math.nan if any(map(math.isnan, errors)) else max(errors)
    if not worst <= TOLERANCE[case.dtype]:
        raise WrongAnswer(f"wrong answer: {worst:.1e} from float64, more than {TOLERANCE[case.dtype]:.1e}; not timed")
    return worst


def _segment_errors(side: Side, inputs: Inputs) -> list[float]:
    """Of p and of the gradient, segment by segment: with those of float64 where the support is the same."""
    mine = evaluate(side, inputs)
    exact = {"scores": inputs["scores"].detach().double().requires_grad_()}
    upstream = inputs.upstream.double() if inputs.upstream is not None else None
    with parsimax.use_kernels("torch"):
        true = evaluate(side, replace(inputs, leaves=exact, upstream=upstream))

    def rows(result: tuple[Tensor, list[Tensor]]) -> tuple[Tensor, Tensor]:
        wide = padded(replace(inputs, leaves={"scores": result[0]}, upstream=result[1][0]))
        assert wide.upstream is not None
        return wide["scores"].clamp(min=0).flatten(0, 1), wide.upstream.flatten(0, 1)

    (p, dx), (true_p, true_dx) = rows(mine), rows(true)
    kept = _settled(p, true_p, [true_dx])
    return [_error(p, true_p), _error(dx[kept], true_dx[kept])]


def _seeded(side: Side, inputs: Inputs, gradient: bool) -> tuple[Tensor, list[Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return evaluate(side, inputs, gradient)


def _kept(side: Side, inputs: Inputs) -> Tensor:
    """Where the weights are not 0 after dropout: what attention makes of values that are the unit vectors."""
    *lead, n, _ = inputs["key"].shape
    with torch.no_grad():
        unit = torch.eye(n, dtype=inputs["key"].dtype).expand(*lead, n, n)
        return _seeded(side, replace(inputs, leaves={**inputs.leaves, "value": unit}), False)[0] != 0


class _Shared:
    """What all parts add to: compared at the end."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def add(self, name: str, mine: Tensor, true: Tensor, square: Tensor | None = None) -> None:
        """``square``: the sum of squares of what ``true`` adds up; terms that cancel still leave their roundings."""
        size = torch.zeros(()) if square is None else square
        _, others, sizes = self.sums.get(name, (mine, torch.zeros(()), torch.zeros(())))
        self.sums[name] = (mine, others + true, sizes + size)

    def errors(self) -> list[float]:
        return [_error(mine, true, size=square.sqrt().item()) for mine, true, square in self.sums.values()]


def _parts(case: Case) -> Iterator[tuple[tuple[slice, ...], float]]:
    """Indices into the leaves that are split, and the share of all rows that a mean has there."""
    if "attention" in case.ours:
        for head in HEADS:
            head %= case.shape[0]
            yield (slice(None), slice(head, head + 1)), 1.0
        return
    if case.group == "structured":
        yield (slice(0, ITEMS),), 1.0
        return
    n = case.shape[case.dim]
    rows = case.shape[0] if case.ours.startswith(("linear", "head_")) else math.prod(case.shape) // n
    step = max(1, PIECE // n)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        yield (slice(start, stop),), (stop - start) / rows if case.ours.endswith("_loss") else 1.0


def _exact(case: Case, inputs: Inputs, part: tuple[slice, ...]) -> Inputs:
    """A part of the inputs in float64."""

    def exact(x: Tensor) -> Tensor:
        return x.detach().double().requires_grad_(case.gradient)

    leaves = {k: exact(_rows(case, x)[part] if k in SPLIT else x) for k, x in inputs.leaves.items()}
    attention = "query" in leaves
    upstream = inputs.upstream
    return replace(
        inputs,
        leaves=leaves,
        own={k: exact(x) for k, x in inputs.own.items()},
        alpha=exact(inputs.alpha[part[1]] if attention else _each(inputs.alpha, leaves)),
        target=inputs.target if attention or case.dim != -1 else inputs.target[part[0]],
        upstream=None if upstream is None else _rows(case, upstream)[part].double(),
        kept=None if inputs.kept is None else inputs.kept[part].double(),
        soft=None if inputs.soft is None else inputs.soft[part[0]].double(),
        dim=-1,
    )


def _each(alpha: Tensor, leaves: dict[str, Tensor]) -> Tensor:
    """One α a row, so that the truth says what each of them adds to the gradient."""
    return alpha.expand(len(leaves["scores"]), 1) if "scores" in leaves and leaves["scores"].dim() == 2 else alpha


def over_ties(x: Tensor, g: Tensor) -> Tensor:
    """A gradient by rows with its mean over equal scores: a quantile may take any of those that stand at its place."""
    order = x.sort(dim=-1)
    new = order.values[:, 1:] != order.values[:, :-1]
    group = torch.cat([torch.zeros_like(order.indices[:, :1]), new.long().cumsum(-1)], -1)
    empty = torch.zeros_like(g)
    total = empty.scatter_add(-1, group, g.gather(-1, order.indices))
    count = empty.scatter_add(-1, group, torch.ones_like(g))
    return empty.scatter(-1, order.indices, (total / count.clamp(min=1)).gather(-1, group))


def _rows(case: Case, x: Tensor) -> Tensor:
    if "attention" in case.ours or case.group == "structured":
        return x
    return x.movedim(case.dim, -1).flatten(0, -2)


def _settled(mine: Tensor, true: Tensor, grads: list[Tensor]) -> Tensor:
    """Rows without a score that rounding puts on the other side of the threshold, or on it: sparsemax jumps there.

    A score on the threshold shows in the gradient of float64, which is not 0 there although p is; unless that is so in
    most rows, as where a quantile or a sum of the scores moves the threshold. A probability may be too small for the
    type: below 3e-8 it is 0 in float16.
    """
    same = ((mine > 0) == (true.to(mine.dtype) > 0)).all(-1)
    if same.double().mean() < MOST:
        raise WrongAnswer(f"wrong answer: {(~same).sum()} of {len(same)} rows have another support; not timed")
    inside = ((grads[0] != 0) <= (true > 0)).all(-1) if grads else same
    return same & inside if inside.double().mean() >= MOST else same


def _in_blocks(x: Tensor) -> Tensor:
    """Rounding moves a score by a hundredth of a piece of PLIF: what is compared is summed over many pieces."""
    return x.view(-1, BLOCK).sum(1)


def _error(mine: Tensor, true: Tensor, jumps: float = 0.0, size: float = 0.0) -> float:
    """The largest difference, or the largest but for a share of the rows: a rounded score can change its place among
    the others, or the side of the threshold that it is on, and the gradient of its row jumps. It is relative to the
    largest value, or to ``size`` if that is more.
    """
    if true.numel() == 0:
        return 0.0
    worst = (mine.double() - true).abs().amax(-1).flatten() if true.dim() else (mine.double() - true).abs()[None]
    if jumps and not worst.isnan().any():
        worst = worst.sort().values[: math.ceil((1 - jumps) * len(worst))]
    return (worst.amax() / true.abs().amax().clamp(min=max(size, 1e-30))).item()
