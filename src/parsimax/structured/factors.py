"""The factors of a :class:`FactorGraph`: constraints and scores on a few binary variables each.

A factor projects points v (…, variables) onto its polytope, the nearest point u for which its extra scores count, too.
``tangent`` is the derivative of that: the projection onto the directions in which u can move.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..mappings import budget_sparsemax, sparsemax
from .structure import MANY

EDGE = 1e-12
State = Any


class Factor:
    """One kind of constraint; the same object serves any number of places in a graph."""

    size: ClassVar[int | None] = None  # how many variables it takes, if that is fixed
    least: ClassVar[int] = 1
    extra: ClassVar[bool] = False  # whether it has a score of its own

    def check(self, size: int) -> None:
        if (self.size is not None and size != self.size) or size < self.least:
            wanted = self.size if self.size is not None else f"{self.least} or more"
            raise ValueError(f"FactorGraph: {self} takes {wanted} variables, got {size}")

    def project(self, v: Tensor, extra: Tensor | None) -> tuple[Tensor, State]:
        raise NotImplementedError

    def tangent(self, state: State, d: Tensor) -> Tensor:
        raise NotImplementedError

    def extra_gradient(self, state: State, d: Tensor) -> Tensor | None:
        """How the extra part moves when the marginals move by d."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _inside(u: Tensor) -> Tensor:
    return (u > EDGE) & (u < 1 - EDGE)


def _without(d: Tensor, live: Tensor, binding: Tensor, w: Tensor | float = 1.0) -> Tensor:
    """The part of d on the live entries; where the constraint binds, the part of that orthogonal to w."""
    d, w = torch.where(live, d, 0.0), torch.where(live, w, torch.zeros_like(d))
    share = (w * d).sum(-1, keepdim=True) / (w * w).sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.where(binding, d - w * share, d)


