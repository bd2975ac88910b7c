"""The tables of docs/inflection.md and docs/translation.md: trains what is missing, goes on with what was stopped.

    python benchmarks/seq2seq.py inflection --data PATH/sigmorphon2018 --runs out/inflection
    python benchmarks/seq2seq.py translation --data PATH/multi30k --runs out/translation

Words such as ``steps=100`` after that are settings for every run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "src" / "parsimax" / "recipes"


@dataclass(frozen=True)
class Grid:
    """The runs of a table: settings by name, seeds, and the figures that become columns."""

    config: str
    runs: dict[str, list[str]]
    seeds: tuple[int, ...]
    columns: dict[str, str]


def cell(output: str, attention: str) -> list[str]:
    return [f"model.output.mapping={output}", f"model.attention.mapping={attention}"]


def attention(mapping: str, alpha: str, output: str) -> list[str]:
    parts = [word for part in ("encoder", "decoder", "context") for word in (part,)]
    words = [f"model.{part}.{key}" for part in parts for key in (f"mapping={mapping}", f"alpha={alpha}")]
    return [*words, f"model.output.mapping={output}"]


GRIDS = {
    "inflection": Grid(
        "sigmorphon",
        {
            "softmax / softmax": cell("softmax", "softmax"),
            "softmax / 1.5-entmax": cell("softmax", "entmax"),
            "1.5-entmax / softmax": cell("entmax", "softmax"),
            "1.5-entmax / 1.5-entmax": cell("entmax", "entmax"),
            "sparsemax / sparsemax": cell("sparsemax", "sparsemax"),
        },
        (1, 2),
        {
            "accuracy": "accuracy",
            "edit distance": "edit distance",
            "attended tokens (cross)": "attended",
            "next tokens a step": "next characters",
            "beam proved exact": "beam proved exact",
            "empty outputs": "empty",
            "step time / softmax": "step time / softmax",
        },
    ),
    "translation": Grid(
        "multi30k",
        {
            "softmax": attention("softmax", "1.5", "softmax"),
            "1.5-entmax": attention("entmax", "1.5", "entmax"),
            "learned α": attention("entmax", "learned", "entmax"),
        },
        (1,),
        {
            "BLEU": "BLEU",
            "chrF": "chrF",
            "density (self)": "density, encoder",
            "density (decoder)": "decoder",
            "density (cross)": "context",
            "next tokens a step": "next tokens",
            "beam proved exact": "beam proved exact",
            "beam was the best there": "beam = exact search where it ended",
            "step time / softmax": "step time / softmax",
        },
    ),
}


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "parsimax.cli", *words], check=True)


def folder_of(runs: Path, name: str, seed: int) -> Path:
    return runs / f"{name.replace(' / ', '-').replace(' ', '-')}-{seed}"


def run_one(
    recipe: str, grid: Grid, name: str, seed: int, options: argparse.Namespace, more: list[str]
) -> dict[str, Any]:
    """The figures of one run on the test data, trained or taken from its folder."""
    folder = folder_of(options.runs, name, seed)
    results = folder / "results.json"
    done = json.loads(results.read_text()) if results.exists() else {}
    if "val" not in done:
        print(f"{time.strftime('%H:%M')} {folder}", flush=True)
        if (folder / "run.json").exists():
            command("train", "--resume", str(folder))
        else:
            config = CONFIGS / recipe / "configs" / f"{grid.config}.yaml"
            words = [*grid.runs[name], f"train.seed={seed}", f"data.root={options.data}", *more]
            command("train", recipe, "--config", str(config), "--run", str(folder), *words)
    if "test" not in done:
        command("eval", str(folder))
    return dict(json.loads(results.read_text())["test"])


def speed(recipe: str, folder: Path) -> dict[str, float]:
    """What a step of the trained model costs beside its softmax twin; on an idle machine."""
    from parsimax.recipes import find
    from parsimax.recipes.kit import runs
    from parsimax.recipes.kit.training import restore

    entry, run = find(recipe), runs.open_run(folder)
    settings = run.settings(entry.settings())
    task = restore(entry.recipe().reopen(settings, run), run.best)
    return {"step time / softmax": 1.0, **entry.recipe().speed(task, settings)}


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def shown(values: list[Any]) -> str:
    numbers = [value for value in values if isinstance(value, (int, float))]
    if not numbers:
        return "–"
    mean = number(statistics.fmean(numbers))
    return mean if len(numbers) == 1 else f"{mean} ({number(min(numbers))}…{number(max(numbers))})"


def cpu() -> str:
    from parsimax.bench.report import machine

    return machine()["cpu"]


def page(recipe: str, grid: Grid, results: dict[str, list[dict[str, Any]]], call: str) -> str:
    lines = [
        f"# {recipe.capitalize()}: measured",
        "",
        f"Written by `{call}`; means over {len(grid.seeds)} seed(s), lowest and highest in brackets; test data; "
        "step time: forward and backward pass of the trained model beside the same model with softmax, in turns in one "
        f"process on {cpu()}.",
        "",
        f"| {'output / attention' if recipe == 'inflection' else 'attention'} | {' | '.join(grid.columns.values())} |",
        "|---" * (len(grid.columns) + 1) + "|",
    ]
    for name, runs in results.items():
        cells = [shown([run.get(key) for run in runs]) for key in grid.columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if recipe == "inflection":
        languages = list(next(iter(results.values()))[0]["accuracy by language"])
        lines += ["", "Accuracy by language:", "", f"| output / attention | {' | '.join(languages)} |"]
        lines.append("|---" * (len(languages) + 1) + "|")
        for name, runs in results.items():
            cells = [shown([run["accuracy by language"][language] for run in runs]) for language in languages]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=GRIDS)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--page", type=Path, metavar="FILE", help="docs/RECIPE_results.md if not given")
    options, more = parser.parse_known_args()
    grid = GRIDS[options.recipe]
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in grid.seeds:
        for name in grid.runs:
            one = run_one(options.recipe, grid, name, seed, options, [*options.settings, *more])
            results.setdefault(name, []).append(one)
    for name in grid.runs:  # after all training, so that nothing else runs
        for seed, one in zip(grid.seeds, results[name], strict=True):
            one |= speed(options.recipe, folder_of(options.runs, name, seed))
    out = options.page or ROOT / "docs" / f"{options.recipe}_results.md"
    call = " ".join(["python", "benchmarks/seq2seq.py", options.recipe, "--data", "PATH", *options.settings, *more])
    out.write_text(page(options.recipe, grid, results, call), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
