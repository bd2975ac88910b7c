"""Estimates from samples of the softmax over structures."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..structured import Bits, OneOf, OneOfEach, Structure, sparsemap, topk
from ..structured.sparsemap import _count
from ..structured.structure import LabelStructure, Scores
from . import gibbs
from .expected import Expected, LossOf, evaluate
from .items import Items
from .marginalisers import Method

BASELINES = ("mean", "second-sample", "leave-one-out")
LEAST = 1e-12  # a mass of the rest below that is rounding


class ScoreFunction(Method):
    """The score-function estimator (REINFORCE): unbiased, one call a sample.

    Args:
        baseline: what is subtracted from the loss in the gradient, to lower its variance. None; ``"mean"``, a running
            mean of the losses; ``"second-sample"``, the loss of an independent second sample (SFE+);
            ``"leave-one-out"``, the mean of the other samples; or a module from the ``context`` to (batch,) numbers
            (NVIL), trained by adding ``out.baseline_loss`` to the objective.
        samples: how many, at least 2 for ``"leave-one-out"``.

    Example:
        >>> import torch, parsimax
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> scores = torch.zeros(2, 3, requires_grad=True)
        >>> method = parsimax.latent.ScoreFunction("second-sample")
        >>> out = parsimax.expected_loss(scores, lambda example, z: z.float(), method)
        >>> out.calls
        tensor([2, 2])
    """

    mean: Tensor
    seen: Tensor

    def __init__(self, baseline: str | nn.Module | None = None, *, samples: int | None = None) -> None:
        super().__init__()
        if baseline is not None and baseline not in BASELINES and not isinstance(baseline, nn.Module):
            raise ValueError(f"ScoreFunction: baseline is None, {', '.join(BASELINES)} or a module, got {baseline!r}")
        least = 2 if baseline == "leave-one-out" else 1
        samples = least if samples is None else samples
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < least:
            raise ValueError(f"ScoreFunction: samples is a whole number, {least} or more here, got {samples!r}")
        self.network = baseline if isinstance(baseline, nn.Module) else None
        self.kind = "network" if self.network is not None else baseline
        self.samples = samples
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        own = gibbs.of(structure, scores)
        items, total = own.items, self.samples + int(self.kind == "second-sample")
        row, codes = items.local(total), own.sample(total)
        example, z = items.rows[row], own.decode(codes, row)
        flat, metrics = evaluate(loss_of, example, z, chunk)
        losses = flat.view(-1, total)
        used, fixed = losses[:, : self.samples], losses.detach()
        baseline, training_loss = self.baseline(fixed, context, items)
        log_p = own.log_prob(codes, row).view_as(losses)[:, : self.samples]
        surrogate = (fixed[:, : self.samples] - baseline) * (log_p - log_p.detach())  # 0, with the gradient
        weights = torch.zeros_like(fixed)
        weights[:, : self.samples] = 1 / self.samples
        weights = weights.flatten()
        return Expected(
            loss=items.back((used + surrogate.to(used)).mean(1)),
            entropy=items.back(own.entropy()).to(losses),
            calls=items.back(torch.full_like(items.rows, total)),
            example=example,
            z=z,
            weights=weights,
            losses=fixed.flatten(),
            metrics={name: items.summed(weights * v.detach().to(weights), row) for name, v in metrics.items()},
            baseline_loss=training_loss,
        )

    def baseline(self, losses: Tensor, context: Tensor | None, items: Items) -> tuple[Tensor | float, Tensor | float]:
        """What to subtract, and what trains it: items whose scores are broken do not."""
        if self.kind == "second-sample":
            return losses[:, -1:], 0.0
        if self.kind == "leave-one-out":
            return (losses.sum(1, keepdim=True) - losses) / (losses.shape[1] - 1), 0.0
        told = losses[items.clean]
        if self.kind == "mean":
            before = self.mean.clone()
            if self.training and len(told):
                self.seen += 1
                self.mean += (told.mean() - self.mean) / self.seen
            return before, 0.0
        if self.network is not None:
            if context is None:
                raise ValueError("expected_loss: a network as baseline reads the context; pass context=...")
            predicted = self.network(context[items.rows[items.clean]])
            if predicted.numel() != len(told):
                raise ValueError(
                    f"expected_loss: a baseline network gives one number an example, ({len(told)},), got "
                    f"{tuple(predicted.shape)}"
                )
            predicted = predicted.view(len(told), 1)
            subtracted = losses.new_zeros(len(losses), 1)
            subtracted[items.clean] = predicted.detach().to(losses)
            return subtracted, F.mse_loss(predicted.expand_as(told), told) if len(told) else 0.0
        return 0.0, 0.0

    def extra_repr(self) -> str:
        return f"baseline={self.kind}, samples={self.samples}"


class Gumbel(Method):
    """One relaxed sample, differentiated through: low variance, and biased.

    ``loss_of`` gets vectors: of one-of-n a point of the simplex, of bits numbers between 0 and 1, of other structures
    the marginals of their parts. For one-of-n, independent labels and bits without limits these are the concrete
    distributions. The others perturb and solve: noise is added to the scores of the parts, and the sample is the
    SparseMAP of that, or with ``hard`` the best structure with the gradient of the SparseMAP. The entropy is that of
    the softmax over structures, which perturbed ones do not follow exactly; it is NaN where that has no normaliser.

    Args:
        temperature: of the relaxation; an attribute, so that a schedule can lower it.
        hard: whether the loss sees a one-hot vector or whole bits, with the gradient of the relaxed one
            (straight-through).

    Example:
        >>> import torch, parsimax
        >>> scores = torch.zeros(2, 3, requires_grad=True)
        >>> method = parsimax.latent.Gumbel(temperature=0.5, hard=True)
        >>> out = parsimax.expected_loss(scores, lambda example, z: (z * torch.arange(3)).sum(-1), method)
        >>> out.z.shape, out.calls
        (torch.Size([2, 3]), tensor([1, 1]))
    """

    def __init__(self, temperature: float = 1.0, *, hard: bool = False) -> None:
        super().__init__()
        given: object = temperature
        if not isinstance(given, Real) or isinstance(given, bool) or not 0 < temperature < math.inf:
            raise ValueError(f"Gumbel: temperature is a finite number above 0, got {temperature!r}")
        if not isinstance(hard, bool):
            raise TypeError(f"Gumbel: hard is True or False, got {hard!r}")
        self.temperature, self.hard = temperature, hard

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        items, z, entropy = self.drawn(scores, structure)
        losses, metrics = evaluate(loss_of, items.rows, z, chunk)
        return Expected(
            loss=items.back(losses),
            entropy=entropy.to(losses),
            calls=items.back(torch.ones_like(items.rows)),
            example=items.rows,
            z=z.detach(),
            weights=torch.ones_like(losses.detach()),
            losses=losses.detach(),
            metrics={name: items.back(values.detach().to(losses)) for name, values in metrics.items()},
        )

    def drawn(self, scores: Scores, structure: Structure) -> tuple[Items, Tensor, Tensor]:
        """The items that allow something, a vector for each, and the entropy of all."""
        problem = structure.problem(scores, "expected_loss")
        free = isinstance(structure, Bits) and structure.rules[0] == "staircase"
        if free or isinstance(structure, (OneOf, OneOfEach)):
            own = gibbs.of(structure, scores)
            z = (_bits if free else F.gumbel_softmax)(own.part.unary, self.temperature, self.hard)
            return own.items, z.to(problem.dtype), own.items.back(own.entropy())
        noisy = (problem.unary + _noise(problem.unary, structure)) / self.temperature
        given = noisy if isinstance(scores, Tensor) else (noisy, scores[1] / self.temperature)
        found = sparsemap(given, structure)
        z, items = found.marginals, Items(structure, problem, found.counts > 0)
        if self.hard:
            z = topk(given, structure, 1).marginals.detach() + (z - z.detach())
        entropy = torch.full_like(problem.spoil, math.nan)
        if gibbs.has_normaliser(structure, problem):
            own = gibbs.of(structure, scores)
            entropy = own.items.back(own.entropy())
        return items, z[items.rows].to(problem.dtype), entropy

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, hard={self.hard}"


def _noise(scores: Tensor, structure: Structure) -> Tensor:
    """Gumbel's for labels, of which one is chosen; for parts that are on or off the difference of two."""
    first, second = (-torch.empty_like(scores).exponential_().log() for _ in range(2))
    return first if isinstance(structure, LabelStructure) else first - second


