"""Output heads in two experiments: the paper's synthetic cells, and language models on WikiText-2.

    python benchmarks/heads.py run bottleneck --runs out/bottleneck
    python benchmarks/heads.py run lm --runs out/lm --data PATH/wikitext2
    python benchmarks/heads.py table bottleneck --runs out/bottleneck

`run` does what is missing, in the order of the plan, on one thread, and goes on with what was stopped: a training is a
run of its recipe, whose folder says what it was. `--most 5` stops after so many. Words such as ``train.steps=100`` at
the end are settings for every training. `table` prints what is done, also when not all is.

Of `lm` every head is trained at each learning rate of one grid with seed 1, and once more with seed 2 at the rate with
the least validation figure: perplexity, or the loss of a sparse output.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsimax.recipes.bottleneck import paper

WIDTHS, CLASSES = (3, 6, 10, 30), (30, 100, 300)
SYNTHETIC = {
    "linear": ["model.head=linear"],
    "mixture": ["model.head=mixture"],
    "mixture, no tanh": ["model.head=mixture", "tanh=false"],
    "monotonic": ["model.head=monotonic"],
    "plif": ["model.head=plif"],
}
LANGUAGE = {
    "linear": ["model.head=linear"],
    "plif": ["model.head=plif"],
    "sigsoftmax": ["model.head=sigsoftmax"],
    "mixture": ["model.head=mixture"],
    "1.5-entmax": ["model.head=linear", "model.output.mapping=entmax15"],
}
MODELS = {"narrow": ["embedding=32", "hidden=200"], "wide": ["embedding=200", "hidden=200"]}
RATES = (0.005, 0.0025, 0.01)
COMMON = {
    "bottleneck": ["contexts=50000", "steps=1000", "eval_every=500", "tensorboard=false"],
    "lm": ["columns=32", "window=32", "steps=2000", "eval_every=1000", "eval_words=60000", "tensorboard=false"],
}


@dataclass(frozen=True)
class Cell:
    """A training: the folder that it is in, and its settings."""

    name: str
    words: list[str]


def cells(what: str, runs: Path) -> Iterator[Cell]:
    if what == "bottleneck":
        for classes in CLASSES:
            for width in WIDTHS:
                for head, words in SYNTHETIC.items():
                    name = f"{head.replace(', ', '-').replace(' ', '-')}-{width}-{classes}"
                    yield Cell(name, [*words, f"width={width}", f"classes={classes}"])
        return
    for model, shape in MODELS.items():
        for head, words in LANGUAGE.items():
            tried = [Cell(f"{model}-{head}-{rate:g}-1", [*shape, *words, f"lr={rate:g}", "seed=1"]) for rate in RATES]
            yield from tried
            done = [cell for cell in tried if results(runs / cell.name)]
            if len(done) == len(tried):
                best = min(done, key=lambda cell: figure(results(runs / cell.name)))
                yield Cell(best.name[:-1] + "2", [*best.words[:-1], "seed=2"])


def results(run: Path) -> dict[str, Any]:
    path = run / "results.json"
    found: dict[str, Any] = json.loads(path.read_text()).get("val", {}) if path.exists() else {}
    return found


def figure(found: dict[str, Any]) -> float:
    """What a rate is chosen by."""
    perplexity = float(found["perplexity"])
    return perplexity if perplexity < float("inf") else float(found["loss"])


def run(what: str, runs: Path, data: Path | None, most: int, words: list[str]) -> None:
    command = [str(Path(sys.executable).with_name("parsimax"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = [f"data.root={data}"] if data else []
    keys = {word.partition("=")[0].rpartition(".")[2] for word in words}
    common = [word for word in COMMON[what] if word.partition("=")[0] not in keys]
    done = 0
    while done < most:
        missing = [cell for cell in cells(what, runs) if not results(runs / cell.name)]
        if not missing:
            return
        cell = missing[0]
        folder = runs / cell.name
        begun = (folder / "run.json").exists()
        given = ["--resume", str(folder)] if begun else [what, *common, *root, *cell.words, *words]
        call = [*command, "train", *given, *([] if begun else ["--run", str(folder)])]
        print(" ".join(call), flush=True)
        subprocess.run(call, check=True, env=environment, stdout=subprocess.DEVNULL)
        done += 1


def table(what: str, runs: Path) -> str:
    if what == "bottleneck":
        lines = [
            "| head | D | M | contexts | mode match | paper | KL | paper | rank |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for cell in cells(what, runs):
            found = results(runs / cell.name)
            if not found:
                continue
            head, width, classes = cell.name.rsplit("-", 2)
            theirs = paper.figures(head.split("-")[0], int(width), int(classes))
            mode, divergence = theirs.get("paper mode match", "–"), theirs.get("paper KL", "–")
            mine = f"{found['mode match']:.3f} | {mode} | {found['KL']:.3f} | {divergence}"
            lines.append(f"| {head} | {width} | {classes} | {found['contexts']} | {mine} | {found['rank']} |")
        return "\n".join(lines)
    names = (
        "perplexity",
        "ε-perplexity",
        "sparsemax score",
        "Jensen–Shannon",
        "rank",
        "seconds per epoch",
        "peak memory MB",
    )
    lines = [f"| model | head | lr | seed | {' | '.join(names)} |", "|---" * (len(names) + 4) + "|"]
    for cell in cells(what, runs):
        found = results(runs / cell.name)
        if found:
            model, rest = cell.name.split("-", 1)
            head, rate, seed = rest.rsplit("-", 2)
            values = " | ".join(f"{found[name]:.4g}" if name in found else "–" for name in names)
            lines.append(f"| {model} | {head} | {rate} | {seed} | {values} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("what", choices=[*COMMON])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--most", type=int, default=10**9)
    parser.add_argument("words", nargs="*")
    given = parser.parse_intermixed_args()
    if given.action == "table":
        print(table(given.what, given.runs))
    else:
        run(given.what, given.runs, given.data, given.most, given.words)


if __name__ == "__main__":
    main()
