"""The singular values of a model's log-probabilities over many contexts, and how many are more than rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 8192  # classes that are mixed together
ROUNDINGS = 8  # of a log-probability: products of a whole row of the weight, and the normaliser


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a matrix of log-probabilities, contexts × classes, from the largest to the smallest.

    ``tolerance`` is above what rounding alone makes of a singular value: 8 ε · max |log p| · (√contexts + √classes),
    the norm of a matrix of independent errors of a few roundings each, ε being that of the type the scores were made
    in: of a model in bfloat16 only large singular values count. What the factorisation in float64 itself rounds,
    2.2e-16 of the largest singular value for each row or column, comes on top.
    """

    values: Tensor
    contexts: int
    classes: int
    tolerance: float

    @property
    def rank(self) -> int:
        """How many singular values are above what rounding makes."""
        return int((self.values > self.tolerance).sum())

    def rank_at(self, share: float) -> int:
        """How many are above this share of the largest."""
        return int((self.values > share * self.values[0]).sum()) if len(self.values) else 0

    def __repr__(self) -> str:
        return f"Spectrum(rank={self.rank} of {self.contexts} contexts × {self.classes} classes)"


@torch.no_grad()
def rank(
    model: Callable[..., Any], batches: Iterable[Any], *, width: int = 2048, seed: int = 0, floor: float | None = None
) -> Spectrum:
    """The singular spectrum and the numerical rank of a model's log-probabilities over many contexts.

    With a linear softmax of width d the rank is at most d + 1, and one more with a bias, however many contexts there
    are: the softmax bottleneck. The matrix is streamed: a triangular factor of at most ``width`` columns is kept. With
    more classes than that, the columns are mixed at random into ``width`` of them, which leaves the rank as it is up to
    ``width`` and the singular values nearly so.

    Args:
        model: an output head, a causal model of ``transformers``, or anything that gives log-probabilities or an object
            with ``logits``, (…, classes).
        batches: what it is called with: hidden states for a head, token ids or dictionaries of arguments for a model.
        width: columns that are kept; the largest rank that can be found.
        seed: of the mixing.
        floor: the least probability that counts, for heads that give exact zeros: their logarithm has no rank.

    Returns:
        A :class:`Spectrum`: ``values``, ``rank``, ``rank_at(share)``.

    Example:
        >>> import torch, parsimax
        >>> from parsimax.analysis import rank
        >>> _ = torch.manual_seed(0)
        >>> contexts = torch.randn(200, 8)
        >>> rank(parsimax.LinearHead(8, 100, bias=False), [contexts])
        Spectrum(rank=9 of 200 contexts × 100 classes)
        >>> rank(parsimax.SigSoftmaxHead(8, 100), contexts.split(50)).rank > 9
        True
    """
    if isinstance(batches, (Tensor, Mapping)):
        raise TypeError(
            f"rank: batches must be a list of batches, got one {type(batches).__name__}; put it into a list"
        )
    if width < 1:
        raise ValueError(f"rank: width must be 1 or more, got {width}")
    if floor is not None and not 0 < floor < 1:
        raise ValueError(f"rank: floor is a probability between 0 and 1, got {floor}")
    factor: Tensor | None = None
    contexts, classes, largest, precision = 0, 0, 0.0, 0.0
    for batch in batches:
        logs, made_with = _logs(model, batch)
        if not len(logs):
            continue
        logs = logs if floor is None else logs.clamp(min=math.log(floor))
        if not torch.isfinite(logs).all():
            raise ValueError(
                "rank: a log-probability is not finite; a sparse mapping gives -inf, which has no rank: give a floor"
            )
        precision = max(precision, made_with)
        if classes not in (0, logs.shape[1]):
            raise ValueError(f"rank: all batches must have as many classes, got {classes} and then {logs.shape[1]}")
        largest, contexts, classes = max(largest, logs.abs().max().item()), contexts + len(logs), logs.shape[1]
        for part in logs.split(width):
            rows = part.double() if classes <= width else _mixed(part, width, seed)
            rows = rows if factor is None else torch.cat((factor, rows))
            factor = torch.linalg.qr(rows, mode="r").R
    if factor is None:
        raise ValueError("rank: there are no contexts in the batches")
    values = torch.linalg.svdvals(factor)[: min(contexts, classes, width)]
    tolerance = ROUNDINGS * precision * largest * (math.sqrt(contexts) + math.sqrt(classes))
    tolerance += torch.finfo(torch.float64).eps * max(contexts, classes) * values.amax().item()
    return Spectrum(values.cpu(), contexts, classes, tolerance)


def _mixed(logs: Tensor, width: int, seed: int) -> Tensor:
    """Columns mixed at random into ``width`` of them, in float64; of the mixing a block of rows exists at a time."""
    generator = torch.Generator().manual_seed(seed)
    total = logs.new_zeros(len(logs), width, dtype=torch.float64)
    for part in logs.split(BLOCK, -1):
        mixing = torch.randn(part.shape[1], width, generator=generator) / math.sqrt(width)
        total += part.double() @ mixing.to(logs.device).double()
    return total


def _logs(model: Callable[..., Any], batch: Any) -> tuple[Tensor, float]:
    """Log-probabilities, and the rounding of the type that they were made in, which may be coarser than their own."""
    out = model(**batch) if isinstance(batch, Mapping) else model(batch)
    logs = F.log_softmax(out.logits.float(), -1) if hasattr(out, "logits") else out
    if not isinstance(logs, Tensor) or not logs.is_floating_point():
        raise TypeError(
            f"rank: the model must give log-probabilities, or an object with logits, got {type(out).__name__}"
        )
    types = [logs.dtype, getattr(getattr(out, "logits", logs), "dtype", logs.dtype)]
    layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else model
    if isinstance(weight := getattr(layer, "weight", None), Tensor) and weight.is_floating_point():
        types.append(weight.dtype)
    if torch.is_autocast_enabled(logs.device.type):
        types.append(torch.get_autocast_dtype(logs.device.type))
    return logs.reshape(-1, logs.shape[-1]), max(torch.finfo(each).eps for each in types)
