"""The recipe ``ssvae``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..images.data import CLASSES
from ..images.recipe import ImageRecipe, grid, splits
from ..kit.recipe import Evaluation
from ..kit.runs import Run
from .model import BY_CLASS, SSVAE
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
        own = {
            "samples.png": grid(task.eval().samples(10), splits(settings.data.root)["val"].side),
            "calls.png": calls(run),
        }
        return self.pictures(task, run, folder, ("loss", "accuracy", "calls"), own)


def calls(run: Run) -> Any:
    """How many classes of an image the decoder was asked for over training, by the class that it has."""
    from matplotlib.figure import Figure

    figure = Figure((6, 3.6), layout="constrained")
    axes = figure.subplots()
    rows = run.rows()
    for label in range(CLASSES):
        key = f"{BY_CLASS}/{label}"
        points = [(int(row["step"]), float(row[key])) for row in rows if row.get(key)]
        if points:
            axes.plot(*zip(*points, strict=True), label=str(label), color=f"C{label}", marker=".")
    if not axes.lines:
        return None
    axes.set(xlabel="step", ylabel="decoder calls of an image", ylim=(0, None))
    figure.legend(loc="outside right upper", title="class")
    return figure


RECIPE = SSVAERecipe()
