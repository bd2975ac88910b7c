"""From scores to codes: by the kernels where they can, else one item after the other in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..kernels.backends import EAGER, Request
from ..kernels.dispatch import served
from .active_set import Limits, Start, direction, solve_item
from .bits import Bits
from .custom import Custom
from .structure import LabelStructure, Problem, Scores, Structure

ops = torch.ops.parsimax
Solved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # codes, weights, counts, gap, iterations


def kernels_serve(name: str, structure: Structure, scores: Scores) -> bool:
    tensors = (scores,) if isinstance(scores, Tensor) else scores
    return served(Request(name, EAGER, tensors, {"custom": structure.kind is None}))


def centred(structure: Structure, problem: Problem) -> Problem:
    """Scores for a solver: the largest of a position is 0, which changes no answer and keeps the digits of the rest."""
    unary, extra = problem.unary.detach(), None if problem.extra is None else problem.extra.detach()
    if isinstance(structure, LabelStructure):
        top = unary.amax(-1, keepdim=True)
        unary = unary - torch.where(top > -math.inf, top, 0.0)
        if extra is not None:
            top = extra.amax((-1, -2), keepdim=True)
            extra = extra - torch.where(top > -math.inf, top, 0.0)
    return replace(problem, unary=unary, extra=extra)


def solve(structure: Structure, problem: Problem, limits: Limits, start: Start | None, kernels: bool) -> Solved:
    """SparseMAP by the active set, on the CPU; the answer is where the scores are."""
    device = problem.unary.device
    if device.type != "cpu":
        there = start and Start(start.codes.cpu(), start.weights.cpu(), start.counts.cpu())
        codes, *rest = solve(structure, problem.on_cpu(), limits, there, False)
        weights, counts, gap, steps = (each.to(device) for each in rest)
        return codes.to(device), weights, counts, gap, steps
    problem = centred(structure, problem)
    if kernels:
        given: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
        if start is not None:
            codes = Bits.pack(start.codes) if isinstance(structure, Bits) else start.codes
            given = (codes, start.weights, start.counts)
        codes, weights, counts, facts = ops._sparsemap(
            _marked(structure.penalised(problem.unary), problem.broken),
            problem.extra,
            structure.kind,
            *structure.limits,
            *given,
            limits.iterations,
            limits.support,
            limits.tolerance,
        )
        return codes, weights, counts, facts[:, 0], facts[:, 1].long()
    tilt = direction(math.prod(problem.unary.shape[1:]))
    first = [0] if start is None else [0, *start.counts.flatten().cumsum(0).tolist()]

    def one(item: int) -> tuple[list[Tensor], Tensor, float, int]:
        own = None
        if start is not None:
            part = slice(first[item], first[item + 1])
            own = Start(start.codes[part], start.weights[part], start.counts)
        return solve_item(structure, problem, item, limits, own, tilt)

    found = [*_each(structure, problem, "sparsemap", one)]
    counts = torch.tensor([len(codes) for codes, *_ in found], dtype=torch.long)
    codes = _stacked([code for codes, *_ in found for code in codes], structure, problem)
    weights = torch.cat([torch.zeros(0, dtype=torch.float64), *(weights for _, weights, *_ in found)])
    gap = torch.tensor([gap for _, _, gap, _ in found], dtype=torch.float64)
    return codes, weights, counts, gap, torch.tensor([steps for *_, steps in found], dtype=torch.long)


def kbest(structure: Structure, problem: Problem, k: int, kernels: bool) -> tuple[Tensor, Tensor]:
    """(codes (items, k or fewer, …), whether there are so many) of the k best structures, best first."""
    device = problem.unary.device
    if device.type != "cpu":
        codes, there = kbest(structure, problem.on_cpu(), k, False)
        return codes.to(device), there.to(device)
    problem = problem.on_cpu()
    if kernels:
        unary = _marked(problem.unary, problem.broken)
        codes, values = ops._kbest_structures(unary, problem.extra, structure.kind, *structure.limits, k)
        return codes, values > -math.inf
    found = [*_each(structure, problem, "topk", lambda item: structure.kbest(*problem.of(item), k))]
    some = [code for codes in found for code in codes]
    counts = [len(codes) for codes in found]
    there = torch.arange(max([1, *counts])) < torch.tensor(counts)[:, None]
    flat = _stacked(some, structure, problem)
    codes = flat.new_zeros(*there.shape, flat.shape[-1])
    codes[there] = flat
    return codes, there


def _marked(unary: Tensor, broken: Tensor) -> Tensor:
    """The kernels skip items that are not clean."""
    return torch.where(broken.view(-1, *[1] * (unary.dim() - 1)), math.nan, unary).contiguous()


def _stacked(codes: list[Tensor], structure: Structure, problem: Problem) -> Tensor:
    return torch.stack(codes) if codes else torch.zeros(0, length_of(structure, problem), dtype=torch.int32)


def _each(structure: Structure, problem: Problem, where: str, one: Callable[[int], Any]) -> Iterator[Any]:
    for item in range(problem.items):
        if bool(problem.broken[item]):  # its scores are zeros, and its answer will be NaN
            item_structure = structure.best(*problem.of(item)) if not isinstance(structure, Custom) else None
            code = item_structure if item_structure is not None else torch.zeros(length_of(structure, problem))
            code = code.to(torch.uint8 if isinstance(structure, Custom) else torch.int32)
            yield [code] if where == "topk" else ([code], torch.ones(1, dtype=torch.float64), math.nan, 0)
            continue
        with named(structure, problem, where, item):
            yield one(item)


def length_of(structure: Structure, problem: Problem) -> int:
    """Of a code."""
    if not isinstance(structure, Custom):
        return problem.unary.shape[1]
    return sum(math.prod(each.shape[1:]) for each in (problem.unary, problem.extra) if each is not None)


@contextmanager
def named(structure: Structure, problem: Problem, where: str, item: int) -> Iterator[None]:
    """Errors of a user's oracle say for which item."""
    try:
        yield
    except Exception as error:
        if not isinstance(structure, Custom):
            raise
        at = torch.unravel_index(torch.tensor(item), problem.batch) if problem.batch else ()
        which = f"item {tuple(int(i) for i in at) if len(at) != 1 else int(at[0])}"
        if isinstance(error, ValueError):
            raise ValueError(f"{where}, {which}: {error}") from error
        raise RuntimeError(f"{where}: the oracle of {structure} raised for {which}: {error!r}") from error
