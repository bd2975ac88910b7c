"""Output heads on the paper's synthetic cells: how well do they fit distributions drawn from a Dirichlet?

    python benchmarks/bottleneck.py run --runs out/bottleneck
    python benchmarks/bottleneck.py table --runs out/bottleneck [--picture docs/bottleneck.png]

`run` does what is missing, in the order of the plan, on one thread, and goes on with what was stopped: a training is a
run of its recipe, and a line of RUNS/results.jsonl when it is done. Several may run at once in the same folder. Words
such as ``train.steps=100`` at the end are settings for every training, and ``--cell 'plif-*-300'`` takes those cells
alone. `table` prints what is done, also when not all is, and draws heat maps of it beside those of the paper.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from parsimax.recipes.bottleneck import paper

WIDTHS, CLASSES = (3, 6, 10, 30), (30, 100, 300)
HEADS = {
    "linear": ["model.head=linear"],
    "monotonic": ["model.head=monotonic"],
    "plif": ["model.head=plif"],
    "mixture": ["model.head=mixture"],
    "mixture-no-tanh": ["model.head=mixture", "tanh=false"],
}
CONTEXTS = {30: 50_000, 100: 20_000, 300: 20_000}  # by classes; the paper has 100 000
COMMON = ["steps=400", "eval_every=200", "tensorboard=false"]


@dataclass(frozen=True)
class Cell:
    """A training."""

    head: str
    width: int
    classes: int

    @property
    def name(self) -> str:
        return f"{self.head}-{self.width}-{self.classes}"

    @property
    def words(self) -> list[str]:
        data = [f"classes={self.classes}", f"contexts={CONTEXTS[self.classes]}"]
        return [*HEADS[self.head], f"width={self.width}", *data]


def cells() -> Iterator[Cell]:
    """The paper's heads first."""
    for other in (False, True):
        for classes in CLASSES:
            for head in HEADS:
                if head.endswith("no-tanh") == other:
                    yield from (Cell(head, width, classes) for width in WIDTHS)


def results(runs: Path) -> dict[str, dict[str, Any]]:
    """The figures of what is done, by the name of its cell."""
    path = runs / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {one.pop("cell"): one for one in map(json.loads, lines)}


def train(cell: Cell, runs: Path, words: list[str]) -> None:
    """Train what another process is not training."""
    folder = runs / cell.name
    with (runs / f".{cell.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if cell.name in results(runs):
            return
        begun = (folder / "config.yaml").exists()
        keys = {word.partition("=")[0].rpartition(".")[2] for word in words}
        own = [word for word in [*COMMON, *cell.words] if word.partition("=")[0].rpartition(".")[2] not in keys]
        given = ["--resume", str(folder)] if begun else ["bottleneck", *own, *words, "--run", str(folder)]
        call = [sys.executable, "-m", "parsimax_command", "train", *given]
        print(" ".join(call[3:]), flush=True)
        if not (folder / "results.json").exists():
            subprocess.run(call, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        figures = json.loads((folder / "results.json").read_text(encoding="utf-8"))["val"]
        with (runs / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": cell.name, **figures}) + "\n")


def table(runs: Path) -> str:
    lines = [
        "| head | D | M | contexts | mode match | paper | KL | paper | rank |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    known = results(runs)
    for cell in cells():
        found = known.get(cell.name)
        if not found:
            continue
        theirs = paper.figures(cell.head.split("-")[0], cell.width, cell.classes)
        mode, divergence = theirs.get("paper mode match", "–"), theirs.get("paper KL", "–")
        mine = f"{found['mode match']:.3f} | {mode} | {found['KL']:.3f} | {divergence}"
        shape = f"{cell.head} | {cell.width} | {cell.classes} | {found['contexts']}"
        lines.append(f"| {shape} | {mine} | {found['rank']} |")
    return "\n".join(lines)


def picture(runs: Path, path: Path) -> None:
    """Heat maps, D down and M across: mode match and KL of every head, ours above the paper's."""
    from matplotlib.figure import Figure

    known, figures = results(runs), {"mode match": (paper.MODE, 1.0), "KL": (paper.KL, 1.9)}
    figure = Figure((2.5 * len(HEADS), 8.4), layout="constrained")
    grid = figure.subplots(2 * len(figures), len(HEADS), squeeze=False)
    for below, (name, (theirs, high)) in enumerate(figures.items()):
        for column, head in enumerate(HEADS):
            ours = [[known.get(Cell(head, d, m).name, {}).get(name) for m in CLASSES] for d in WIDTHS]
            heat(grid[2 * below][column], ours, high, f"{head}, {name}: here")
            printed, axes = theirs.get(head.split("-")[0]), grid[2 * below + 1][column]
            if printed is None or head.endswith("no-tanh"):
                axes.set_axis_off()
                continue
            read = [[printed[paper.WIDTHS.index(d)][paper.CLASSES.index(m)] for m in CLASSES] for d in WIDTHS]
            heat(axes, read, high, f"{head}, {name}: paper")
    figure.savefig(path, dpi=110)


def heat(axes: Any, values: list[list[float | None]], high: float, title: str) -> None:
    numbers = [[math.nan if value is None else value for value in row] for row in values]
    axes.imshow(numbers, vmin=0, vmax=high, cmap="viridis", aspect="auto")
    axes.set_title(title, fontsize=8)
    axes.set_xticks(range(len(CLASSES)), CLASSES, fontsize=7)
    axes.set_yticks(range(len(WIDTHS)), WIDTHS, fontsize=7)
    for down, row in enumerate(numbers):
        for across, value in enumerate(row):
            text, color = "–" if math.isnan(value) else f"{value:.2f}", "white" if value < high / 2 else "black"
            axes.text(across, down, text, ha="center", va="center", fontsize=7, color=color)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--picture", type=Path, help="draw the heat maps")
    parser.add_argument("--cell", action="append", metavar="PATTERN", help="train these alone, in this order")
    parser.add_argument("words", nargs="*")
    given = parser.parse_intermixed_args()
    if given.action == "table":
        print(table(given.runs))
        if given.picture:
            picture(given.runs, given.picture)
        return
    given.runs.mkdir(parents=True, exist_ok=True)
    for pattern in given.cell or ["*"]:
        for cell in cells():
            if fnmatchcase(cell.name, pattern):
                train(cell, given.runs, given.words)


if __name__ == "__main__":
    main()
