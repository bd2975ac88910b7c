"""What both recipes do alike once their data are pairs of texts and their model is a Seq2Seq."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from ...kit.recipe import DataError, Recipe, Wanted
from ...kit.runs import Run
from .. import codec as codecs
from ..codec import Codec
from .evaluate import evaluate
from .examples import Examples
from .model import Seq2Seq
from .outputs import outputs
from .report import report
from .task import Task
from .twin import beside_softmax

Pairs = list[tuple[str, str]]


class TextRecipe(Recipe):
    """A recipe on pairs of texts."""

    monitor: Literal["accuracy", "loss"] = "accuracy"  # which validation figure says what is best

    @abstractmethod
    def pairs(self, settings: Any, split: str) -> Pairs:
        """The (source, target) texts of train, val or test."""

    @abstractmethod
    def learn(self, settings: Any, pairs: Pairs) -> Codec:
        """A codec from training pairs."""

    @abstractmethod
    def build(self, settings: Any, codec: Codec) -> Seq2Seq:
        """A fresh model."""

    def longest(self, settings: Any) -> int | None:
        """Training examples with more tokens are left out; none for all."""
        return None

    def judged(self, settings: Any) -> int:
        """How many validation examples are decoded during training."""
        return 200

    def start(self, settings: Any, run: Run) -> Task:
        """A fresh task; its codec is saved in the run's folder."""
        train, val = self.pairs(settings, "train"), self.pairs(settings, "val")
        codec = self.learn(settings, train)
        codec.save(run.folder)
        return self._task(settings, codec, train, val)

    def reopen(self, settings: Any, run: Run) -> Task:
        return self._task(settings, codecs.load(run.folder), self.pairs(settings, "train"), self.pairs(settings, "val"))

    def restore(self, settings: Any, run: Run, checkpoint: Path) -> Task:
        """The trained task, without its data."""
        task = self._task(settings, codecs.load(run.folder), [], [])
        state = torch.load(checkpoint, map_location="cpu", weights_only=False)["state_dict"]
        task.load_state_dict(state)
        return task.eval()

    def _task(self, settings: Any, codec: Codec, train: Pairs, val: Pairs) -> Task:
        torch.manual_seed(settings.train.seed)
        model = self.build(settings, codec)
        examples = Examples.of(train, codec)
        limit = self.longest(settings)
        kept = examples if limit is None else examples.within(limit)
        if train and not len(kept):
            raise DataError(f"all {len(train)} training pairs have more than data.longest={limit} tokens")
        smoothing, judged = settings.model.smoothing, self.judged(settings)
        return Task(
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

    def evaluate(self, task: Task, settings: Any, split: str, show: Callable[[str], None]) -> dict[str, Any]:
        examples = Examples.of(self.pairs(settings, split), task.codec)
        return evaluate(task.model, task.codec, examples, settings.search, show)

    def report(self, task: Task, settings: Any, run: Run, folder: Path) -> list[Path]:
        examples = Examples.of(self.pairs(settings, "val"), task.codec)
        return report(task.model, task.codec, examples, run, folder)

    def predict(self, task: Task, settings: Any, lines: Iterable[str], wanted: Wanted) -> Iterator[str]:
        """In order, a group of lines at a time. What stands before a line that is refused is still printed."""
        waiting: list[str] = []
        refused = None
        for number, line in enumerate(lines, 1):
            try:
                waiting.append(self.read(line, task.codec))
            except DataError as error:
                refused = DataError(f"input, line {number}: {error}")
                break
            if len(waiting) == 256:
                yield from outputs(task, waiting, settings.search, wanted)
                waiting = []
        if waiting:
            yield from outputs(task, waiting, settings.search, wanted)
        if refused:
            raise refused

    def speed(self, task: Task, settings: Any) -> dict[str, float]:
        return beside_softmax(task, settings, self.build)

    def read(self, line: str, codec: Codec) -> str:
        """A line of input as a source."""
        if not line.strip():
            raise DataError("it is empty")
        return line
