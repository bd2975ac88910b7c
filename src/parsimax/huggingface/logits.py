"""Generation by sparse output probabilities."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from .._attention.core import AttentionCore
from ..parameters import Schedule


class EntmaxLogitsProcessor(LogitsProcessor):
    """Makes ``generate`` use entmax of the logits in place of softmax: most tokens become impossible.

    It returns log p, with -inf where p is 0, so that the softmax that follows gives p itself. Greedy search and
    sampling hand it the logits; beam search hands it their log-softmax, which is the logits up to a constant per row,
    and entmax does not change with such a constant: p is the same. A beam's score is the sum of log p, and a
    continuation with p = 0 is pruned. If fewer continuations than beams are possible, the beams left over end with a
    score of about -1e9 over their length: ignore those.

    Args:
        alpha: of entmax; 1.5 if not given. 1 is softmax, that is, no change.
        mapping: another mapping's name, with its setting beside it. It must give probabilities that do not change
            with a constant added to all logits.
        temperature: the logits are divided by it. ``generate(temperature=…)`` works on log p, after this.
        settings: the mapping's own, such as ``k=50`` for "topk_sparsemax". They and ``alpha`` may be schedules;
            ``parsimax.set_step(processor, step)`` tells the step.

    Example:
        >>> import torch
        >>> from parsimax.huggingface import EntmaxLogitsProcessor
        >>> EntmaxLogitsProcessor(alpha=1.5)(None, torch.tensor([[2.0, 1.0, -3.0]])).exp()
        tensor([[0.8307, 0.1693, 0.0000]])

    Pass it as ``model.generate(…, logits_processor=LogitsProcessorList([EntmaxLogitsProcessor()]))``.

    Reference: Peters, Niculae and Martins, Sparse Sequence-to-Sequence Models, ACL 2019.
    """

    def __init__(
        self,
        alpha: float | Schedule | None = None,
        mapping: str = "entmax",
        *,
        temperature: float = 1.0,
        **settings: Any,
    ) -> None:
        where = type(self).__name__
        if alpha is not None:
            settings["alpha"] = alpha
        self.mapping = mapping
        self.core = AttentionCore(1, mapping, **settings)  # keeps the settings
        if not 0 < temperature < math.inf:
            raise ValueError(f"{where}: temperature must be in (0, inf), got {temperature:g}")
        self.temperature = float(temperature)
        trial = self.probabilities(torch.tensor([[2.0, 1.0, 0.5, -1.0]], dtype=torch.float64))
        moved = self.probabilities(torch.tensor([[3.0, 2.0, 1.5, 0.0]], dtype=torch.float64))
        if not torch.allclose(trial.sum(), torch.ones_like(trial.sum())):
            raise ValueError(f"{where}: {mapping} sums to {trial.sum():g}, so it is no distribution of the next token")
        if not torch.allclose(trial, moved):
            raise ValueError(f"{where}: beam search adds a constant to the logits, which changes what {mapping} gives")

    def set_step(self, step: int) -> None:
        """Take the values that the schedules have at this step."""
        self.core.set_step(step)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Of the next token, (batch, vocabulary): those of attention to tokens whose products are all 0."""
        query, key = scores.new_zeros(1, 1, len(scores), 1), scores.new_zeros(1, 1, scores.shape[-1], 1)
        mask = scores / self.temperature
        weights: Tensor = self.core(query, key, key[..., :0], attn_mask=mask, return_weights=True)[1]
        return weights[0, 0]

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        return self.probabilities(scores).log()
