"""The recipe ``emergent``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..images.recipe import ImageRecipe, grid, splits
from ..kit.recipe import Evaluation
from ..kit.runs import Run
from .model import Game, judged
from .settings import Settings


class EmergentRecipe(ImageRecipe[Settings, Game]):
    def start(self, settings: Settings, run: Run) -> Game:
        return self.reopen(settings, run)

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> Game:
        torch.manual_seed(settings.train.seed)
        images = splits(settings.data.root)
        return Game(settings, images["train"], images["val"])

    def evaluate(self, task: Game, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        images = splits(settings.data.root)[split]
        with torch.no_grad():
            said = task.eval().describe(images.pixels())
        outputs = [{"label": label, **one} for label, one in zip(images.labels.tolist(), said, strict=True)]
        return Evaluation({"examples": judged(images), **task.figures(images)}, outputs)

    def report(self, task: Game, settings: Settings, run: Run, folder: Path) -> list[Path]:
        val = splits(settings.data.root)["val"]
        own = {"messages.png": grid(task.eval().shared(val), val.side)}
        return self.pictures(task, run, folder, ("loss", "accuracy", "calls"), own)


RECIPE = EmergentRecipe()
