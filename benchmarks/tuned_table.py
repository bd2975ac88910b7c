"""The page of `tuned.py`: what each cell chose, what that gave on the test data, and how it got there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuned import Done, Plan

    Row = tuple[str, list[Done], list[Done]]

SHOWN = 10  # places of a curve
COLUMNS = {
    "multilabel": {
        "micro F1, %": lambda test: 100 * test["micro F1"],
        "macro F1, %": lambda test: 100 * test["macro F1"],
        "example F1, %": lambda test: 100 * test["example F1"],
        "subset accuracy, %": lambda test: 100 * test["subset accuracy"],
        "Hamming loss": lambda test: test["Hamming loss"],
        "labels a row": lambda test: test["predicted labels a row"],
        "zeros, %": lambda test: 100 * test["zeros"],
    },
    "finetune": {
        "accuracy, %": lambda test: 100 * test["accuracy"],
        "F1, %": lambda test: 100 * test["F1"],
        "Matthews": lambda test: test["Matthews"],
        "zeros, %": lambda test: 100 * test["zeros"],
        "attended tokens": lambda test: test["attended tokens"],
    },
    "lm": {
        "perplexity": lambda test: test["perplexity"],
        "ε-perplexity": lambda test: test["ε-perplexity"],
        "sparsemax score": lambda test: test["sparsemax score"],
        "Jensen–Shannon": lambda test: test["Jensen–Shannon"],
        "possible words": lambda test: test["possible words"],
        "rank": lambda test: test.get("rank", math.nan),
        "repetition": lambda test: test["repetition of written text"],
    },
    "ssvae": {
        "accuracy, %": lambda test: 100 * test["accuracy"],
        "decoder calls": lambda test: test["calls"],
        "−ELBO a pixel, nats": lambda test: test["loss"],
    },
    "emergent": {
        "accuracy, %": lambda test: 100 * test["accuracy"],
        "expected accuracy, %": lambda test: 100 * test["expected accuracy"],
        "calls": lambda test: test["calls"],
        "messages": lambda test: test["messages"],
    },
    "bitvae": {
        "bits a pixel": lambda test: test["loss"],
        "rate, nats": lambda test: test["rate"],
        "distortion, nats": lambda test: test["distortion"],
        "calls": lambda test: test["calls"],
        "support 1, %": lambda test: 100 * test["support 1"],
    },
    "ape": {
        "TER": lambda test: test["TER"],
        "BLEU": lambda test: test["BLEU"],
        "chrF": lambda test: test["chrF"],
        "TER doing nothing": lambda test: test["TER doing nothing"],
        "changed": lambda test: test["changed"],
        "improved": lambda test: test["improved"],
        "worsened": lambda test: test["worsened"],
    },
    "inflection": {
        "accuracy, %": lambda test: 100 * statistics.fmean(test["accuracy by language"].values()),
        "edit distance": lambda test: test["edit distance"],
        "attended": lambda test: test["attended tokens (cross)"],
        "next characters": lambda test: test["next tokens a step"],
        "beam proved exact, %": lambda test: 100 * test["beam proved exact"],
        "empty": lambda test: test["empty outputs"],
    },
    "translation": {
        "BLEU": lambda test: test["BLEU"],
        "chrF": lambda test: test["chrF"],
        "density, encoder": lambda test: test["density (self)"],
        "decoder": lambda test: test["density (decoder)"],
        "context": lambda test: test["density (cross)"],
        "next tokens": lambda test: test["next tokens a step"],
        "beam proved exact, %": lambda test: 100 * test["beam proved exact"],
    },
}


def number(value: float, digits: int = 3) -> str:
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def shown(values: Sequence[float]) -> str:
    """Mean, and the least and the largest where there are several."""
    if not values:
        return "–"
    mean = number(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ({number(min(values))}…{number(max(values))})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def short(key: str) -> str:
    return {"train.lr": "learning rate"}.get(key, key.partition(".")[2])


def page(plan: Plan, rows: list[Row]) -> str:
    tuned = (
        f"Each cell chose {' and '.join(map(short, plan.grid))} from the same grid by its own dev {plan.figure} "
        "(the table of the tuning has every try); what it chose was trained with the seeds given."
    )
    common = {word.partition("=")[0]: word for word in plan.common}.values()  # the last of a setting counts
    about = (
        f"Printed by `python benchmarks/tuned.py table {plan.data or plan.recipe} --runs RUNS` from what `run` trained "
        f"there: {', '.join(common) or 'the shipped settings'}, the rest as "
        f"{f'`{plan.config}.yaml` has it' if plan.config else 'it is by default'}. "
        f"{tuned if plan.grid else 'Nothing was tuned on these data: the settings of a cell are in the plan.'} "
        "Means over seeds, the lowest and the highest in brackets; test data, which nothing was chosen by."
    )
    lines = [
        f"# {plan.recipe.capitalize()}{f', {plan.data}' if plan.data else ''}: measured",
        "",
        about,
        "",
        *final(plan, rows),
        *by_language(plan, rows),
        *(tries(plan, rows) if plan.grid else []),
        *curves(plan, rows),
        *cost(rows),
    ]
    return "\n".join(lines)


def final(plan: Plan, rows: list[Row]) -> list[str]:
    columns: dict[str, Callable[[dict[str, Any]], float]] = COLUMNS[plan.recipe]
    cells = []
    for cell, _, chosen in rows:
        tested = [{**done.test, "dev": done.dev} for done in chosen if done.test]
        figures = [shown([column(test) for test in tested]) for column in columns.values()]
        settings = [f"{value:g}" for value in chosen[0].values.values()]
        cells.append([cell, *settings, str(len(tested)), *figures])
    return table([plan.cells_are, *map(short, plan.grid), "seeds", *columns], cells)


def by_language(plan: Plan, rows: list[Row]) -> list[str]:
    if not any("accuracy by language" in done.test for _, _, chosen in rows for done in chosen):
        return []
    tested = [(cell, [done.test["accuracy by language"] for done in chosen if done.test]) for cell, _, chosen in rows]
    languages = list(next(tests[0] for _, tests in tested if tests))
    cells = [[cell, *(shown([100 * test[name] for test in tests]) for name in languages)] for cell, tests in tested]
    return ["Accuracy by language, %:", "", *table([plan.cells_are, *languages], cells)]


def tries(plan: Plan, rows: list[Row]) -> list[str]:
    """The dev figure of everything that was tried, with the first seed."""
    first = {cell: [done for done in own if done.seed == plan.seeds[0]] for cell, own, _ in rows}
    found = sorted({tuple(done.values.items()) for own in first.values() for done in own})
    cells = []
    for values in found:
        figures = []
        for own in first.values():
            done = next((done for done in own if tuple(done.values.items()) == values), None)
            figures.append("" if done is None else "failed" if done.failed else number(done.dev[plan.figure], 4))
        cells.append([", ".join(f"{short(key)} {value:g}" for key, value in values), *figures])
    return [f"Tuning: dev {plan.figure} with seed {plan.seeds[0]}.", "", *table(["settings", *first], cells)]


def curves(plan: Plan, rows: list[Row]) -> list[str]:
    """Dev loss over the steps of what was chosen: is it flat? Losses of different outputs do not compare."""
    every = sorted({int(point["step"]) + 1 for _, _, chosen in rows for done in chosen for point in done.curve})
    steps = every[-1 :: -max(1, -(-len(every) // SHOWN))][::-1]
    cells = []
    for cell, _, chosen in rows:
        judged = plan.figure if any(plan.figure in point for done in chosen for point in done.curve) else "accuracy"
        greedy = "greedy " if plan.recipe in ("inflection", "translation", "ape") else ""
        told = [("loss", "dev loss", 1.0)]
        if judged != "loss" and any(judged in point for done in chosen for point in done.curve):
            share = 1.0 if plan.least else 100.0
            told.append((judged, f"{greedy}dev {judged}{'' if plan.least else ', %'}", share))
        for name, title, scale in told:
            at = {
                step: [scale * p[name] for done in chosen for p in done.curve if p["step"] + 1 == step and name in p]
                for step in steps
            }
            cells.append([cell, title, *map(shown_mean, at.values())])
    head = [plan.cells_are, "after steps", *map(str, steps)]
    return ["Learning curves of what was chosen, means over the seeds.", "", *table(head, cells)]


def cost(rows: list[Row]) -> list[str]:
    every = [done for _, own, _ in rows for done in own]
    clocked = sum(not done.core_seconds for done in every)
    spent = sum(done.core_seconds or done.dev.get("training seconds", 0.0) for done in every)
    by = f", {clocked} of them by the clock of the training alone" if clocked else ""
    return [f"{len(every)} trainings, with validations and tests: {spent / 60:.0f} minutes of one core{by}.", ""]


def shown_mean(values: Sequence[float]) -> str:
    return number(statistics.fmean(values), 4) if values else ""
