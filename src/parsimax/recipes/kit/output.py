"""A chosen mapping inside a model: as the output with its loss, and as the words of an attention layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...losses import fenchel_young_loss, linear_entmax_loss
from ...parameters import LEARNED
from .choice import Choice

FLOOR = 1e-8  # of the loss of mappings without an entropy, as r-softmax's paper has it


def attention_words(choice: Choice, heads: int) -> dict[str, Any]:
    """The words by which an attention layer knows a choice. What is learned starts at random, as in the paper."""
    words, setting = {"mapping": choice.mapping, **choice.own()}, choice.entry.setting
    if setting is not None and words[setting.name] == LEARNED:
        words["start"] = setting.random_start((heads,))
    return words


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
        self.mapping = choice.entry.module(**choice.own())

    @property
    def alpha(self) -> float | Tensor | None:
        """The α of entmax in use; None for mappings that are no member of that family."""
        entry = self.choice.entry
        return self.mapping.value("alpha") if entry.name == "entmax" else entry.alpha

    def scores(self, hidden: Tensor) -> Tensor:
        """In float32 or better: a probability of a half type has few digits."""
        scores = F.linear(hidden, self.weight, self.bias)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def forward(self, hidden: Tensor) -> Tensor:
        p: Tensor = self.mapping(self.scores(hidden))
        return p

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
        if self.choice.entry.regulariser is not None:
            options: dict[str, Any] = {"ignore_index": self.ignore, "label_smoothing": smoothing}
            return fenchel_young_loss(self.scores(hidden), wanted, self.mapping, **options)
        real = wanted != self.ignore
        logs = (self.forward(hidden[real]) + FLOOR).log()
        hit = logs.gather(-1, wanted[real].unsqueeze(-1)).squeeze(-1)
        return -((1 - smoothing) * hit + smoothing * logs.mean(-1)).mean()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        old = f"{prefix}learned."  # what the mapping was called before 0.2
        for key in [key for key in state_dict if key.startswith(old)]:
            state_dict[f"{prefix}mapping.{key.removeprefix(old)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *rest)
