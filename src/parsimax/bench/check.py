"""Whether the answer of a case is right: against plain torch in float64, before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import EllipsisType

import torch
from torch import Tensor

import parsimax

from .cases import Case
from .inputs import Inputs
from .sides import SIDES, evaluate

# Of the largest difference to the largest value of the same tensor. bfloat16: an ulp of the largest value.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-7}
PIECE = 1 << 22  # scores at a time, so that float64 fits in memory
MOST = 0.9  # of the rows must have the support that float64 finds
HEADS = (0, -1)  # heads do not meet, and these two stand for all
ITEMS = 2  # of structures: the truth is a loop that takes a second for a few
SPLIT = {
    "scores": 0,
    "transitions": 0,
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
    out, grads = evaluate(side, inputs, case.gradient)
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
        for name, mine, true in zip((*inputs.leaves, "alpha"), grads, true_grads, strict=False):
            if name == "alpha" and "query" in inputs.leaves:
                by_head.append((mine[part[1]], true))
            elif name in SPLIT:
                errors.append(
                    _error(*(x[rows if name == "scores" else ...] for x in (_rows(case, mine)[part], share * true)))
                )
            else:
                shared.add(name, mine, share * true)
    errors += shared.errors()
    if by_head:
        errors.append(_error(*map(torch.cat, zip(*by_head, strict=True))))
    worst = math.nan if any(map(math.isnan, errors)) else max(errors)
    if not worst <= TOLERANCE[case.dtype]:
        raise WrongAnswer(f"wrong answer: {worst:.1e} from float64, more than {TOLERANCE[case.dtype]:.1e}; not timed")
    return worst


class _Shared:
    """What all parts add to: compared at the end."""

    def __init__(self) -> None:
        self.pairs: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, name: str, mine: Tensor, true: Tensor) -> None:
        self.pairs[name] = (mine, self.pairs[name][1] + true if name in self.pairs else true)

    def errors(self) -> list[float]:
        return [_error(mine, true) for mine, true in self.pairs.values()]


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
    rows = case.shape[0] if case.ours.startswith("linear") else math.prod(case.shape[:-1])
    step = max(1, PIECE // case.shape[-1])
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
        alpha=exact(inputs.alpha[part[1]] if attention else inputs.alpha),
        target=inputs.target if attention else inputs.target[part[0]],
        upstream=None if upstream is None else _rows(case, upstream)[part].double(),
    )


def _rows(case: Case, x: Tensor) -> Tensor:
    return x if "attention" in case.ours or case.group == "structured" else x.flatten(0, -2)


def _settled(mine: Tensor, true: Tensor, grads: list[Tensor]) -> Tensor:
    """Rows without a score that rounding puts on the other side of the threshold, or on it: sparsemax jumps there.

    A score on the threshold shows in the gradient of float64, which is not 0 there although p is.
    """
    same = ((mine > 0) == (true > 0)).all(-1)
    if same.double().mean() < MOST:
        raise WrongAnswer(f"wrong answer: {(~same).sum()} of {len(same)} rows have another support; not timed")
    return same & ((grads[0] != 0) <= (true > 0)).all(-1) if grads else same


def _error(mine: Tensor, true: Tensor) -> float:
    if true.numel() == 0:
        return 0.0
    return (torch.dist(mine.double(), true, math.inf) / true.abs().amax().clamp(min=1e-30)).item()
