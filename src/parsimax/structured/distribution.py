"""A sparse distribution over structures: what :func:`sparsemap` and :func:`topk` return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .structure import Problem, Structure

ops = torch.ops.parsimax


@dataclass(frozen=True)
class Distribution:
    """The structures with a probability above zero, and what they add up to. One row a pair of an item and a structure.

    Attributes:
        structures: (pairs, …), the pairs of an item one after the other.
        probabilities: (pairs,), above 0 before they are rounded; those of an item sum to 1. Differentiable.
        marginals: the shape of the scores: how probable each part is. Differentiable.
        counts: the shape of the batch: how many structures an item has.
        gap: the shape of the batch, float64 (float32 on devices without it): the certificate. How much the best of
            *all* structures gains over the answer, to first order, which bounds how far its objective is from the
            optimum. 0 up to rounding is a proof.
        iterations: the shape of the batch: steps of the active set, 0 for closed forms.

    Example:
        >>> import torch, parsimax
        >>> found = parsimax.sparsemap(torch.tensor([[0.3, 0.0], [5.0, 0.0]]), parsimax.structured.OneOf())
        >>> found.example, found.structures, found.probabilities
        (tensor([0, 0, 1]), tensor([0, 1, 0]), tensor([0.6500, 0.3500, 1.0000]))
        >>> found.expectation(torch.tensor([1.0, 2.0, 3.0]))  # of a number for each pair
        tensor([1.3500, 3.0000])
    """

    structures: Tensor
    probabilities: Tensor
    marginals: Tensor
    counts: Tensor
    gap: Tensor
    iterations: Tensor

    @property
    def example(self) -> Tensor:
        """(pairs,): the item of each pair, counted through the batch."""
        counts = self.counts.flatten()
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)

    def expectation(self, values: Tensor) -> Tensor:
        """The expectation of (pairs,) values for each item, in the shape of the batch."""
        if values.shape != self.probabilities.shape:
            raise ValueError(
                f"expectation: one value a pair is {tuple(self.probabilities.shape)}, got {tuple(values.shape)}"
            )
        shares = self.probabilities * values
        return shares.new_zeros(self.counts.numel()).index_add(0, self.example, shares).view(self.counts.shape)

    def entropy(self) -> Tensor:
        """−Σ p log p of each item, exact and differentiable."""
        p = self.probabilities
        # A probability that was rounded to 0 has no share, and the logarithm of a tiny number in the gradient.
        some = torch.where(p == 0, torch.finfo(p.dtype).tiny, p).to(torch.promote_types(p.dtype, torch.float32))
        return self.expectation(-some.log()).to(p.dtype)


def assemble(
    structure: Structure,
    problem: Problem,
    codes: Tensor,
    weights: Tensor,
    counts: Tensor,
    gap: Tensor,
    iterations: Tensor | None = None,
    marginals: Tensor | None = None,
) -> Distribution:
    """The result in the shapes and types of the caller; items with NaN in their scores are NaN."""
    items = torch.arange(problem.items, device=counts.device)
    example = torch.repeat_interleave(items, counts)
    if marginals is None:
        marginals = structure.marginals(codes, example, weights, problem)
    if bool(problem.broken.any()):
        weights = weights + problem.spoil[example]
        marginals = marginals + problem.spoil.view(-1, *[1] * (marginals.dim() - 1))
        gap = torch.where(problem.broken, math.nan, gap)
    steps = torch.zeros_like(counts) if iterations is None else iterations
    return Distribution(
        structure.decode(codes, problem),
        weights.to(problem.dtype),
        marginals.to(problem.dtype).view(*problem.batch, *marginals.shape[1:]),
        counts.view(problem.batch),
        gap.view(problem.batch),
        steps.view(problem.batch),
    )


class Weights(torch.autograd.Function):
    """The weights of active structures as a function of their scores: the solution of a quadratic program on them."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, weights: Tensor, codes: Tensor, counts: Tensor, incidence: Any) -> Tensor:
        ctx.save_for_backward(codes, counts)
        ctx.incidence = incidence
        return weights.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:
        codes, counts = ctx.saved_tensors
        return Projection.apply(g, codes, counts, ctx.incidence), None, None, None, None  # type: ignore[no-untyped-call]


class Projection(torch.autograd.Function):
    """Q g with Q = Z − Z11ᵀZ / 1ᵀZ1, Z = (MᵀM)⁻¹: linear and symmetric, so it is its own derivative."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, codes: Tensor, counts: Tensor, incidence: Any) -> Tensor:
        ctx.save_for_backward(codes, counts)
        ctx.incidence = incidence
        if incidence is None:
            out: Tensor = ops._sparsemap_grad(codes, counts, g.contiguous())
            return out
        return projected(incidence(codes), counts, g)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor, None, None, None]:
        codes, counts = ctx.saved_tensors
        return Projection.apply(gg, codes, counts, ctx.incidence), None, None, None  # type: ignore[no-untyped-call]


def projected(parts: Tensor, counts: Tensor, g: Tensor) -> Tensor:
    """The same in plain torch, from the (pairs, parts) of 0 and 1."""
    if not len(parts):
        return g.clone()
    most = int(counts.max())
    live = torch.arange(most, device=counts.device) < counts[:, None]
    padded = parts.new_zeros(len(counts), most, parts.shape[1])
    padded[live] = parts
    gram = torch.where(live[:, :, None] & live[:, None, :], padded @ padded.mT + 1, torch.eye(most).to(parts))
    right = torch.stack([parts.new_zeros(live.shape).masked_scatter(live, g), live.to(parts)], -1)
    factor, failed = torch.linalg.cholesky_ex(gram)
    solved: Tensor = torch.cholesky_solve(right, factor)
    if bool(failed.any()):  # structures that depend on each other up to rounding
        solved = torch.linalg.pinv(gram, hermitian=True) @ right
    by_g, by_one = solved.unbind(-1)
    total = by_one.sum(1, keepdim=True)
    q = by_g - by_one * by_g.sum(1, keepdim=True) / torch.where(total > 0, total, 1)
    return q[live]