class _Count(Factor):
    """Limits on a weighted count: clip first, and where a limit is broken it holds with equality."""

    def limited(self, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """(whether the limit binds (…, 1), the projection if it does)."""
        raise NotImplementedError

    def project(self, v: Tensor, extra: Tensor | None) -> tuple[Tensor, State]:
        u = v.clamp(0, 1)
        binding, equal = self.limited(v, u)
        u = torch.where(binding, equal, u)
        return u, (_inside(u), binding)

    def tangent(self, state: State, d: Tensor) -> Tensor:
        live, binding = state
        return _without(d, live, binding)


class Xor(_Count):
    """Exactly one of the variables is on."""

    def limited(self, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(v[..., :1], dtype=torch.bool), sparsemax(v)


class AtMostOne(_Count):
    """At most one of the variables is on."""

    def limited(self, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return u.sum(-1, keepdim=True) > 1, sparsemax(v)


class Or(_Count):
    """At least one of the variables is on."""

    def limited(self, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return u.sum(-1, keepdim=True) < 1, sparsemax(v)


class Budget(_Count):
    """At most so many of the variables are on."""

    def __init__(self, at_most: int) -> None:
        if not isinstance(at_most, int) or isinstance(at_most, bool) or at_most < 0:
            raise ValueError(f"Budget: at_most is a whole number, 0 or more, got {at_most!r}")
        self.at_most = min(at_most, MANY)

    def limited(self, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return u.sum(-1, keepdim=True) > self.at_most, budget_sparsemax(v, float(self.at_most))

    def __repr__(self) -> str:
        return f"Budget({self.at_most})"


class Knapsack(Factor):
    """The costs of the variables that are on are at most a capacity: in expectation, as the marginals are relaxed."""

    def __init__(self, costs: Tensor | list[float], capacity: float) -> None:
        self.costs = torch.as_tensor(costs, dtype=torch.float64)
        if self.costs.dim() != 1 or not bool((self.costs >= 0).all()) or not bool(self.costs.isfinite().all()):
            raise ValueError(f"Knapsack: costs are a list of numbers, 0 or more, got {self.costs.tolist()}")
        if not capacity >= 0:
            raise ValueError(f"Knapsack: capacity is 0 or more, got {capacity!r}")
        self.capacity = float(capacity)

    def check(self, size: int) -> None:
        if size != len(self.costs):
            raise ValueError(f"FactorGraph: {self} takes {len(self.costs)} variables, got {size}")

    def project(self, v: Tensor, extra: Tensor | None) -> tuple[Tensor, State]:
        u = v.clamp(0, 1)
        over = (u * self.costs).sum(-1, keepdim=True) > self.capacity
        u = torch.where(over, on_plane(v, self.costs.expand_as(v), self.capacity), u)
        return u, (_inside(u), over)

    def tangent(self, state: State, d: Tensor) -> Tensor:
        live, binding = state
        return _without(d, live, binding, self.costs)

    def __repr__(self) -> str:
        return f"Knapsack({self.costs.tolist()}, {self.capacity:g})"


def on_plane(v: Tensor, w: Tensor, total: float) -> Tensor:
    """The nearest point to v with 0 ≤ u ≤ 1 and w·u = total: clip(v − τw), whose w·u falls with τ."""
    ends = torch.stack([v, v - 1]) / torch.where(w == 0, torch.inf, w)
    low, high = ends.amin((0, -1)).unsqueeze(-1) - 1, ends.amax((0, -1)).unsqueeze(-1) + 1
    for _ in range(64):
        middle = (low + high) / 2
        over = (w * (v - middle * w).clamp(0, 1)).sum(-1, keepdim=True) > total
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    live = _inside((v - high * w).clamp(0, 1))
    fixed = torch.where(live, 0.0, w * (v - high * w).clamp(0, 1)).sum(-1, keepdim=True)
    square = torch.where(live, w * w, 0.0).sum(-1, keepdim=True)
    exact = (torch.where(live, w * v, 0.0).sum(-1, keepdim=True) + fixed - total) / square.clamp(min=1e-300)
    return (v - torch.where(square > 0, exact, high) * w).clamp(0, 1)


class OrOut(Factor):
    """The last variable is on exactly if one of the others is."""

    least = 2

    def project(self, v: Tensor, extra: Tensor | None) -> tuple[Tensor, State]:
        u = v.clamp(0, 1)
        under = u[..., :-1].amax(-1, keepdim=True) > u[..., -1:]
        tied, cone = self.below_the_last(v)
        u = torch.where(under, cone.clamp(0, 1), u)
        tied = tied & under
        w = torch.ones_like(v)
        w[..., -1] = -1
        above = u[..., -1:] > u[..., :-1].sum(-1, keepdim=True) + EDGE
        u = torch.where(above, on_plane(v, w, 0.0), u)
        return u, (_inside(u), tied & ~above, above, w)

    @staticmethod
    def below_the_last(v: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest point in which no other exceeds the last: those that would share a mean with it."""
        others, order = v[..., :-1].sort(dim=-1, descending=True)
        counts = torch.arange(2, v.shape[-1] + 1, dtype=v.dtype, device=v.device)
        means = (others.cumsum(-1) + v[..., -1:]) / counts
        size = (others > torch.cat([v[..., -1:], means[..., :-1]], -1)).cumprod(-1).sum(-1, keepdim=True)
        mean = torch.cat([v[..., -1:], means], -1).gather(-1, size)
        joined = order.argsort(-1) < size
        tied = torch.cat([joined, size > 0], -1)
        return tied, torch.where(tied, mean, v)

    def tangent(self, state: State, d: Tensor) -> Tensor:
        live, tied, above, w = state
        alone = _without(d, live, above, w)
        share = torch.where(tied, d, 0.0).sum(-1, keepdim=True) / tied.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(tied, torch.where(live, share, 0.0), alone)


class Pair(Factor):
    """A score for two variables that are both on: an edge of an Ising model."""

    size = 2
    extra = True

    def project(self, v: Tensor, extra: Tensor | None) -> tuple[Tensor, State]:
        assert extra is not None
        # A negative score is a positive one with the second variable flipped: w z₁z₂ = w z₁ − w z₁(1 − z₂).
        flipped = extra < 0
        w = torch.minimum(extra.abs(), 2 + v.abs().sum(-1))  # a score beyond that, -inf too, changes no more
        a, b = torch.where(flipped, v[..., 0] - w, v[..., 0]), torch.where(flipped, 1 - v[..., 1], v[..., 1])
        first, second = a > b + w, b > a + w
        mean = ((a + b + w) / 2).clamp(0, 1)
        x = torch.where(first, a, torch.where(second, a + w, mean)).clamp(0, 1)
        y = torch.where(first, b + w, torch.where(second, b, mean)).clamp(0, 1)
        state = (_inside(x), _inside(y), first, ~first & ~second, flipped)
        return torch.stack([x, torch.where(flipped, 1 - y, y)], -1), state

    @staticmethod
    def _moved(state: State, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How x, y and their joint probability move, in terms of the flipped variable."""
        inside_x, inside_y, first, tied, flipped = state
        dx, dy = d[..., 0], torch.where(flipped, -d[..., 1], d[..., 1])
        mean = torch.where(inside_x & inside_y, (dx + dy) / 2, 0.0)
        dx, dy = torch.where(inside_x, dx, 0.0), torch.where(inside_y, dy, 0.0)
        joint = torch.where(tied, mean, torch.where(first, dy, dx))
        return torch.where(tied, mean, dx), torch.where(tied, mean, dy), joint

    def tangent(self, state: State, d: Tensor) -> Tensor:
        x, y, _ = self._moved(state, d)
        return torch.stack([x, torch.where(state[-1], -y, y)], -1)

    def extra_gradient(self, state: State, d: Tensor) -> Tensor:
        x, _, joint = self._moved(state, d)
        return torch.where(state[-1], x - joint, joint)
