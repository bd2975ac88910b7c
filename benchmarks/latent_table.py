"""Train every method of a recipe with a latent variable, and print the table.

python benchmarks/latent_table.py ssvae steps=1500 --seeds 1,2,3 --rates 0.0005,0.001,0.002 --folder runs/ssvae-table

Each run is `parsimax train RECIPE model.method=M train.lr=R train.seed=S WORDS`, in a folder of its own; what is there
already is resumed or left alone, so the script can be stopped and started again. The rate of a method is the one with
the best validation figure for the first seed; the other seeds are trained with that rate alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import get_args, get_type_hints

from parsimax import cli
from parsimax.recipes import find

FIGURES = {"ssvae": ("accuracy", 1), "emergent": ("accuracy", 1), "bitvae": ("loss", -1)}


def train(recipe: str, method: str, rate: str, seed: str, words: list[str], root: Path) -> dict[str, float]:
    """The validation figures of one run, trained, resumed or found."""
    run = root / f"{method}-{rate}-{seed}"
    own = [f"model.method={method}", f"train.lr={rate}", f"train.seed={seed}", *words]
    command = ["train", "--resume", str(run)] if run.exists() else ["train", recipe, *own, "--run", str(run)]
    if not (run / "results.json").exists() and cli.main(command) != 0:
        raise SystemExit(f"{run} failed")
    if "test" not in json.loads((run / "results.json").read_text()) and cli.main(["eval", str(run)]) != 0:
        raise SystemExit(f"{run} could not be evaluated")
    return json.loads((run / "results.json").read_text())


def table(recipe: str, rates: list[str], seeds: list[str], words: list[str], root: Path) -> str:
    figure, sign = FIGURES[recipe]
    lines = [f"| method | rate | test {figure} | ± | calls |", "|---|---|---|---|---|"]
    for method in get_args(get_type_hints(type(find(recipe).settings().model))["method"]):
        first = {rate: train(recipe, method, rate, seeds[0], words, root) for rate in rates}
        best = max(rates, key=lambda rate: sign * first[rate]["val"][figure])
        runs = [first[best], *(train(recipe, method, best, seed, words, root) for seed in seeds[1:])]
        values, calls = ([run["test"][name] for run in runs] for name in (figure, "calls"))
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        lines.append(
            f"| {method} | {best} | {statistics.mean(values):.4f} | {spread:.4f} | {statistics.mean(calls):.2f} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=FIGURES)
    parser.add_argument("words", nargs="*", help="settings of all runs, key=value")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--rates", default="0.0005,0.001,0.002,0.005")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    root = options.folder or Path("runs") / f"{options.recipe}-table"
    print(table(options.recipe, options.rates.split(","), options.seeds.split(","), options.words, root))


if __name__ == "__main__":
    main()
