"""What all recipes do alike once their data are pairs of texts and their model is a Seq2Seq."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from ...kit.recipe import Answer, DataError, Evaluation, Recipe
from ...kit.runs import Run
from ...kit.settings import SettingsError
from ..codec import Codec
from .evaluate import evaluate
from .examples import Examples
from .model import Seq2Seq
from .outputs import outputs
from .report import report
from .settings import Options
from .task import Seq2SeqTask
from .twin import beside_softmax

Pairs = list[tuple[str, str]]
Q = TypeVar("Q")
O = TypeVar("O", bound=Options)  # noqa: E741
KINDS = {"encoder": "self", "decoder": "decoder", "context": "cross", "attention": "cross"}  # as figures name them
LONGEST = 2048  # tokens of a source that is to be answered; memory grows with the square


class TextRecipe(Recipe[Any, Seq2SeqTask, Q, O]):
    """A recipe on pairs of texts."""

    monitor: Literal["accuracy", "loss"] = "accuracy"  # which validation figure says what is best
    codec: type[Codec]

    @abstractmethod
    def pairs(self, settings: Any, split: str) -> Pairs:
        """The (source, target) texts of train, val or test."""

    @abstractmethod
    def learn(self, settings: Any, pairs: Pairs) -> Codec:
        """A codec from training pairs."""

    @abstractmethod
    def build(self, settings: Any, codec: Codec) -> Seq2Seq:
        """A fresh model."""

    @abstractmethod
    def source(self, query: Q) -> str:
        """The source text of a query."""

    def longest(self, settings: Any) -> int | None:
        """Training examples with more tokens are left out; none for all."""
        return None

    def judged(self, settings: Any) -> int:
        """How many validation examples are decoded during training."""
        return 200

    def start(self, settings: Any, run: Run) -> Seq2SeqTask:
        """A fresh task; its codec is saved in the run's folder."""
        train, val = self.pairs(settings, "train"), self.pairs(settings, "val")
        codec = self.learn(settings, train)
        codec.save(run.folder)
        return self._task(settings, codec, train, val)

    def reopen(self, settings: Any, run: Run, data: bool = True) -> Seq2SeqTask:
        train, val = (self.pairs(settings, split) if data else [] for split in ("train", "val"))
        return self._task(settings, self.codec.load(run.folder), train, val)

    def _task(self, settings: Any, codec: Codec, train: Pairs, val: Pairs) -> Seq2SeqTask:
        torch.manual_seed(settings.train.seed)
        model = self.build(settings, codec)
        examples = Examples.of(train, codec)
        limit = self.longest(settings)
        kept = examples if limit is None else examples.within(limit)
        if train and not len(kept):
            raise DataError(f"all {len(train)} training pairs have more than data.longest={limit} tokens")
        smoothing, judged = settings.model.smoothing, self.judged(settings)
        return Seq2SeqTask(
            model,
            codec,
            kept,
            Examples.of(val, codec),
            settings.train,
            smoothing,
            judged,
            settings.search.longest,
            self.monitor,
        )

    def evaluate(self, task: Seq2SeqTask, settings: Any, split: str, show: Callable[[str], None]) -> Evaluation:
        examples = Examples.of(self.pairs(settings, split), task.codec)
        return evaluate(task.answering, task.codec, examples, settings.search, show)

    def report(self, task: Seq2SeqTask, settings: Any, run: Run, folder: Path) -> list[Path]:
        examples = Examples.of(self.pairs(settings, "val"), task.codec)
        return report(task.answering, task.codec, examples, settings.search, run, folder)

    def quality(self, task: Seq2SeqTask) -> tuple[str, str]:
        """That of the outputs: losses of different mappings do not compare."""
        return "accuracy", "max"

    def dials(self, settings: Any) -> list[str]:
        """And the width of the beam, which no weight depends on."""
        return [*super().dials(settings), "search.beam"]

    def zeros(self, task: Seq2SeqTask, figures: Mapping[str, Any], key: str) -> float | None:
        """Of the attention that the setting belongs to, or of the output's next tokens; the search has none."""
        place = key.split(".")[-2]
        if place == "search":
            return None
        if place == "output":
            return 1 - float(figures["next tokens a step"]) / task.codec.size
        if (name := f"density ({KINDS[place]})") not in figures:
            raise SettingsError(f"the zeros of model.{place} are not measured for this kind of model")
        return 1 - float(figures[name])

    def predict(self, task: Seq2SeqTask, settings: Any, queries: Sequence[Q], options: O) -> list[Answer]:
        return outputs(task, [self.source(query) for query in queries], settings.search, options)

    def check(self, task: Seq2SeqTask, query: Q, options: O) -> None:
        source = self.source(query)
        if not source.strip():
            raise DataError("it is empty")
        if (count := len(task.codec.source(source))) > LONGEST:
            raise DataError(f"it has {count} tokens, more than the {LONGEST} that are read")

    def speed(self, task: Seq2SeqTask, settings: Any) -> dict[str, float]:
        return beside_softmax(task, settings, self.build)
