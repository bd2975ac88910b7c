"""A post-editor in training: judged by TER, and by an average of its weights if that is wanted."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ..text.codec import Codec
from ..text.lengths import in_order, spread
from ..text.seq2seq.evaluate import TOKENS
from ..text.seq2seq.examples import Examples
from ..text.seq2seq.model import Seq2Seq
from ..text.seq2seq.search import Found, beam
from ..text.seq2seq.task import Seq2SeqTask
from .figures import ter
from .settings import Train


def written(codec: Codec, source: str, found: Found) -> str:
    """The post-edit as `eval` counts it and `predict` gives it: where the search did not end, the machine output."""
    return codec.text(found.best.tokens) if found.ended else codec.clean(source.partition("\t")[2])


class PostEditing(Seq2SeqTask):
    """Trains ``model``; what is best is the one with the lowest TER of greedy post-edits of validation triplets."""

    train_settings: Train

    def __init__(
        self,
        model: Seq2Seq,
        codec: Codec,
        train: Examples,
        val: Examples,
        settings: Train,
        smoothing: float,
        longest: int,
    ) -> None:
        super().__init__(model, codec, train, val, settings, smoothing, settings.judged, longest, "loss")
        self.monitor, self.mode = "TER", "min"
        self.averaged: Seq2Seq | None = None
        if settings.moving_average:
            self.averaged = copy.deepcopy(model).requires_grad_(False)

    @property
    def answering(self) -> Seq2Seq:
        return self.model if self.averaged is None else self.averaged

    def on_train_batch_end(self, *arguments: Any) -> None:
        super().on_train_batch_end(*arguments)
        if self.averaged is not None:
            self._average(self.train_settings.moving_average)

    @torch.no_grad()
    def _average(self, share: float) -> None:
        """Move the average towards the newest weights, in the first steps as far as a plain mean would."""
        assert self.averaged is not None
        share = max(share, 1 / self.global_step)
        for mean, newest in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(newest, share)
        for kept, now in zip(self.averaged.buffers(), self.model.buffers(), strict=True):
            kept.copy_(now)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """TER of greedy post-edits of some validation triplets, and the loss per token of all.

        An output that does not end counts as far as it was written: as the machine output it would make a model that
        has not learned to end as good as doing nothing, and the best of all until a later one is better than that.
        """
        loss = self.mean_loss()
        sizes = self.val.sizes
        chosen = spread(len(sizes), self.judged)
        outputs, wanted = [], []
        for places in in_order([sizes[index] for index in chosen], TOKENS):
            indices = [chosen[place] for place in places]
            source = self.val.batch(indices).source.to(self.device)
            for index, found in zip(indices, beam(self.answering, source, 1, self.longest), strict=True):
                outputs.append(self.codec.text(found.best.tokens if found.ended else found.begun))
                wanted.append(self.codec.clean(self.val.texts[index][1]))
        return {"TER": ter(outputs, wanted), "loss": loss}
