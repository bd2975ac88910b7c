"""A recipe whose queries are images."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..kit.pictures import curves
from ..kit.recipe import Answer, DataError, Options, Recipe, Settings
from ..kit.runs import Run
from ..kit.training import Task
from .data import files, splits

S = TypeVar("S", bound=Settings)
T = TypeVar("T", bound="ImageTask")


@dataclass(frozen=True)
class Image:
    """What a prediction reads: the pixels of an image row by row, 0 for paper and the largest number for ink."""

    pixels: tuple[float, ...]


class ImageTask(Task[Any]):
    """A task on images of ``size`` pixels from 0 to ``brightest``."""

    size: int
    brightest: int

    def describe(self, pixels: Tensor) -> list[dict[str, Any]]:
        """What the latent variable says of each image, the answer first."""
        raise NotImplementedError


class ImageRecipe(Recipe[S, T, Image, Options]):
    query = Image

    def files(self, settings: S, split: str) -> list[Path]:
        return files(settings.data.root, split)  # type: ignore[attr-defined]

    def read(self, task: T, line: str, options: Options) -> Image:
        """Numbers by commas, tabs or blanks."""
        words = [word for word in re.split(r"[\s,;]+", line) if word]
        try:
            return Image(tuple(map(float, words)))
        except ValueError:
            raise DataError(f"an image is {task.size} numbers from 0 to {task.brightest}, got words") from None

    def check(self, task: T, query: Image, options: Options) -> None:
        if len(query.pixels) != task.size:
            raise DataError(f"an image is {task.size} numbers, got {len(query.pixels)}")
        if not all(0 <= pixel <= task.brightest for pixel in query.pixels):
            low, high = min(query.pixels), max(query.pixels)
            raise DataError(f"a pixel is from 0 to {task.brightest}, got {low:g}…{high:g}")

    @torch.no_grad()
    def predict(self, task: T, settings: S, queries: Sequence[Image], options: Options) -> list[Answer]:
        pixels = torch.tensor([query.pixels for query in queries], device=task.device) / task.brightest
        return [
            Answer((json.dumps(said) if options.json else str(next(iter(said.values()))),))
            for said in task.eval().describe(pixels)
        ]

    def pictures(self, task: T, run: Run, folder: Path, names: tuple[str, ...], own: dict[str, Any]) -> list[Path]:
        """The curves of training and the recipe's own figures."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, figure in {"training.png": curves(run, *names), **own}.items():
            if figure is not None:
                figure.savefig(folder / name, dpi=150)
                written.append(folder / name)
        return written


def grid(rows: list[tuple[str, list[Tensor]]], side: int, titles: Sequence[str] = (), plain: int | None = None) -> Any:
    """Rows of images, each with what it is; those after the first ``plain`` of a row are what bits change."""
    from matplotlib.figure import Figure

    columns = max(len(images) for _, images in rows)
    plain = columns if plain is None else plain
    most = max([float(image.abs().max()) for _, images in rows for image in images[plain:]], default=1.0) or 1.0
    figure = Figure((0.9 * columns + 1.5, 0.95 * len(rows) + 0.5 * bool(titles)), layout="constrained")
    every = figure.subplots(len(rows), columns, squeeze=False)
    for axes, title in zip(every[0], titles, strict=False):
        axes.set_title(title, fontsize=8)
    if plain < columns:
        figure.suptitle(
            f"what a bit adds (red) and takes away (blue) when it is on, up to {most:.2g} of full ink", fontsize=9
        )
    for (name, images), line in zip(rows, every, strict=True):
        for axes in line:
            axes.set_axis_off()
        for column, (axes, image) in enumerate(zip(line, images, strict=False)):
            look = (
                {"cmap": "Greys", "vmin": 0, "vmax": 1}
                if column < plain
                else {"cmap": "bwr", "vmin": -most, "vmax": most}
            )
            axes.imshow(image.detach().view(side, side).cpu().numpy(), **look)
        line[0].set_axis_on()
        line[0].set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return figure


__all__ = ["Image", "ImageRecipe", "ImageTask", "grid", "splits"]
