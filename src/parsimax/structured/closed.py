"""SparseMAP of independent variables in closed form: marginals by a projection, then few structures that have them.

Each rule reads the distribution as one structure z(v) for every v in [0, 1), a step function of v with as many steps as
there are fractional marginals, plus one. So the expectation of any loss is continuous and piecewise linear in the
marginals, and its gradient integrates to its change, which the choice of an active set does not grant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..mappings import budget_sparsemax, sparsemax
from .bits import Bits
from .distribution import Distribution, assemble
from .labels import OneOf
from .structure import Problem, Structure

# Breaks as near as that are one, times the sum that they are the remainder of: those of equal scores differ by its
# rounding, and so do from 0 or 1 those that a limit puts there.
TIE = {torch.float64: 1e-12, torch.float32: 1e-5}
Ragged = tuple[Tensor, Tensor, Tensor]  # codes, weights, counts


def nearest(structure: Structure, problem: Problem) -> tuple[Tensor, Tensor]:
    """(marginals, differentiable and 0 where nothing is allowed; where something is) of a separable structure."""
    if isinstance(structure, Bits):
        s, (low, high) = structure.penalised(problem.unary), structure.limits
        possible = (s.detach() > -math.inf).sum(-1) >= low
        return torch.where(possible[:, None], _clipped(s, low, min(high, s.shape[-1])), 0.0), possible
    p = sparsemax(problem.unary)
    possible = (p.detach() > 0).any(-1)
    if isinstance(structure, OneOf):
        return p, possible
    possible = possible.all(-1)
    return torch.where(possible[:, None, None], p, 0.0), possible


def in_closed_form(structure: Structure, problem: Problem, rule: str, shuffle: bool) -> Distribution:
    """The distribution by one of the rules of the structure, with the gap of its marginals."""
    u, possible = nearest(structure, problem)
    if isinstance(structure, Bits):
        return _bits(structure, problem, u, possible, rule, shuffle)
    residual = problem.unary.detach() - u.detach()
    gap = residual.amax(-1) - _inner(u.detach(), residual)
    if isinstance(structure, OneOf):
        return assemble(structure, problem, *_one_of(u), torch.where(possible, gap, 0.0), marginals=u)
    return assemble(structure, problem, *quantile(u, possible), torch.where(possible, gap.sum(-1), 0.0), marginals=u)


def _inner(u: Tensor, r: Tensor) -> Tensor:
    return torch.where(u > 0, u * r, 0.0).sum(-1)


def _bits(structure: Bits, problem: Problem, u: Tensor, possible: Tensor, rule: str, shuffle: bool) -> Distribution:
    (low, high), n = structure.limits, u.shape[-1]
    residual = structure.penalised(problem.unary).detach() - u.detach()
    best = _best_value(residual, low, min(high, n))
    gap = torch.where(possible, (best - _inner(u.detach(), residual)).clamp(min=0), 0.0)
    if rule == "staircase":
        found = staircase(u, possible)
    elif shuffle:
        order = torch.randperm(n, device=u.device)
        codes, weights, counts = systematic(u[:, order], possible)
        found = codes[:, order.argsort()], weights, counts
    else:
        found = systematic(u, possible)
    return assemble(structure, problem, *found, structure.gap_scale * gap, marginals=u)


def _best_value(residual: Tensor, low: int, high: int) -> Tensor:
    """Of all bit vectors with so many bits on."""
    if low == 0 and high == residual.shape[-1]:
        return residual.clamp(min=0).sum(-1)
    sums = residual.sort(dim=-1, descending=True).values.cumsum(-1)
    return torch.nn.functional.pad(sums, (1, 0))[:, low : high + 1].amax(-1)


def _clipped(s: Tensor, low: int, high: int) -> Tensor:
    """The nearest point to s with 0 ≤ u ≤ 1 and low ≤ Σu ≤ high: a limit that is broken holds with equality."""
    u = s.clamp(0, 1)
    if low == 0 and high == s.shape[-1]:
        return u
    if low == high:
        return budget_sparsemax(s, float(low))
    total = u.detach().sum(-1, keepdim=True)
    bound = torch.where(total > high, float(high), float(low)).to(s)
    return torch.where((total > high) | (total < low), budget_sparsemax(s, bound), u)


@dataclass(frozen=True)
class Steps:
    """Those between 0, sorted breaks and 1, of all items: where each is, how long, and how many an item has."""

    item: Tensor
    step: Tensor
    ends: Tensor  # (items, breaks + 2)
    lengths: Tensor
    counts: Tensor

    @property
    def middle(self) -> Tensor:
        return (self.ends[self.item, self.step] + self.ends[self.item, self.step + 1]) / 2


def _steps(breaks: Tensor, possible: Tensor, total: Tensor | float = 1.0) -> Steps:
    """The steps that sorted breaks leave, differentiable in length.

    Breaks that tie move as one, by their mean: each by itself would open a step whose structure nobody has evaluated,
    so the others would answer for its loss, and even a constant loss would have a gradient.
    """
    whole = breaks.new_ones(len(breaks), 1)
    ends = torch.cat([whole - 1, breaks, whole], 1)
    fixed = ends.detach()
    ends = torch.where((fixed > 0) & (fixed < 1), ends, fixed)  # what is at 0 or 1 has no step before or after it
    apart = fixed.diff(dim=-1) > TIE[fixed.dtype] * total
    if bool((~apart & (fixed[:, 1:] > 0) & (fixed[:, :-1] < 1)).any()):
        ends = _merged(ends, torch.nn.functional.pad(apart.cumsum(-1), (1, 0)))
    keep = apart & possible[:, None]
    item, step = keep.nonzero(as_tuple=True)
    return Steps(item, step, fixed, ends.diff(dim=-1)[item, step], keep.sum(-1))


def _merged(ends: Tensor, run: Tensor) -> Tensor:
    """The mean of each run; the runs of 0 and of 1 are these."""
    total = torch.zeros_like(ends).scatter_add(-1, run, ends)
    mean = total / torch.zeros_like(ends.detach()).scatter_add(-1, run, torch.ones_like(ends.detach())).clamp(min=1)
    return torch.where(run == run[:, -1:], 1.0, torch.where(run == 0, 0.0, mean.gather(-1, run)))


def _one_of(p: Tensor) -> Ragged:
    keep = p.detach() > 0
    item, code = keep.nonzero(as_tuple=True)
    return code, p[item, code], keep.sum(-1)


def staircase(u: Tensor, possible: Tensor) -> Ragged:
    """Bit i is on where v < u_i: nested sets. The expectation of a loss is its Lovász extension."""
    level, order = u.sort(dim=-1, descending=True, stable=True)
    exact = torch.float32 if u.shape[-1] < 2**24 else torch.float64  # the dtype of most scores: compared in place
    places = torch.arange(u.shape[-1], dtype=exact, device=u.device).expand_as(order)
    rank = torch.empty(order.shape, dtype=exact, device=u.device).scatter_(-1, order, places)
    steps = _steps(1 - level, possible)
    return rank.index_select(0, steps.item).lt_(steps.step[:, None].to(exact)), steps.lengths, steps.counts


def systematic(u: Tensor, possible: Tensor) -> Ragged:
    """Points v, v + 1, v + 2, … on the line of cumulated marginals choose the bits.

    Every structure has the floor or the ceiling of the sum of the marginals, so that it keeps any limit they keep.
    """
    fixed = u.detach()
    fractional = (fixed > 0) & (fixed < 1)
    line = torch.where(fractional, u, 0.0).cumsum(-1)
    ends = line.detach()
    breaks = torch.where(fractional, line - ends.floor(), 0.0).sort(-1).values
    starts = torch.nn.functional.pad(ends, (1, 0))[:, :-1]
    steps = _steps(breaks, possible, fixed.sum(-1, keepdim=True).clamp(min=1))
    item, at = steps.item, steps.middle[:, None]
    on = (ends[item] - at).floor() > (starts[item] - at).floor()
    return torch.where(fractional[item], on, fixed[item] >= 1), steps.lengths, steps.counts


def quantile(p: Tensor, possible: Tensor) -> Ragged:
    """Variable d takes the label in whose interval of cumulated probability v lies."""
    edges = p.cumsum(-1)[..., :-1].clamp(max=1.0)
    fixed = edges.detach()
    last = (p.detach() > 0).flip(-1).long().argmax(-1, keepdim=True)  # labels after the last that is possible
    inside = (fixed > 0) & (torch.arange(p.shape[-1] - 1, 0, -1, device=p.device) > last)
    breaks = torch.where(inside, edges, 0.0).flatten(1).sort(-1).values
    steps = _steps(breaks, possible)
    item = steps.item
    passed = (fixed[item] < steps.middle[:, None, None]) & inside[item]
    first = (p.detach() > 0).long().argmax(-1)[item]
    # Labels of probability 0 lie on an edge that is another's: pass over them to the next that is possible.
    index = torch.where(passed, torch.arange(1, p.shape[-1], device=p.device), 0)
    base = torch.maximum(index.amax(-1) if index.shape[-1] else first, first)
    live = p.detach()[item] > 0
    choice = live & (torch.arange(p.shape[-1], device=p.device) >= base[..., None])
    return choice.long().argmax(-1).int(), steps.lengths, steps.counts
