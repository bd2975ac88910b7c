"""The figure of docs/multilabel.md: every last layer on made data, by the number of classes and of labels a row.

    python benchmarks/labels_sweep.py --runs out/labels [--seeds 3] [--picture docs/labels_sweep.png] [train.steps=…]

Each point is a training of ``parsimax train multilabel`` on rows of ``make_multilabel_classification``: micro F1 on its
test rows, the mean over the seeds. A layer has the learning rate that was best for it on validation rows of the point
where both curves cross, with seed 1; the other settings are the default ones. The rate of r-softmax leaves the mean
number of labels. What is there already is not trained again, and what was stopped is gone on with.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
from pathlib import Path
from typing import Any

from parsimax import cli
from parsimax.recipes.multilabel.settings import Layer

LAYERS: tuple[str, ...] = Layer.__args__  # type: ignore[attr-defined]
CLASSES, LABELS = (5, 10, 20, 50), (1, 3, 6, 10)
RATES = (0.002, 0.008, 0.03, 0.0005)
BASE = {"classes": 20, "labels": 3}  # what stays while the other changes


def points() -> list[tuple[int, int]]:
    """(Classes, mean labels a row) of both curves."""
    by_classes = [(classes, BASE["labels"]) for classes in CLASSES]
    return [*by_classes, *((BASE["classes"], labels) for labels in LABELS if labels != BASE["labels"])]


def measured(layer: str, point: tuple[int, int], lr: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one training by split; it is done if it is missing."""
    classes, labels = point
    folder = options.runs / f"{layer}-{classes}-{labels}-lr{lr:g}-{seed}"
    results = folder / "results.json"
    known: dict[str, Any] = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    if "test" not in known:
        own = [f"model.layer={layer}", f"data.classes={classes}", f"data.average={labels}"]
        if layer == "rsoftmax":
            own.append(f"model.rate={1 - labels / classes + 0.001:.4f}")  # so that rounding leaves as many labels
        own += [f"train.lr={lr:g}", f"train.seed={seed}", "train.tensorboard=false", *options.settings]
        begun = (folder / "config.yaml").exists()
        train = ["train", "--resume", str(folder)] if begun else ["train", "multilabel", *own, "--run", str(folder)]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            for command in (train, ["eval", str(folder)]):
                if cli.main(command):
                    raise SystemExit(f"{folder}: {said.getvalue()}")
        known = json.loads(results.read_text(encoding="utf-8"))
        print(f"{folder.name}: micro F1 {known['test']['micro F1']:.3f}", flush=True)
    return known


def chosen_rate(layer: str, options: argparse.Namespace) -> float:
    """By the micro F1 of validation rows, never of test rows."""
    crossing = (BASE["classes"], BASE["labels"])
    found = {lr: measured(layer, crossing, lr, 1, options)["val"]["micro F1"] for lr in RATES}
    print(f"{layer}: " + ", ".join(f"lr {lr:g} {100 * value:.1f}" for lr, value in found.items()), flush=True)
    return max(RATES, key=lambda lr: found[lr])


def spread(values: list[float]) -> str:
    """The mean in percent, the lowest and the highest in brackets."""
    return f"{100 * statistics.fmean(values):.1f} ({100 * min(values):.1f}…{100 * max(values):.1f})"


def picture(found: dict[tuple[str, int, int], list[float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure((10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for layer in LAYERS:
        style = {"marker": "o", "linestyle": "--" if layer.startswith("rsoftmax") else "-", "label": layer}
        by_classes = [statistics.fmean(found[layer, classes, BASE["labels"]]) for classes in CLASSES]
        by_labels = [statistics.fmean(found[layer, BASE["classes"], labels]) for labels in LABELS]
        left.plot(CLASSES, by_classes, **style)
        right.plot(LABELS, by_labels, **style)
    left.set(xscale="log", xticks=CLASSES, xticklabels=CLASSES, xlabel=f"classes ({BASE['labels']} labels a row)")
    right.set(xscale="log", xticks=LABELS, xticklabels=LABELS, xlabel=f"labels a row ({BASE['classes']} classes)")
    left.set_ylabel("micro F1, test rows")
    for axes in (left, right):
        axes.minorticks_off()
    right.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="where the trainings are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path, metavar="FILE")
    options = parser.parse_intermixed_args()
    rates = {layer: chosen_rate(layer, options) for layer in LAYERS}
    found = {}
    for point in points():
        for layer in LAYERS:
            runs = [measured(layer, point, rates[layer], seed, options) for seed in range(1, options.seeds + 1)]
            found[(layer, *point)] = [run["test"]["micro F1"] for run in runs]
    print("| layer | learning rate | " + " | ".join(f"{n} classes, {labels} labels" for n, labels in points()) + " |")
    print("|---" * (len(points()) + 2) + "|")
    for layer in LAYERS:
        cells = [spread(found[(layer, *point)]) for point in points()]
        print(f"| {layer} | {rates[layer]:g} | " + " | ".join(cells) + " |")
    if options.picture:
        picture(found, options.picture)


if __name__ == "__main__":
    main()
