"""The dial on what `tuned.py` trained: a run of each seed is evaluated at other values, and they are put together.

    python benchmarks/tuned_dial.py sst2 "r-softmax, rate 0.15" model.rate=0,0.15,…,0.9 --runs out/sst2 [--picture FILE]

The trainings must be there, not their lines alone. Each is turned by `parsimax eval RUN KEY=VALUE,…` on the test data;
what is printed are means, the lowest and the highest in brackets. The picture has the other cells of the table, too.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

from tuned import PLANS, Done, Plan, Training, command, read, rows
from tuned_table import shown, table

Places = dict[str, list[dict[str, float]]]


def turned(folder: Path, word: str, figure: str) -> dict[str, dict[str, float]]:
    """Figure and zeros of one run by the value of ``word``."""
    code, error = command("eval", str(folder), word)
    if code:
        raise SystemExit(f"{folder}: {error or f'exit {code}'}")
    key = word.partition("=")[0]
    newest = max((folder / "dial").glob(f"test-{key}*.csv"), key=lambda path: path.stat().st_mtime)
    with newest.open(encoding="utf-8", newline="") as file:
        return {
            row[key]: {"figure": float(row[figure]), "zeros": float(row["zeros of the mapping"])}
            for row in csv.DictReader(file)
        }


def picture(plan: Plan, cell: str, places: Places, others: list[tuple[str, list[Done]]], path: Path) -> None:
    from matplotlib.figure import Figure

    def drawn(name: str, zeros: list[list[float]], values: list[list[float]], line: str) -> None:
        across, up = ([100 * statistics.fmean(some) for some in axis] for axis in (zeros, values))
        reach = [
            [place - 100 * min(some) for place, some in zip(up, values, strict=True)],
            [100 * max(some) - place for place, some in zip(up, values, strict=True)],
        ]
        axes.errorbar(across, up, yerr=reach, fmt=line, capsize=3, markersize=5, linewidth=1, label=name)
        for place, height, value in zip(across, up, places if line != "s" else [], strict=False):
            axes.annotate(value, (place, height), textcoords="offset points", xytext=(4, 5), fontsize=8)

    figure = Figure((7, 3.8), layout="constrained")
    axes = figure.subplots()
    measured = [[[one[name] for one in seeds] for seeds in places.values()] for name in ("zeros", "figure")]
    drawn(f"{cell}, at the rates written", *measured, "o-")  # type: ignore[arg-type]
    for name, chosen in others:
        tests = [done.test for done in chosen if done.test]
        if tests and "zeros" in tests[0]:
            drawn(name, [[test["zeros"] for test in tests]], [[test[plan.figure] for test in tests]], "s")
    axes.set(xlabel="weights that are exactly 0, measured, %", ylabel=f"test {plan.figure}, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=PLANS)
    parser.add_argument("cell")
    parser.add_argument("word", metavar="KEY=VALUE,VALUE,…")
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="where the trainings are kept")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    options = parser.parse_args()
    plan = PLANS[options.table]
    known = [(name, chosen) for name, _, chosen in rows(plan, read(options.runs))]
    chosen = next((chosen for name, chosen in known if name == options.cell), None)
    if chosen is None:
        parser.error(f"{options.cell!r} was not trained in {options.runs}; there are {[name for name, _ in known]}")
    places: Places = {}
    for done in chosen:
        folder = options.runs / Training((0, 0), done.cell, done.values, done.seed).folder
        for value, found in turned(folder, options.word, plan.figure).items():
            places.setdefault(value, []).append(found)
    columns: dict[str, Any] = {f"{plan.figure}, %": "figure", "zeros, %": "zeros"}
    lines = [
        [title, *(shown([100 * one[name] for one in seeds]) for seeds in places.values())]
        for title, name in columns.items()
    ]
    print("\n".join(table([f"`{options.word.partition('=')[0]}`", *places], lines)))
    if options.picture:
        picture(plan, options.cell, places, [each for each in known if each[0] != options.cell], options.picture)


if __name__ == "__main__":
    main()
