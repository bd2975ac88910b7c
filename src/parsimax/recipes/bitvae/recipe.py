"""The recipe ``bitvae``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..images.recipe import ImageRecipe, grid, splits
from ..kit.recipe import Evaluation
from ..kit.runs import Run
from .model import SHOWN, BitVAE
from .settings import Settings


class BitVAERecipe(ImageRecipe[Settings, BitVAE]):
    def start(self, settings: Settings, run: Run) -> BitVAE:
        return self.reopen(settings, run)

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> BitVAE:
        torch.manual_seed(settings.train.seed)
        images = splits(settings.data.root)
        return BitVAE(settings, images["train"], images["val"])

    def evaluate(self, task: BitVAE, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        images = splits(settings.data.root)[split]
        with torch.no_grad():
            said = task.eval().describe(images.pixels())
        outputs = [{"label": label, **one} for label, one in zip(images.labels.tolist(), said, strict=True)]
        figures = task.validate() if split == "val" else task.figures(images)
        judged = settings.train.judged if split == "val" else SHOWN
        return Evaluation({"examples": min(judged, len(images)), **figures}, outputs)

    def report(self, task: BitVAE, settings: Settings, run: Run, folder: Path) -> list[Path]:
        val = splits(settings.data.root)["val"]
        task.eval()
        titles, rows = task.switches(val)
        own = {
            "bits.png": grid(rows, val.side, titles, plain=2),
            "samples.png": grid([("prior", task.samples(10))], val.side),
        }
        return self.pictures(task, run, folder, ("loss", "calls", "support 1"), own)


RECIPE = BitVAERecipe()
