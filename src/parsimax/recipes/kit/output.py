"""A chosen mapping inside a model: as the output with its loss, and as the words of an attention layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...losses import linear_entmax_loss
from ...mappings import Entmax, rsoftmax
from ...mappings.entmax import entmax
from .choice import Choice

FIXED = {"softmax": 1.0, "sparsemax": 2.0}
FLOOR = 1e-8  # of r-softmax's loss, as its paper has it


def attention_words(choice: Choice, heads: int) -> dict[str, Any]:
    """The words by which an attention layer knows a choice. A learned α starts where the seed says, as in the paper."""
    if choice.mapping == "entmax" and choice.alpha == "learned":
        return {"alpha": "learned", "alpha_start": 1 + torch.sigmoid(torch.randn(heads))}
    if choice.mapping == "entmax":
        return {"mapping": "entmax", "alpha": choice.alpha}
    return {"mapping": choice.mapping, **({"rate": choice.rate} if choice.mapping == "rsoftmax" else {})}


class Output(nn.Module):
    """Hidden states (…, width) → probabilities of classes (…, size), most of them exactly 0 if sparse.

    Args:
        width: of the hidden states.
        size: the number of classes.
        choice: the mapping.
        tied: an embedding whose weight scores the classes; a weight of its own if not given.
        ignore: the wanted class that has no loss, such as padding.
    """

    def __init__(
        self, width: int, size: int, choice: Choice, tied: nn.Embedding | None = None, ignore: int = -100
    ) -> None:
        super().__init__()
        self.choice, self.ignore = choice, ignore
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(size))
        learned = choice.mapping == "entmax" and choice.alpha == "learned"
        self.learned = Entmax(1.5, learnable=True) if learned else None

    @property
    def alpha(self) -> float | Tensor | None:
        """The α in use; None for r-softmax."""
        if self.learned is not None:
            return self.learned.alpha
        if self.choice.mapping == "entmax":
            return float(self.choice.alpha)
        return FIXED.get(self.choice.mapping)

    def scores(self, hidden: Tensor) -> Tensor:
        """In float32 or better: a probability of a half type has few digits."""
        scores = F.linear(hidden, self.weight, self.bias)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def forward(self, hidden: Tensor) -> Tensor:
        scores, alpha = self.scores(hidden), self.alpha
        return rsoftmax(scores, self.choice.rate) if alpha is None else entmax(scores, alpha)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Their logarithms, -inf where the probability is exactly 0."""
        if self.alpha == 1:
            return F.log_softmax(self.scores(hidden), -1)
        return self.forward(hidden).log()

    def loss(self, hidden: Tensor, wanted: Tensor, smoothing: float = 0.0) -> Tensor:
        """Mean over the wanted classes (…,), those to ignore left out."""
        hidden, wanted, alpha = hidden.flatten(0, -2), wanted.flatten(), self.alpha
        if isinstance(alpha, float) and alpha == 1:
            return F.cross_entropy(self.scores(hidden), wanted, ignore_index=self.ignore, label_smoothing=smoothing)
        if alpha is not None:
            return linear_entmax_loss(
                hidden, self.weight, wanted, alpha, bias=self.bias, ignore_index=self.ignore, label_smoothing=smoothing
            )
        real = wanted != self.ignore
        logs = (self.forward(hidden[real]) + FLOOR).log()
        hit = logs.gather(-1, wanted[real].unsqueeze(-1)).squeeze(-1)
        return -((1 - smoothing) * hit + smoothing * logs.mean(-1)).mean()
