"""The recipe ``ssvae``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..images.recipe import ImageRecipe, grid, splits
from ..kit.recipe import Evaluation
from ..kit.runs import Run
from .model import SSVAE
from .settings import Settings


class SSVAERecipe(ImageRecipe[Settings, SSVAE]):
    def start(self, settings: Settings, run: Run) -> SSVAE:
        return self.reopen(settings, run)

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> SSVAE:
        torch.manual_seed(settings.train.seed)
        images = splits(settings.data.root)
        return SSVAE(settings, images["train"], images["val"])

    def evaluate(self, task: SSVAE, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        images = splits(settings.data.root)[split]
        with torch.no_grad():
            said = task.eval().describe(images.pixels())
        outputs = [{"wanted": label, **one} for label, one in zip(images.labels.tolist(), said, strict=True)]
        return Evaluation({"examples": len(images), **task.figures(images)}, outputs)

    def report(self, task: SSVAE, settings: Settings, run: Run, folder: Path) -> list[Path]:
        own = {"samples.png": grid(task.eval().samples(10), splits(settings.data.root)["val"].side)}
        return self.pictures(task, run, folder, ("loss", "accuracy", "calls"), own)


RECIPE = SSVAERecipe()
