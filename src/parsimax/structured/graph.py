"""LP-SparseMAP: binary variables under many overlapping factors, with marginals that agree on every variable."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..engine.arguments import is_number
from ..engine.precision import in_float64
from .active_set import Limits
from .closed import nearest
from .custom import Custom
from .dense import Dense
from .distribution import projected
from .factors import Factor, State, Xor
from .labels import Chain, OneOf
from .solving import kernels_serve, solve
from .sparsemap import _count
from .structure import Problem, Structure, _kind_of

RELAX = 1.6  # over-relaxation of the alternating steps
BALANCE, SETTLED = 10, 1000  # the step size is balanced every so many iterations, and fixed after so many
ops = torch.ops.parsimax


@dataclass(frozen=True)
class Relaxation:
    """What :meth:`FactorGraph.solve` returns.

    Attributes:
        marginals: the shape of the scores, differentiable by them and by the extra scores.
        residual: the shape of the batch: by how much factors and variables still disagree, at most.
        iterations: steps taken, of the item that took most.
    """

    marginals: Tensor
    residual: Tensor
    iterations: int


class StructureFactor(Factor):
    """Any structure as a factor: its parts are variables."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure

    @property
    def extra(self) -> bool:  # type: ignore[override]
        structure = self.structure
        return isinstance(structure, Chain | Dense) or (
            isinstance(structure, Custom) and structure.extra_dims is not None
        )

    def extra_shape(self, parts: tuple[int, ...], given: tuple[int, ...]) -> tuple[int, ...]:
        """What the extra scores of one place are, where its parts are so many."""
        if isinstance(self.structure, Custom):
            assert self.structure.extra_dims is not None
            return given[-self.structure.extra_dims :]
        if isinstance(self.structure, Dense):
            return (2,) * parts[0]
        return parts[0] - 1, parts[1], parts[1]

    def problem(self, v: Tensor, extra: Tensor | None) -> Problem:
        structure, parts = self.structure, v.shape[2:]
        scores = structure.unpenalised(v.reshape(-1, *parts))
        if extra is None:
            return structure.problem(scores, "FactorGraph")
        return structure.problem((scores, extra.reshape(-1, *extra.shape[2:])), "FactorGraph")

    def project(self, v: Tensor, extra: Tensor | None) -> tuple[Tensor, State]:
        structure = self.structure
        if structure.separable:
            with torch.enable_grad():
                leaf = v.detach().requires_grad_()
                closed = nearest(structure, self.problem(leaf, None))[0].view(v.shape)
            return closed.detach(), (leaf, closed)
        problem = self.problem(v, extra)
        kernels = kernels_serve("sparsemap", structure, v)
        codes, weights, counts, _, _ = solve(structure, problem, Limits(1000, 2**62), None, kernels)
        example = torch.repeat_interleave(torch.arange(problem.items), counts)
        u = structure.marginals(codes, example, weights, problem).view(v.shape)
        return u, (problem, codes, counts, example, kernels)

    def _weights(self, state: State, d: Tensor) -> Tensor:
        """How the weights of the active structures move when the marginals do."""
        problem, codes, counts, example, kernels = state
        zero = replace(problem, unary=d.reshape(problem.unary.shape), extra=None)
        by_part = self.structure.score_of_parts(codes, example, zero)
        if kernels:
            moved: Tensor = ops._sparsemap_grad(codes, counts, by_part)
            return moved
        return projected(self.structure.incidence(codes, problem), counts, by_part)

    def tangent(self, state: State, d: Tensor) -> Tensor:
        if self.structure.separable:
            leaf, closed = state
            moved: Tensor = torch.autograd.grad(closed, leaf, d, retain_graph=True)[0]
            return moved
        problem, codes, _, example, _ = state
        return self.structure.marginals(codes, example, self._weights(state, d), problem).view(d.shape)

    def extra_gradient(self, state: State, d: Tensor) -> Tensor | None:
        problem, codes, _, example, _ = state
        if problem.extra is None:
            return None
        with torch.enable_grad():
            extra = problem.extra.detach().requires_grad_()
            score = self.structure.score(codes, example, replace(problem, extra=extra), problem.unary.detach())
            out: Tensor = torch.autograd.grad((score * self._weights(state, d)).sum(), extra)[0]
        return out.view(*d.shape[:2], *self.extra_shape(tuple(d.shape[2:]), tuple(out.shape[1:])))

    def __repr__(self) -> str:
        return repr(self.structure)


