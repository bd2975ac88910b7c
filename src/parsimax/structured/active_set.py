"""SparseMAP of one item by the active-set method in plain torch: the reference, and what runs for custom structures.

The kernel is kernels/cpu/active_set.h, which says why the Gram matrix is bordered and why there is a fixed direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .structure import Problem, Structure

TIE, DEPENDENT, SPENT = 1e-9, 1e-10, 1e-13
FACE, NEW, TILTS = 1e-9, 1e-6, (1e-6, 1e-8)


@dataclass(frozen=True)
class Limits:
    """When to stop: the tolerance of the gap is relative to the largest score, or to 1 if that is larger."""

    iterations: int
    support: int
    tolerance: float = 1e-11


@dataclass(frozen=True)
class Start:
    """Structures to begin with, and their weights."""

    codes: Tensor
    weights: Tensor
    counts: Tensor


def direction(parts: int) -> Tensor:
    """The same numbers as in the kernel: xorshift, in [−1/2, 1/2)."""
    x, mask, numbers = 88172645463325252, 2**64 - 1, []
    for _ in range(parts):
        x ^= (x << 13) & mask
        x ^= x >> 7
        x ^= (x << 17) & mask
        numbers.append((x >> 11) / 2**53 - 0.5)
    return torch.tensor(numbers, dtype=torch.float64)


class Active:
    """The active structures of one item and the quadratic program on them."""

    def __init__(self, structure: Structure, problem: Problem, item: int) -> None:
        unary, extra = problem.of(item)
        self.structure, self.unary, self.extra = structure, structure.penalised(unary), extra
        own = None if extra is None else extra[None]
        self.problem = replace(problem, unary=self.unary[None], extra=own)
        self.codes: list[Tensor] = []
        self.parts = torch.zeros(0, self.unary.numel(), dtype=torch.float64)
        self.theta = self.weights = torch.zeros(0, dtype=torch.float64)

    def best(self, scores: Tensor) -> Tensor:
        code = self.structure.best(scores, self.extra)
        if code is None:
            raise ValueError(
                "the oracle returned None, which says that nothing is allowed, after a structure under other finite "
                "scores of the same parts; what is allowed depends on the scores of -inf alone"
            )
        return code

    def describe(self, code: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of a code, and its score."""
        example = torch.zeros(1, dtype=torch.long)
        value = self.structure.score(code[None], example, self.problem, scores.view_as(self.unary)[None])
        return self.structure.incidence(code[None], self.problem)[0], value[0]

    def gram(self) -> Tensor:
        return self.parts @ self.parts.T + 1

    def keep(self, live: Tensor) -> None:
        self.codes = [code for code, alive in zip(self.codes, live.tolist(), strict=True) if alive]
        self.parts, self.theta, self.weights = self.parts[live], self.theta[live], self.weights[live]

    def add(self, code: Tensor, *, replacing: bool, dependent: float = DEPENDENT) -> bool:
        """Take a structure in; one that depends on the others pushes one of them out, or is left out itself."""
        parts, value = self.describe(code, self.unary)
        weight = torch.zeros((), dtype=torch.float64)
        if self.codes:
            products, own = self.parts @ parts + 1, parts @ parts + 1
            c = torch.linalg.solve(self.gram(), products)
            if bool(own - c @ products <= dependent * own):
                steps = torch.where(c > 1e-12, self.weights / c, math.inf)
                if not replacing or bool(steps.min() == math.inf):
                    return False
                weight = steps.min()
                self.weights = (self.weights - weight * c).clamp(min=0)
                live = torch.ones(len(c), dtype=torch.bool)
                live[steps.argmin()] = False
                self.keep(live)
        self.codes.append(code)
        self.parts = torch.cat([self.parts, parts[None]])
        self.theta = torch.cat([self.theta, value[None]])
        self.weights = torch.cat([self.weights, weight[None]])
        return True

    def advance(self) -> bool:
        """Towards the solution on the active structures, until a weight is spent; True if none is."""
        right = torch.stack([self.theta - self.theta[0], torch.ones_like(self.theta)], 1)
        by_theta, by_one = torch.linalg.solve(self.gram(), right).unbind(1)
        target = by_theta - by_one * (by_theta.sum() - 1) / by_one.sum()
        spent = target <= 0
        if len(self.codes) == 1 or not bool(spent.any()):
            self.weights = target
            return True
        fall = self.weights - target
        limit = torch.where(spent, torch.where(fall > 0, self.weights / fall, 0.0), math.inf)
        self.weights = (self.weights - limit.min() * fall).clamp(min=0)
        live = torch.ones(len(target), dtype=torch.bool)
        live[limit.argmin()] = False
        self.keep(live)
        return False

    def residual(self) -> Tensor:
        return self.unary - (self.weights @ self.parts).view_as(self.unary)

    def orthogonal(self, tilt: Tensor) -> Tensor:
        """The part of a direction that is orthogonal to all that the active structures span."""
        right = torch.stack([self.parts @ tilt, torch.ones_like(self.theta)], 1)
        solved: Tensor = torch.linalg.solve(self.gram(), right)
        by_tilt, by_one = solved.unbind(1)
        return tilt - (by_tilt - by_one * by_tilt.sum() / by_one.sum()) @ self.parts

    def gain(self, residual: Tensor, code: Tensor) -> float:
        """How much more a structure is worth than the answer."""
        here = torch.stack([self.describe(each, residual)[1] for each in self.codes])
        return float(self.describe(code, residual)[1] - self.weights @ here)


