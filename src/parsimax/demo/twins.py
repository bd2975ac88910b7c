"""An adaptively sparse Transformer and its softmax twin, trained on number words, side by side."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._attention import AttentionCore
from ..recipes import find
from ..recipes.kit import runs
from ..recipes.kit.settings import changed

STEPS, QUICK = 600, 4
SOFTMAX = {f"model.{part}.mapping": "softmax" for part in ("encoder", "decoder", "context", "output")}
MODELS: dict[str, dict[str, str]] = {"softmax": SOFTMAX, "sparse, learned α": {}}


@dataclass(frozen=True)
class Model:
    """A run, what was measured, and how long it took."""

    run: runs.Run
    figures: dict[str, Any]
    seconds: float
    start: dict[str, list[float]]  # α before training, by name of the core


def train(words: dict[str, str], steps: int, folder: Path, show: Callable[[str], None]) -> Model:
    from ..recipes.kit.training import fit, restore

    entry = find("translation")
    more: dict[str, Any] = {"train.steps": steps, "train.eval_every": min(200, steps), "train.tensorboard": False}
    if steps == QUICK:  # untrained models do not end
        more |= {"search.longest": 8, "search.beam": 2, "search.exact_budget": 0}
    settings = changed(entry.settings(), {**words, **more})
    run, recipe = runs.create(entry.name, settings, folder), entry.recipe()
    task = recipe.start(settings, run)
    start, began = alphas(task), time.perf_counter()
    fit(task, run, say=show, watched=False)
    seconds = time.perf_counter() - began
    best = restore(recipe.reopen(settings, run, data=False), run.best)
    found = recipe.evaluate(best, settings, "test", show)
    figures = {**found.figures, **recipe.speed(task, settings), **task.pace()}
    run.add_results("test", figures)
    return Model(run, figures, seconds, start)


def alphas(task: Any) -> dict[str, list[float]]:
    """α of each head, by name of the attention layer."""
    cores = ((name, module) for name, module in task.model.named_modules() if isinstance(module, AttentionCore))
    return {name: core.alpha.tolist() for name, core in cores if core.alpha is not None}


def text(folder: Path, quick: bool) -> tuple[str, Path]:
    """Both models side by side, and the page on which the attention of the sparse one can be looked at."""
    from ..recipes.kit.training import restore

    steps = QUICK if quick else STEPS
    trained = {}
    for name, words in MODELS.items():
        show(f"training {name}, {steps} steps")
        trained[name] = train(words, steps, next(runs.free(folder / "runs")), show)
    show("")
    sparse = trained["sparse, learned α"]
    entry = find("translation")
    settings: Any = sparse.run.settings(entry.settings())
    recipe = entry.recipe()
    task = restore(recipe.reopen(settings, sparse.run, data=False), sparse.run.best)
    page = recipe.report(task, settings, sparse.run, sparse.run.folder / "report")[-1]
    lines = [
        f"Number words, English → German: {len(recipe.pairs(settings, 'train'))} pairs to train, "
        f"{sparse.figures['examples']} held out; a Transformer of {settings.model.layers} + {settings.model.layers} "
        f"layers with {settings.model.heads} heads, {steps} steps.",
        "",
        row("", *trained),
    ]
    for title, cell in ROWS.items():
        lines.append(row(title, *(cell(one) for one in trained.values())))
    lines += ["", "α by layer and head, from its random start to where training took it:"]
    for name, values in alphas(task).items():
        stack, layer, kind, *_ = name.split(".")
        title = "context" if kind == "context" else stack
        steps_of = "   ".join(f"{a:.2f} → {b:.2f}" for a, b in zip(sparse.start[name], values, strict=True))
        lines.append(f"  {title:8} layer {int(layer) + 1}   {steps_of}   mean {statistics.fmean(values):.2f}")
    return "\n".join(lines), page


ROWS: dict[str, Callable[[Model], str]] = {
    "right": lambda one: f"{one.figures['accuracy']:.1%}",
    "next tokens a step": lambda one: f"{one.figures['next tokens a step']:.2f}",
    "attended, encoder": lambda one: f"{one.figures['attended tokens (self)']:.2f}",
    "attended, decoder": lambda one: f"{one.figures['attended tokens (decoder)']:.2f}",
    "attended, context": lambda one: f"{one.figures['attended tokens (cross)']:.2f}",
    "density, all heads": lambda one: (
        f"{statistics.fmean(one.figures[f'density ({kind})'] for kind in ('self', 'decoder', 'cross')):.2f}"
    ),
    "beam proved exact": lambda one: f"{one.figures['beam proved exact']:.0%}",
    "exact search ended": lambda one: f"{one.figures.get('exact search ended', math.nan):.0%}",
    "ms of a step": lambda one: f"{one.figures['step ms']:.0f}",
    "step / softmax": lambda one: f"{one.figures.get('step time / softmax', 1.0):.2f}",
    "training, s": lambda one: f"{one.seconds:.0f}",
}


def row(title: str, *cells: str) -> str:
    return f"{title:20}" + "".join(f"{cell:>20}" for cell in cells)


def show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
