"""The figure of docs/multilabel.md: every last layer on made data, by the number of classes and of labels a row.

    python benchmarks/labels_sweep.py --runs out/labels [--seeds 3] [--picture docs/labels_sweep.png] [train.steps=…]

Each point is a training of ``parsimax train multilabel`` at its default settings, untuned, on rows of
``make_multilabel_classification``: micro F1 on its test rows, the mean over the seeds. The rate of r-softmax leaves the
mean number of labels. What is there already is not trained again, and what was stopped is gone on with.
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
CLASSES, LABELS = (5, 10, 20, 50), (1, 2, 4, 8)
BASE = {"classes": 20, "labels": 3}  # what stays while the other changes


def points() -> list[tuple[int, int]]:
    """(Classes, mean labels a row) of both curves."""
    return [*((classes, BASE["labels"]) for classes in CLASSES), *((BASE["classes"], labels) for labels in LABELS)]


def measured(layer: str, classes: int, labels: int, seed: int, runs: Path, words: list[str]) -> dict[str, Any]:
    """The test figures of one training, which is done if it is missing."""
    folder = runs / f"{layer}-{classes}-{labels}-{seed}"
    results = folder / "results.json"
    known = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    if "test" not in known:
        rate = 1 - labels / classes + 0.001  # so that rounding leaves as many labels
        given = [f"model.layer={layer}", f"model.rate={rate:.4f}", f"data.classes={classes}", f"data.average={labels}"]
        begun = ["train", "multilabel", *given, f"train.seed={seed}", "train.tensorboard=false", *words]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            anew = ["train", "--resume", str(folder)] if (folder / "config.yaml").exists() else begun
            for command in ([*anew, *([] if anew[1] == "--resume" else ["--run", str(folder)])], ["eval", str(folder)]):
                if cli.main(command):
                    raise SystemExit(f"{folder}: {said.getvalue()}")
        known = json.loads(results.read_text(encoding="utf-8"))
        print(f"{folder.name}: micro F1 {known['test']['micro F1']:.3f}", flush=True)
    test: dict[str, Any] = known["test"]
    return test


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
    found = {}
    for classes, labels in points():
        for layer in LAYERS:
            seeds = range(1, options.seeds + 1)
            tests = [measured(layer, classes, labels, seed, options.runs, options.settings) for seed in seeds]
            found[layer, classes, labels] = [test["micro F1"] for test in tests]
    print("| layer | " + " | ".join(f"{classes} classes, {labels} labels" for classes, labels in points()) + " |")
    print("|---" * (len(points()) + 1) + "|")
    for layer in LAYERS:
        cells = [f"{100 * statistics.fmean(found[(layer, *point)]):.1f}" for point in points()]
        print(f"| {layer} | " + " | ".join(cells) + " |")
    if options.picture:
        picture(found, options.picture)


if __name__ == "__main__":
    main()
