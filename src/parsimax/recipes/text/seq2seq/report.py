"""Pictures of a run, and the page on which its attention can be looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....analysis import figures, write_report
from ...kit.runs import Run, read_metrics
from ..codec import Codec
from .evaluate import recorded
from .examples import Examples
from .model import Seq2Seq

SHOWN = 12  # examples on the page


def report(model: Seq2Seq, codec: Codec, examples: Examples, run: Run, folder: Path) -> list[Path]:
    """The curves of training, density and α per head, diversity of heads, and ``attention.html``."""
    folder.mkdir(parents=True, exist_ok=True)
    recording = recorded(model, codec, examples)
    drawn = {
        "training.png": curves(run),
        "density.png": figures.density(recording),
        "alpha.png": figures.alpha(recording),
        "diversity.png": figures.diversity(recording),
    }
    written = []
    for name, figure in drawn.items():
        if figure is not None:
            figure.savefig(folder / name, dpi=150)
            written.append(folder / name)
    page = folder / "attention.html"
    shown = recorded(model, codec, examples, SHOWN)
    write_report(shown, page, title=f"{run.recipe}: {run.folder}", overwrite=True)
    return [*written, page]


def curves(run: Run) -> Any:
    """Loss and accuracy over the steps; None before the first validation."""
    from matplotlib.figure import Figure

    rows = read_metrics(run.metrics)
    series = {
        name: [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
        for name in ("train/loss", "val/loss", "val/accuracy")
    }
    if not series["val/loss"]:
        return None
    figure = Figure((8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in ("train/loss", "val/loss"):
        left.plot(*zip(*series[name], strict=True), label=name)
    right.plot(*zip(*series["val/accuracy"], strict=True), color="tab:green")
    left.set(xlabel="step", ylabel="loss")
    right.set(xlabel="step", ylabel="accuracy, greedy", ylim=(0, 1.02))
    left.legend()
    return figure