def _bits(scores: Tensor, temperature: float, hard: bool) -> Tensor:
    soft = torch.sigmoid((scores + _noise(scores, Bits())) / temperature)
    return (soft > 0.5).to(soft) + (soft - soft.detach()) if hard else soft


class SumAndSample(Method):
    """The k most probable z exactly, and one sample of the rest: unbiased, at most k + 1 calls.

    Args:
        k: how many are summed.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[9.0, 0.0, 0.0]], requires_grad=True)
        >>> out = parsimax.expected_loss(scores, lambda example, z: z.float(), parsimax.latent.SumAndSample(1))
        >>> out.calls, out.weights
        (tensor([2]), tensor([9.9975e-01, 2.4676e-04]))
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self.k = _count(k, "k", "SumAndSample")

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        if isinstance(structure, OneOf) and isinstance(scores, Tensor) and self.k >= scores.shape[-1]:
            raise ValueError(f"SumAndSample: k={self.k} leaves nothing to sample of {scores.shape[-1]}; take Marginal")
        own = gibbs.of(structure, scores)
        items = own.items
        codes, there = own.best(self.k + 1)
        more = there[:, self.k :].any(1)
        codes, there = codes[:, : self.k], there[:, : self.k]
        row, rank = there.nonzero(as_tuple=True)
        p = own.log_prob(codes[row, rank], row).detach().exp()
        mass = 1 - p.new_zeros(len(there)).index_add(0, row, p)
        more &= mass > LEAST
        codes = torch.cat([codes, own.sample(1, (codes, there)).unsqueeze(1).to(codes)], 1)
        row, rank = torch.cat([there, more.unsqueeze(1)], 1).nonzero(as_tuple=True)
        drawn, example, z = rank == there.shape[1], items.rows[row], own.decode(codes[row, rank], row)
        losses, metrics = evaluate(loss_of, example, z, chunk)
        log_p = own.log_prob(codes[row, rank], row)
        change = (log_p - log_p.detach()).to(losses)
        weights = torch.where(drawn, mass[row], log_p.detach().exp()).to(losses)
        # p ℓ of what is summed and mass · (ℓ + ℓ ∇log p) of the sample are one formula: ∇p = p ∇log p.
        return Expected(
            loss=items.summed(weights * (losses + losses.detach() * change), row),
            entropy=items.back(own.entropy()).to(losses),
            calls=items.summed(torch.ones_like(row), row),
            example=example,
            z=z,
            weights=weights,
            losses=losses.detach(),
            metrics={name: items.summed(weights * v.detach().to(weights), row) for name, v in metrics.items()},
        )

    def extra_repr(self) -> str:
        return str(self.k)