@dataclass(frozen=True)
class Placed:
    """A factor at F places: the variables there, which of them are negated, which places hold one at all."""

    factor: Factor
    index: Tensor  # (F, *parts)
    negated: Tensor
    valid: Tensor

    def gather(self, x: Tensor) -> Tensor:
        return torch.where(self.valid, x[:, self.index], 0.0)

    def scatter(self, values: Tensor, variables: int) -> Tensor:
        flat = torch.where(self.valid, values, 0.0).flatten(1)
        return flat.new_zeros(len(flat), variables).index_add(1, self.index.flatten(), flat)

    def flip(self, d: Tensor) -> Tensor:
        return torch.where(self.negated, -d, d)

    def project(self, v: Tensor, extra: Tensor | None) -> tuple[Tensor, State]:
        turned = torch.where(self.negated, 1 - v, v)
        u, state = self.factor.project(torch.where(self.valid, turned, -math.inf), extra)
        return torch.where(self.negated, 1 - u, u), state

    def tangent(self, state: State, d: Tensor) -> Tensor:
        return self.flip(self.factor.tangent(state, self.flip(d)))


class FactorGraph:
    r"""Binary variables under factors that overlap: logic, budgets, pairs, chains, trees.

    .. math:: \operatorname{argmax}_{\mu} \; \eta^\top \mu + \sum_f \eta_f^\top N_f p_f - \tfrac12 \|\mu\|^2
              \quad \text{s.t.} \quad \mu \text{ restricted to } f = M_f p_f, \; p_f \in \Delta

    The marginals are exact where one factor holds all, and else a relaxation (a linear program with a penalty) whose
    solution is unique and sparse. Here the score of a variable is η itself: alone it is on with probability clip(η).

    Args:
        variables: how many there are.

    Example:
        >>> import torch, parsimax
        >>> from parsimax.structured import Budget, FactorGraph, Xor
        >>> graph = FactorGraph(4).add(Xor(), [[0, 1], [2, 3]]).add(Budget(1), [0, 2])
        >>> graph.solve(torch.tensor([0.9, 0.1, 0.8, 0.4])).marginals
        tensor([0.6000, 0.4000, 0.4000, 0.6000])

    Reference: Niculae and Martins, LP-SparseMAP: differentiable relaxed optimization for sparse structured prediction,
    ICML 2020.
    """

    def __init__(self, variables: int) -> None:
        if not isinstance(variables, int) or isinstance(variables, bool) or variables < 1:
            raise ValueError(f"FactorGraph: variables is a whole number, 1 or more, got {variables!r}")
        self.variables = variables
        self.placed: list[Placed] = []

    def add(self, factor: Factor | Structure, variables: Any, *, negated: Any = None) -> FactorGraph:
        """Put a factor on variables, or on several groups of them at once.

        Args:
            factor: ``Xor``, ``AtMostOne``, ``Or``, ``Budget``, ``Knapsack``, ``OrOut``, ``Pair``, ``Dense``, or a
                structure.
            variables: their indices: (d,), or (groups, d). For a structure in the shape of its scores; −1 where a part
                is no variable and in no structure, as a word that is its own head.
            negated: boolean, in the same shape: which variables count as on when they are off.

        Returns:
            The graph itself.
        """
        if isinstance(factor, OneOf):
            factor = Xor()
        placed = StructureFactor(factor) if isinstance(factor, Structure) else factor
        if not isinstance(placed, Factor):
            raise TypeError(f"FactorGraph: a factor or a structure is wanted, got {factor!r}")
        index = torch.as_tensor(variables)
        dims = factor.dims if isinstance(factor, Structure) else 1
        whole = not (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool)
        if not whole or index.dim() not in (dims, dims + 1):
            raise ValueError(
                f"FactorGraph: the variables of {factor} are indices with {dims} or {dims + 1} dimensions, got "
                f"{tuple(index.shape)} of {index.dtype}"
            )
        index = index.long() if index.dim() == dims + 1 else index.long().unsqueeze(0)
        least = -1 if isinstance(factor, Structure) else 0
        if index.numel() and not bool(((index >= least) & (index < self.variables)).all()):
            raise ValueError(f"FactorGraph: there are variables 0 to {self.variables - 1}, got {index.tolist()}")
        if isinstance(factor, Structure):
            if isinstance(factor, Custom) and negated is not None:
                raise ValueError("FactorGraph: let the oracle of a custom structure negate its own parts")
            factor.check(torch.empty(index.shape, device="meta"), "FactorGraph")
        else:
            placed.check(index.shape[-1])
        mask = torch.zeros_like(index, dtype=torch.bool) if negated is None else torch.as_tensor(negated)
        if mask.dtype != torch.bool:
            raise TypeError(f"FactorGraph: negated is boolean, got {mask.dtype}")
        if mask.shape not in (index.shape, index.shape[1:]):
            raise ValueError(
                f"FactorGraph: negated has the shape of the variables, {tuple(index.shape)}, got {tuple(mask.shape)}"
            )
        self.placed.append(Placed(placed, index.clamp(min=0), mask.expand(index.shape), index >= 0))
        return self

    @in_float64
    def solve(self, scores: Tensor, *extras: Tensor, tolerance: float = 1e-8, max_iter: int = 10_000) -> Relaxation:
        """The marginals of all variables.

        Args:
            scores: (…, variables); any leading dimensions are items. −inf forbids a variable: it is exactly 0 with
                gradient 0, and if no choice of the others can do without it, the residual says so. Items with NaN or
                +inf are NaN.
            extras: one tensor for each factor with scores of its own, in the order of ``add``: for ``Pair`` it is
                (…, groups), for ``Chain`` (…, groups, positions − 1, labels, labels), for ``Dense`` (…, groups, 2, …,
                2), for ``Custom`` (…, groups, then its ``extra_dims``); without the leading dimensions it is shared.
                −inf forbids there, too.
            tolerance: by how much factors and variables may disagree.
            max_iter: of the alternating steps; what is reached then is in ``residual``.

        Returns:
            A :class:`~parsimax.structured.Relaxation`. Its gradient is by conjugate gradients on the active faces; it
            can be taken once.
        """
        n, wanted = self.variables, [p for p in self.placed if p.factor.extra]
        if not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.shape[-1:] != (n,):
            raise ValueError(f"FactorGraph: scores are (…, {n}) and floating point, got {_kind_of(scores)}")
        if scores.device.type != "cpu":
            raise ValueError(f"FactorGraph: scores are on the CPU, got {scores.device}")
        if not is_number(tolerance) or not tolerance > 0:
            raise ValueError(f"FactorGraph: tolerance is a number above 0, got {tolerance!r}")
        max_iter = _count(max_iter, "max_iter", "FactorGraph")
        if len(extras) != len(wanted):
            raise ValueError(f"FactorGraph: {len(wanted)} factors have scores of their own, got {len(extras)} tensors")
        degree = self.degree()
        if not bool((degree > 0).all()):
            raise ValueError(f"FactorGraph: no factor holds the variables {(degree == 0).nonzero()[:, 0].tolist()}")
        batch = scores.shape[:-1]
        eta = scores.double().reshape(math.prod(batch), n)
        own = [_batched(extra, p, batch, len(eta)) for extra, p in zip(extras, wanted, strict=True)]
        broken = ~(eta.detach() < math.inf).all(-1)
        bad = [~(extra.detach() < math.inf).flatten(1).all(-1) for extra in own]
        for each in bad:
            broken = broken | each
        clean = torch.where(broken[:, None], 0.0, eta)
        zeroed = [torch.where(broken.view(-1, *[1] * (extra.dim() - 1)), 0.0, extra) for extra in own]
        out: list[Any] = []
        mu: Tensor = _Solve.apply(self, out, tolerance, max_iter, clean, *zeroed)  # type: ignore[no-untyped-call]
        residual, iterations = out
        if bool(broken.any()):
            cause = eta.sum(-1)
            for given, extra, each in zip(extras, own, bad, strict=True):
                spoilt = broken if given.numel() == extra.numel() else each  # as in the problem of a structure
                cause = cause + torch.where(spoilt, extra.flatten(1).sum(-1), 0.0)
            mu = mu.index_put((broken.nonzero()[:, 0],), cause[broken][:, None] * math.nan)
            residual = torch.where(broken, math.nan, residual)
        return Relaxation(mu.to(scores.dtype).view(scores.shape), residual.view(batch), iterations)

    def degree(self) -> Tensor:
        """In how many places each variable is."""
        ones = torch.ones(1, 1, dtype=torch.float64)
        total = torch.zeros(1, self.variables, dtype=torch.float64)
        for p in self.placed:
            total = total + p.scatter(ones.view(1, *[1] * p.index.dim()).expand(1, *p.index.shape), self.variables)
        return total[0]

    def __repr__(self) -> str:
        places = ", ".join(f"{p.factor} at {len(p.index)}" for p in self.placed)
        return f"FactorGraph({self.variables}: {places})"


