"""What every method returns, and how the loss is called: once, on the pairs that the method needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..structured import Distribution

Losses = Tensor | tuple[Tensor, dict[str, Tensor]]
LossOf = Callable[[Tensor, Tensor], Losses]

BATCH_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LazyBatchNorm1d,  # these are none of the above before their first call
    nn.LazyBatchNorm2d,
    nn.LazyBatchNorm3d,
)


@dataclass(frozen=True)
class Expected:
    """An expected loss by some method. What :func:`expected_loss` returns.

    Attributes:
        loss: (batch,), the expectation or its estimate. Its gradient is the method's gradient.
        entropy: (batch,), of the distribution that the method uses; exact and differentiable.
        calls: (batch,), how many times the loss was evaluated for each example.
        example: (pairs,), which example a pair belongs to.
        z: (pairs, …), what the loss was called with.
        weights: (pairs,), how much a pair counts; of a marginaliser these are the probabilities, with their gradient.
        losses: (pairs,), detached.
        metrics: the expectations (batch,) of what the loss returned beside the losses, detached.
        certificate: (batch,) or None: the gap of :func:`~parsimax.sparsemap` or top-k; 0 where the answer is exact.
        baseline_loss: what trains a baseline network, to be added to the objective; 0 without one.

    Example:
        >>> import torch, parsimax
        >>> scores, table = torch.tensor([[1.0, 0.8, -2.0]]), torch.tensor([3.0, 5.0, 100.0])
        >>> out = parsimax.expected_loss(scores, lambda example, z: table[z], parsimax.latent.Marginal("sparsemax"))
        >>> out.loss, out.calls, out.z
        (tensor([3.8000]), tensor([2]), tensor([0, 1]))
    """

    loss: Tensor
    entropy: Tensor
    calls: Tensor
    example: Tensor
    z: Tensor
    weights: Tensor
    losses: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    certificate: Tensor | None = None
    baseline_loss: Tensor | float = 0.0

    def kl(self, log_prior: float | Tensor) -> Tensor:
        """(batch,): the divergence from a prior, given the log-probability of every z, or one a pair.

        A number is a uniform prior, and exact for every method. One a pair is exact for marginalisers; a method that
        samples has its gradient in the loss alone, so let ``loss_of`` subtract the log-prior instead.
        """
        if not isinstance(log_prior, Tensor) or not log_prior.dim():
            return -self.entropy - log_prior
        if log_prior.shape != self.weights.shape:
            raise ValueError(
                f"kl: the log-prior is a number, or one a pair, {tuple(self.weights.shape)}, got "
                f"{tuple(log_prior.shape)}"
            )
        sampled = self.certificate is None and not self.weights.requires_grad
        if sampled and self.loss.requires_grad and torch.is_grad_enabled():
            raise ValueError("kl: this method samples; subtract the log-prior in loss_of, or give one number for all z")
        prior = torch.zeros_like(self.entropy).index_add(0, self.example, self.weights * log_prior.to(self.weights))
        return -self.entropy - prior


def evaluate(loss_of: LossOf, example: Tensor, z: Tensor, chunk: int | None) -> tuple[Tensor, dict[str, Tensor]]:
    """(pairs,) losses and metrics in one call; with ``chunk`` in several, recomputed in the backward pass."""

    def call(example: Tensor, z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        out = loss_of(example, z)
        losses, metrics = out if isinstance(out, tuple) and len(out) == 2 else (out, {})
        if not isinstance(metrics, dict):
            raise TypeError(f"expected_loss: metrics are a dictionary beside the losses, got {type(metrics).__name__}")
        for name, values in {"losses": losses, **metrics}.items():
            if not isinstance(values, Tensor) or values.shape != example.shape:
                got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise ValueError(
                    f"expected_loss: loss_of must return one number a pair, {tuple(example.shape)}, got {got} as {name}"
                )
        if not losses.is_floating_point():
            raise TypeError(f"expected_loss: losses must be floating point, got {losses.dtype}")
        return losses, metrics

    with _watching_for_batch_norm():
        if chunk is None or len(example) <= chunk:
            return call(example, z)
        parts: list[Any] = [
            checkpoint(call, e, q, use_reentrant=False)
            for e, q in zip(example.split(chunk), z.split(chunk), strict=True)
        ]
    metrics = {name: torch.cat([part[1][name] for part in parts]) for name in parts[0][1]}
    return torch.cat([part[0] for part in parts]), metrics


@contextmanager
def _watching_for_batch_norm() -> Iterator[None]:
    """Batch statistics run over all pairs: the loss of one example then depends on the support of another."""
    seen: list[str] = []

    def look(module: nn.Module, _: Any) -> None:
        if isinstance(module, BATCH_NORMS) and not seen and (module.training or module.running_mean is None):
            seen.append(type(module).__name__)

    hook = nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        hook.remove()
    if seen:
        warnings.warn(
            f"expected_loss: {seen[0]} in loss_of takes its statistics over all pairs, so that the loss of an example "
            "depends on how many z others have; use a normalisation of each pair, or running statistics in eval mode",
            stacklevel=4,
        )


def summed(values: Tensor, example: Tensor, batch: int) -> Tensor:
    return values.new_zeros(batch).index_add(0, example, values)


def of_distribution(found: Distribution, loss_of: LossOf, chunk: int | None) -> Expected:
    """The exact sum over the structures of a sparse distribution."""
    example, batch = found.example, found.counts.numel()
    losses, metrics = evaluate(loss_of, example, found.structures, chunk)
    weights = found.probabilities.to(losses.dtype)
    fixed = weights.detach()
    return Expected(
        loss=summed(weights * losses, example, batch),
        entropy=found.entropy().to(losses.dtype),
        calls=found.counts,
        example=example,
        z=found.structures,
        weights=weights,
        losses=losses.detach(),
        metrics={name: summed(fixed * v.detach().to(fixed), example, batch) for name, v in metrics.items()},
        certificate=found.gap,
    )
