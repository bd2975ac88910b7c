"""The last layer: scores → probabilities → which labels, with the loss that belongs to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...losses import multilabel_loss
from ...mappings import REGISTRY
from .settings import Model

MAPPINGS = {"sparsemax-hinge": "sparsemax", "rsoftmax-predicted": "rsoftmax"}  # those not named as their mapping
SPARSEMAX_Q = 1e12  # sparsehourglass, and so its loss, is that of sparsemax as q grows


class LabelLayer(nn.Module):
    """Hidden states (N, width) → probabilities of the labels (N, L).

    A label is given where its probability is not 0; of sigmoid where it is above one half; of softmax, whose
    probabilities are never 0, where it is above a threshold that :meth:`tune` chose. Every mapping leaves at least one
    label in a row; sigmoid, the threshold and a predicted count of 0 may leave none.

    r-softmax is trained with fewer zeros than it is used with: a wanted label whose probability is exactly 0 gets no
    gradient, so that at the full rate labels are lost early and never come back.
    """

    threshold: Tensor

    def __init__(self, settings: Model, width: int, labels: int) -> None:
        super().__init__()
        self.kind, self.settings = settings.layer, settings
        self.linear = nn.Linear(width, labels)
        self.count = nn.Linear(width, labels + 1) if self.kind == "rsoftmax-predicted" else None
        self.mapping = None
        if self.kind != "sigmoid":
            self.mapping = REGISTRY[MAPPINGS.get(self.kind, self.kind)].module(**self._own())
        start = {"sigmoid": 0.5, "softmax": 1 / labels}.get(self.kind, 0.0)
        self.register_buffer("threshold", torch.tensor(start))

    def _own(self) -> dict[str, Any]:
        own = self.settings
        values: dict[str, dict[str, Any]] = {
            "rsoftmax": {"rate": own.rate},
            "sparsehourglass": {"q": own.q},
            "entmax": {"alpha": own.alpha},
        }
        return values.get(self.kind, {"rate": own.rate} if self.count is not None else {})

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities, and which labels are given."""
        scores = self.linear(hidden)
        if self.mapping is None:
            p = scores.sigmoid()
        elif self.count is None:
            p = self.mapping(scores)
        else:
            count = self.count(hidden).argmax(-1, keepdim=True)
            p = self._at_count(scores, count) * (count > 0)
        return p, p > self.threshold

    def _at_count(self, scores: Tensor, count: Tensor) -> Tensor:
        """r-softmax with as many labels left as ``count`` says, at least one."""
        p: Tensor = REGISTRY["rsoftmax"].function(scores, rate_of(count, scores))
        return torch.where(count < scores.shape[-1], p, scores.softmax(-1))  # at rate 0 the smallest would still be 0

    def loss(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        """Mean over the rows; those without a label count for sigmoid and for the predicted number only."""
        scores, y = self.linear(hidden), wanted.to(hidden.dtype)
        if self.kind == "sigmoid":
            return F.binary_cross_entropy_with_logits(scores, y)
        if self.kind == "sparsemax-hinge":
            return labelled_mean(scores, y, "sparsehourglass", q=SPARSEMAX_Q)
        own = self.settings
        if self.kind == "rsoftmax":
            return labelled_mean(scores, y, "rsoftmax", rate=own.rate * own.train_rate)
        if self.count is None:
            assert self.mapping is not None
            return labelled_mean(scores, y, self.mapping)
        number = wanted.sum(-1)
        rate = rate_of(number[:, None], scores) * own.train_rate
        counted = F.cross_entropy(self.count(hidden), number)
        return labelled_mean(scores, y, "rsoftmax", rate=rate) + own.count_weight * counted

    def tune(self, p: Tensor, wanted: Tensor) -> None:
        """Set the threshold of softmax to that with the largest micro F1."""
        if self.kind == "softmax":
            self.threshold.fill_(best_threshold(p, wanted))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """At a fixed rate the head that predicts it is left out."""
        if self.kind == "rsoftmax":
            for name in ("weight", "bias"):
                state_dict.pop(f"{prefix}count.{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def labelled_mean(scores: Tensor, y: Tensor, mapping: Any, **own: Any) -> Tensor:
    """The loss of a row that has a label, on average; 0 where none has, as happens in a small batch."""
    total: Tensor = multilabel_loss(scores, y, mapping, reduction="sum", **own)
    return total / y.any(-1).sum().clamp(min=1)


def rate_of(count: Tensor, scores: Tensor) -> Tensor:
    """The share of zeros that leaves ``count`` labels (N, 1), at least one."""
    return 1 - count.clamp(min=1).to(scores.dtype) / scores.shape[-1]


def best_threshold(p: Tensor, wanted: Tensor) -> float:
    """The cut between two probabilities with the largest micro F1 of what is above it: every cut is tried.

    It is a number of their type: halfway, or the lower one where that would be rounded to the upper one.
    """
    values, order = p.detach().double().flatten().sort(descending=True)
    right = wanted.flatten()[order].cumsum(0)
    given = torch.arange(1, len(values) + 1, device=values.device)
    f1 = 2 * right / (given + wanted.sum())
    below = torch.cat([values[1:], values.new_zeros(1)])
    at = int(torch.where(values > below, f1, -1.0).argmax())  # equals are given together
    halfway = float(((values[at] + below[at]) / 2).to(p.dtype))
    return halfway if halfway < values[at] else float(below[at])