def _batched(extra: Tensor, placed: Placed, batch: tuple[int, ...], items: int) -> Tensor:
    if not isinstance(extra, Tensor) or not extra.is_floating_point():
        kind = extra.dtype if isinstance(extra, Tensor) else type(extra).__name__
        raise TypeError(f"FactorGraph: the scores of {placed.factor} are a floating point tensor, got {kind}")
    groups = len(placed.index)
    own: tuple[int, ...] = (groups,)
    if isinstance(placed.factor, StructureFactor):
        own = (groups, *placed.factor.extra_shape(tuple(placed.index.shape[1:]), tuple(extra.shape)))
    if tuple(extra.shape) not in (own, (*batch, *own)):
        raise ValueError(
            f"FactorGraph: the scores of {placed.factor} are {own} or {(*batch, *own)}, got {tuple(extra.shape)}"
        )
    return extra.double().expand(*batch, *own).reshape(items, *own)


class _Solve(torch.autograd.Function):
    """The alternating directions forward; the projection onto the tangent space of the active faces backward."""

    @staticmethod
    def forward(
        ctx: Any, graph: FactorGraph, out: list[Any], tolerance: float, max_iter: int, eta: Tensor, *extras: Tensor
    ) -> Tensor:
        forbidden = eta == -math.inf
        mu, states, residual, iterations = alternate(graph, eta, extras, tolerance, max_iter, forbidden)
        out.extend((residual, iterations))
        ctx.graph, ctx.states = graph, states
        ctx.save_for_backward(forbidden, *extras)
        return mu

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        forbidden, *extras = ctx.saved_tensors
        d = into_the_faces(ctx.graph, ctx.states, g, forbidden)
        given = iter(extras)
        by_extra = []
        for p, state in zip(ctx.graph.placed, ctx.states, strict=True):
            if p.factor.extra:
                moved = p.factor.extra_gradient(state, p.flip(p.gather(d)))
                assert moved is not None
                by_extra.append(torch.where(next(given) == -math.inf, 0.0, moved))
        return None, None, None, None, d, *by_extra


