"""The recipe ``digits``: an image in, the digits that are possible out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..kit.recipe import Answer, DataError, Evaluation, Recipe
from ..kit.runs import Run
from .images import BRIGHTEST, CLASSES, SIDE, Images, splits
from .model import Digits
from .pictures import write
from .settings import Options, Settings


@dataclass(frozen=True)
class Image:
    """What a prediction reads: 64 numbers from 0 (paper) to 16 (ink), row by row."""

    pixels: tuple[float, ...]


class DigitsRecipe(Recipe[Settings, Digits, Image, Options]):
    query = Image

    def start(self, settings: Settings, run: Run) -> Digits:
        return self.reopen(settings, run)

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> Digits:
        torch.manual_seed(settings.train.seed)
        none = Images(torch.empty(0, SIDE * SIDE), torch.empty(0, dtype=torch.long))
        return Digits(settings, *((splits()["train"], splits()["val"]) if data else (none, none)))

    @torch.no_grad()
    def evaluate(self, task: Digits, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        images = splits()[split]
        p = task.eval()(images.pixels)
        right, possible = p.argmax(-1) == images.digits, (p > 0).sum(-1)
        sure = possible == 1
        figures = {
            "examples": len(right),
            "accuracy": right.float().mean().item(),
            "possible digits": possible.float().mean().item(),
            "certain": sure.float().mean().item(),
            "accuracy where certain": right[sure].float().mean().item(),
            "right digit possible": (p.gather(-1, images.digits[:, None]) > 0).float().mean().item(),
            "loss": task.loss(images).item(),
        }
        return Evaluation(
            figures,
            [{"wanted": digit, **known(row)} for digit, row in zip(images.digits.tolist(), p, strict=True)],
        )

    def zeros(self, task: Digits, figures: Mapping[str, Any], key: str) -> float:
        return 1 - float(figures["possible digits"]) / CLASSES

    def read(self, task: Digits, line: str, options: Options) -> Image:
        """64 numbers, by commas, tabs or blanks."""
        words = [word for word in re.split(r"[\s,;]+", line) if word]
        try:
            return Image(tuple(map(float, words)))
        except ValueError:
            raise DataError(f"an image is {SIDE * SIDE} numbers from 0 to {BRIGHTEST}, got words") from None

    def check(self, task: Digits, query: Image, options: Options) -> None:
        if len(query.pixels) != SIDE * SIDE:
            raise DataError(f"an image is {SIDE * SIDE} numbers, got {len(query.pixels)}")
        if not all(0 <= pixel <= BRIGHTEST for pixel in query.pixels):
            raise DataError(f"a pixel is from 0 to {BRIGHTEST}, got {min(query.pixels):g}…{max(query.pixels):g}")

    @torch.no_grad()
    def predict(self, task: Digits, settings: Settings, queries: Sequence[Image], options: Options) -> list[Answer]:
        p = task(torch.tensor([query.pixels for query in queries], device=task.device) / BRIGHTEST)
        return [Answer((line(row, options),)) for row in p.cpu()]

    def report(self, task: Digits, settings: Settings, run: Run, folder: Path) -> list[Path]:
        with torch.no_grad():
            return write(splits()["val"], task.eval()(splits()["val"].pixels), run, folder)


def known(row: Tensor) -> dict[str, object]:
    """The most probable digit, and all that are possible."""
    order = row.argsort(descending=True).tolist()
    return {"digit": order[0], "possible": {str(i): round(row[i].item(), 6) for i in order if row[i] > 0}}


def line(row: Tensor, options: Options) -> str:
    found = known(row)
    if options.json:
        return json.dumps(found)
    if options.probabilities:
        return " ".join(f"{digit}:{value:.4g}" for digit, value in found["possible"].items())  # type: ignore[attr-defined]
    return str(found["digit"])


RECIPE = DigitsRecipe()
