"""Pictures of a run: the curves of training, and how well each label is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..kit.inputs import shortened
from ..kit.pictures import curves, drawable, save
from ..kit.runs import Run
from .data import Rows

SHOWN = 30  # labels


def pictures(rows: Rows, given: Tensor, run: Run, folder: Path) -> list[Path]:
    """``training.png`` and ``labels.png`` in ``folder``."""
    return [*save({"training": curves(run, "loss", "micro F1"), "labels": by_label(rows, given)}, folder)]


def by_label(rows: Rows, given: Tensor) -> Any:
    """F1 of the most frequent labels, each with the number of rows that have it."""
    from matplotlib.figure import Figure

    wanted = rows.labels
    count = wanted.sum(0)
    shown = count.argsort(descending=True, stable=True)[:SHOWN].tolist()
    right, both = 2 * (given & wanted).sum(0), (given.sum(0) + count).clamp(min=1)
    figure = Figure((6, 0.8 + 0.25 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(shown)), [(right / both)[at].item() for at in shown])
    names = [f"{drawable(shortened(rows.names[at], 24))} ({count[at].item()})" for at in shown]
    axes.set_yticks(range(len(shown)), names, parse_math=False)
    axes.set(xlim=(0, 1), xlabel="F1 on the validation rows")
    axes.invert_yaxis()
    return figure
