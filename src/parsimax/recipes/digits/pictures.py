"""Pictures of a run: the curves of training, and the images that leave the most digits possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..kit.pictures import curves, save
from ..kit.runs import Run
from .images import SIDE, Images

ROWS, COLUMNS = 3, 8


def write(images: Images, p: Tensor, run: Run, folder: Path) -> list[Path]:
    """``training.png`` and ``doubtful.png`` in ``folder``."""
    return [*save({"training": curves(run, "loss", "accuracy"), "doubtful": doubtful(images, p)}, folder)]


def doubtful(images: Images, p: Tensor) -> Any:
    """The images with the smallest largest probability, each with the digits that are possible."""
    from matplotlib.figure import Figure

    figure = Figure((2 * COLUMNS, 2.4 * ROWS), layout="constrained")
    hard = p.amax(-1).argsort()[: ROWS * COLUMNS].tolist()
    for axes, index in zip(figure.subplots(ROWS, COLUMNS).flat, hard, strict=True):
        axes.imshow(images.pixels[index].view(SIDE, SIDE).numpy(), cmap="Greys")
        best = [digit for digit in p[index].argsort(descending=True).tolist() if p[index, digit] > 0][:3]
        said = "  ".join(f"{digit}: {p[index, digit]:.0%}" for digit in best)
        right = best[0] == images.digits[index]
        axes.set_title(said, fontsize=9, color="black" if right else "tab:red")
        axes.set_axis_off()
    return figure
