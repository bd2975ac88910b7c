"""A sequence-to-sequence model in training: its loss, and what is measured on the way."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...kit.training import Task
from ..codec import PAD, Codec
from ..lengths import Bucketed, in_order, spread
from ..settings import Train
from .evaluate import TOKENS
from .examples import Batch, Examples
from .model import Seq2Seq
from .search import beam


class Seq2SeqTask(Task[Batch]):
    """Trains ``model`` on ``train`` and validates it on ``val``, both in numbers of ``codec``.

    Args:
        model: what learns.
        codec: texts ↔ numbers.
        train: training examples; none for a model that only predicts.
        val: validation examples.
        settings: of training.
        smoothing: of the labels.
        judged: how many validation examples are decoded each time; the loss is that of all.
        longest: tokens of an output at most.
        monitor: which validation figure says what is best, "accuracy" or "loss".
    """

    unit = "tokens"

    def __init__(
        self,
        model: Seq2Seq,
        codec: Codec,
        train: Examples,
        val: Examples,
        settings: Train,
        smoothing: float,
        judged: int,
        longest: int,
        monitor: Literal["accuracy", "loss"],
    ) -> None:
        super().__init__(settings, Bucketed(train.sizes, settings.batch_tokens, train.batch))
        self.model, self.codec, self.val = model, codec, val
        self.smoothing, self.judged, self.longest = smoothing, judged, longest
        self.monitor, self.mode = monitor, "max" if monitor == "accuracy" else "min"

    @property
    def answering(self) -> Seq2Seq:
        """The model that is validated, evaluated and asked: the one that learns, or an average of what it was."""
        return self.model

    def loss(self, batch: Batch) -> Tensor:
        return self.model.loss(batch, self.smoothing)

    def amount(self, batch: Batch) -> int:
        return int((batch.wanted != PAD).sum() + (batch.source != PAD).sum())

    @torch.no_grad()
    def mean_loss(self) -> float:
        """The loss per token of all validation examples."""
        total = tokens = 0.0
        for indices in in_order(self.val.sizes, TOKENS):
            batch = Batch(*(part.to(self.device) for part in self.val.batch(indices)))
            count = int((batch.wanted != PAD).sum())
            total += self.answering.loss(batch, self.smoothing).item() * count
            tokens += count
        return total / tokens

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Loss per token, and the share of examples whose greedy output is right."""
        loss = self.mean_loss()
        right = judged = 0
        sizes = self.val.sizes
        chosen = spread(len(sizes), self.judged)
        for places in in_order([sizes[index] for index in chosen], TOKENS):
            indices = [chosen[place] for place in places]
            source = self.val.batch(indices).source.to(self.device)
            for index, found in zip(indices, beam(self.answering, source, 1, self.longest), strict=True):
                right += list(found.best.tokens) == self.val.target[index]
                judged += 1
        return {"accuracy": right / judged, "loss": loss}
