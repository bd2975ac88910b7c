"""Estimates from samples of the softmax over structures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..structured import OneOf, Structure
from ..structured.structure import Scores
from . import gibbs
from .expected import Expected, LossOf, evaluate, summed
from .marginalisers import Method

BASELINES = ("mean", "second-sample", "leave-one-out")


def one_tensor(scores: Scores, method: str) -> Tensor:
    if not isinstance(scores, Tensor):
        raise TypeError(f"{method} takes scores that are one tensor, got a tuple of {len(scores)}")
    return scores


def repeated(scores: Tensor, times: int) -> tuple[Tensor, Tensor]:
    """Scores of every pair, and the example of each."""
    example = torch.arange(len(scores), device=scores.device).repeat_interleave(times)
    return scores.repeat_interleave(times, 0), example


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
        if isinstance(baseline, str) and baseline not in BASELINES:
            raise ValueError(f"ScoreFunction: baseline is None, {', '.join(BASELINES)} or a module, got {baseline!r}")
        least = 2 if baseline == "leave-one-out" else 1
        samples = least if samples is None else samples
        if not isinstance(samples, int) or samples < least:
            raise ValueError(f"ScoreFunction: samples is a whole number, {least} or more here, got {samples!r}")
        self.network = baseline if isinstance(baseline, nn.Module) else None
        self.kind = "network" if self.network is not None else baseline
        self.samples = samples
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        own = gibbs.of(structure, "ScoreFunction")
        scores = one_tensor(scores, "ScoreFunction")
        batch, extra = len(scores), int(self.kind == "second-sample")
        each, example = repeated(scores, self.samples + extra)
        z = own.sample(each)
        flat, metrics = evaluate(loss_of, example, z, chunk)
        losses = flat.view(batch, self.samples + extra)
        used, fixed = losses[:, : self.samples], losses.detach()
        baseline, training_loss = self.baseline(fixed, context)
        log_p = own.log_prob(each, z).view_as(losses)[:, : self.samples]
        surrogate = (fixed[:, : self.samples] - baseline) * (log_p - log_p.detach())  # 0, with the gradient
        weights = torch.zeros_like(fixed)
        weights[:, : self.samples] = 1 / self.samples
        weights = weights.flatten()
        return Expected(
            loss=(used + surrogate.to(used)).mean(1),
            entropy=own.entropy(scores),
            calls=torch.full((batch,), losses.shape[1], device=scores.device),
            example=example,
            z=z,
            weights=weights,
            losses=fixed.flatten(),
            metrics={name: summed(weights * v.detach().to(weights), example, batch) for name, v in metrics.items()},
            baseline_loss=training_loss,
        )

    def baseline(self, losses: Tensor, context: Tensor | None) -> tuple[Tensor | float, Tensor | float]:
        """What to subtract, and what trains it."""
        if self.kind == "second-sample":
            return losses[:, -1:], 0.0
        if self.kind == "leave-one-out":
            return (losses.sum(1, keepdim=True) - losses) / (losses.shape[1] - 1), 0.0
        if self.kind == "mean":
            before = self.mean.clone()
            if self.training:
                self.seen += 1
                self.mean += (losses.mean() - self.mean) / self.seen
            return before, 0.0
        if self.network is not None:
            if context is None:
                raise ValueError("expected_loss: a network as baseline reads the context; pass context=...")
            predicted = self.network(context).view(len(losses), 1)
            return predicted.detach(), F.mse_loss(predicted.expand_as(losses), losses)
        return 0.0, 0.0

    def extra_repr(self) -> str:
        return f"baseline={self.kind}, samples={self.samples}"


class Gumbel(Method):
    """One relaxed sample, differentiated through: low variance, and biased.

    ``loss_of`` gets vectors: of one-of-n a point of the simplex, of bits numbers between 0 and 1.

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
        if not temperature > 0:
            raise ValueError(f"Gumbel: temperature is above 0, got {temperature!r}")
        self.temperature, self.hard = temperature, hard

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        own = gibbs.of(structure, "Gumbel")
        scores = one_tensor(scores, "Gumbel")
        example = torch.arange(len(scores), device=scores.device)
        z = own.relaxed(scores, self.temperature, self.hard)
        losses, metrics = evaluate(loss_of, example, z, chunk)
        return Expected(
            loss=losses,
            entropy=own.entropy(scores),
            calls=torch.ones_like(example),
            example=example,
            z=z.detach(),
            weights=torch.ones_like(losses.detach()),
            losses=losses.detach(),
            metrics={name: values.detach() for name, values in metrics.items()},
        )

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, hard={self.hard}"


class SumAndSample(Method):
    """The k most probable z exactly, and one sample of the rest: unbiased, k + 1 calls. One-of-n only.

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
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ValueError(f"SumAndSample: k is a whole number, 1 or more, got {k!r}")
        self.k = k

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        if not isinstance(structure, OneOf):
            raise TypeError(f"SumAndSample takes one-of-n, got {structure}; TopK and SparseMAP take it")
        scores = one_tensor(scores, "SumAndSample")
        if self.k >= scores.shape[-1]:
            raise ValueError(f"SumAndSample: k={self.k} leaves nothing to sample of {scores.shape[-1]}; take Marginal")
        log_p = F.log_softmax(scores, -1)
        p = log_p.exp()
        top = p.detach().topk(self.k, -1).indices
        rest = p.detach().scatter(1, top, 0.0)
        mass = rest.sum(-1, keepdim=True)
        other = torch.ones_like(rest).scatter(1, top, 0.0)  # where nothing is left to sample, any that counts nothing
        sampled = torch.multinomial(torch.where(mass > 0, rest, other), 1)
        z = torch.cat([top, sampled], 1)
        batch = len(scores)
        example = torch.arange(batch, device=scores.device).repeat_interleave(self.k + 1)
        flat, metrics = evaluate(loss_of, example, z.flatten(), chunk)
        losses = flat.view(batch, self.k + 1)
        exact = (p.gather(1, top).to(losses) * losses[:, :-1]).sum(1)
        last, log_last = losses[:, -1], log_p.gather(1, sampled)[:, 0]
        change = torch.where(mass[:, 0] > 0, log_last - log_last.detach(), 0.0)
        weights = torch.cat([p.detach().gather(1, top), mass], 1).to(losses).flatten()
        return Expected(
            loss=exact + mass[:, 0].to(losses) * (last + last.detach() * change.to(losses)),
            entropy=gibbs.ONE_OF.entropy(scores),
            calls=torch.full((batch,), self.k + 1, device=scores.device),
            example=example,
            z=z.flatten(),
            weights=weights,
            losses=losses.detach().flatten(),
            metrics={name: summed(weights * v.detach().to(weights), example, batch) for name, v in metrics.items()},
        )

    def extra_repr(self) -> str:
        return str(self.k)