def solve_item(
    structure: Structure, problem: Problem, item: int, limits: Limits, start: Start | None, tilt: Tensor
) -> tuple[list[Tensor], Tensor, float, int]:
    """(codes, weights, gap, iterations); no codes if nothing is allowed.

    Codes of weight 0 complete the face for the derivative of the marginals.
    """
    active = Active(structure, problem, item)
    unary = active.unary
    first = structure.best(unary, active.extra)
    if first is None:
        return [], active.weights, 0.0, 0
    top = max(1.0, float(torch.where(unary.isfinite(), unary.abs(), 0.0).max()) if unary.numel() else 1.0)
    tolerance, tie = limits.tolerance * top, TIE * top
    if start is not None:
        _begin(active, start)
    if not active.codes:
        active.add(first, replacing=False)
        active.weights = torch.ones(1, dtype=torch.float64)
    gap, settled, iterations = math.inf, False, 0
    while iterations < limits.iterations:
        settled = active.advance()
        if settled:
            residual = active.residual()
            code = active.best(residual + tie * tilt.view_as(residual))
            gap = active.gain(residual, code)
            if gap <= max(tolerance, 4 * tie * float(active.parts.sum(1).max())):
                code = active.best(residual)
                gap = active.gain(residual, code)
            if gap < -100 * tolerance:
                raise ValueError(
                    f"the oracle returned a structure that scores {-gap:.3g} less than one that it returned before; it "
                    "must return the best"
                )
            known = any(torch.equal(code, each) for each in active.codes)
            if gap <= tolerance or known or len(active.codes) >= limits.support:
                break
            settled = False
            if not active.add(code, replacing=True):
                break
        iterations += 1
    active.weights = torch.where(active.weights < SPENT, 0.0, active.weights)
    if not settled:
        active.weights = active.weights / active.weights.sum()
        gap = active.gain(active.residual(), active.best(active.residual()))
    if not structure.separable and gap <= FACE * top:
        complete(active, top, tilt)
    return active.codes, active.weights, max(gap, 0.0), iterations


def complete(active: Active, top: float, tilt: Tensor) -> None:
    """Take in, with weight 0, what is missing of the face of all best structures: the kernel says why and how."""
    residual, turn, grew = active.residual(), 0, True
    while grew:
        turn, grew = turn + 1, False
        across = active.orthogonal(tilt.roll(-turn)).view_as(residual)
        for sign in (1, -1):
            for size in TILTS:
                code = active.best(residual + sign * size * top * across)
                if active.gain(residual, code) >= -FACE * top:
                    grew = active.add(code, replacing=False, dependent=NEW) or grew
                    break


def _begin(active: Active, start: Start) -> None:
    for code, weight in zip(start.codes, start.weights, strict=True):
        parts, value = active.describe(code, active.unary)
        allowed = bool(value > -math.inf) and not bool((active.unary.flatten()[parts > 0] == -math.inf).any())
        if float(weight) > 0 and allowed and active.add(code, replacing=False):
            active.weights[-1] = weight
    active.weights = active.weights / active.weights.sum()