def alternate(
    graph: FactorGraph, eta: Tensor, extras: tuple[Tensor, ...], tolerance: float, max_iter: int, forbidden: Tensor
) -> tuple[Tensor, list[State], Tensor, int]:
    """Alternating directions: each factor projects, the variables average, the disagreements add up."""
    n, degree = graph.variables, graph.degree()
    mu = eta.clamp(0, 1)
    gamma = torch.ones_like(eta[:, :1])
    scaled = [torch.zeros_like(p.gather(mu)) for p in graph.placed]  # the disagreements so far
    primal = torch.full_like(gamma, math.inf)
    states: list[State] = []
    answer, iteration = mu, 0
    while iteration < max_iter:
        iteration += 1
        states, total, moved, answer = [], torch.zeros_like(mu), [], torch.zeros_like(mu)
        given = iter(extras)
        primal = torch.zeros_like(gamma)
        for p, u in zip(graph.placed, scaled, strict=True):
            here = p.gather(mu)
            extra = next(given) if p.factor.extra else None
            weak = None if extra is None else extra / gamma.view(-1, *[1] * (extra.dim() - 1))
            m, state = p.project(here - u, weak)
            states.append(state)
            answer = answer + p.scatter(m, n)
            apart = torch.where(p.valid, m - here, 0.0)
            if apart.numel():  # no places, as in a grid without edges, disagree about nothing
                primal = torch.maximum(primal, apart.abs().flatten(1).amax(-1, keepdim=True))
            ahead = here + RELAX * apart + u
            moved.append(ahead)
            total = total + p.scatter(ahead, n)
        new = torch.where(forbidden, 0.0, (eta + gamma * total) / (1 + gamma * degree))
        scaled = [a - p.gather(new) for a, p in zip(moved, graph.placed, strict=True)]
        dual = (gamma * (new - mu)).abs().amax(-1, keepdim=True)
        mu = new
        if bool((torch.maximum(primal, dual) < tolerance).all()):
            break
        if iteration % BALANCE == 0 and iteration < SETTLED:
            change = torch.where(primal > 5 * dual, 2.0, torch.where(dual > 5 * primal, 0.5, 1.0))
            change = torch.where(torch.maximum(primal, dual) < tolerance, 1.0, change)
            gamma = gamma * change
            scaled = [u / change.view(-1, *[1] * (u.dim() - 1)) for u in scaled]
    # What the factors say, which is in their polytopes: exact zeros, where mu has numbers below the tolerance.
    return torch.where(forbidden, 0.0, answer / degree), states, primal[:, 0], iteration


def into_the_faces(graph: FactorGraph, states: list[State], g: Tensor, forbidden: Tensor, steps: int = 1000) -> Tensor:
    """The projection of g onto the directions that every active face has, by conjugate gradients."""

    def outside(x: Tensor) -> Tensor:
        total = torch.where(forbidden, x, 0.0)
        for p, state in zip(graph.placed, states, strict=True):
            d = p.gather(x)
            total = total + p.scatter(d - p.tangent(state, d), graph.variables)
        return total

    x, r = torch.zeros_like(g), outside(g)
    direction, square = r, (r * r).sum(-1, keepdim=True)
    enough = 1e-26 * (g * g).sum(-1, keepdim=True)
    for _ in range(steps):
        live = square > enough
        if not bool(live.any()):
            break
        along = outside(direction)
        bend = (direction * along).sum(-1, keepdim=True)
        step = torch.where(live & (bend > 0), square / bend.clamp(min=1e-300), 0.0)
        x, r = x + step * direction, r - step * along
        before, square = square, (r * r).sum(-1, keepdim=True)
        direction = r + torch.where(live, square / before.clamp(min=1e-300), 0.0) * direction
    return torch.where(forbidden, 0.0, g - x)
