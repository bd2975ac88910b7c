"""When is a beam's output proved to be the most probable of all? Analysis of trained sequence-to-sequence runs.

    python benchmarks/certificates.py RUN [RUN …] [--count 100] [--budget 5000]

A proof must continue every prefix that is more probable than the best output. So what decides is how many there are:
the table has them by run, with how probable the best output is, how sure the model is of each token, and how many
tokens are possible; then by the probability of the best output, to compare runs where they are equally sure.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from parsimax.recipes.commands import restored
from parsimax.recipes.text.codec import BOS, EOS
from parsimax.recipes.text.lengths import spread
from parsimax.recipes.text.seq2seq.exact import exact
from parsimax.recipes.text.seq2seq.examples import Examples
from parsimax.recipes.text.seq2seq.search import beam

BINS = (0, 2, 4, 6, 8, math.inf)  # of -log p(best)
BUDGETS = (100, 500, 2000, 5000)


@dataclass
class Case:
    """One source: the beam's output, and what its proof takes."""

    cost: float  # -log p of the best output
    length: int
    sure: float  # mean probability of its tokens
    possible: float  # mean number of tokens with a probability above 0 along it
    beam: bool  # the beam proved it by itself
    same: bool  # the beam had the best
    opened: int
    proved: bool
    seconds: float


def cases(folder: Path, count: int, budget: int, split: str) -> list[Case]:
    _, entry, settings, task = restored(folder, "best")
    examples = Examples.of(entry.recipe().pairs(settings, split), task.codec)
    found = []
    for number, index in enumerate(spread(len(examples), count), 1):
        source = torch.tensor([*examples.source[index], EOS])
        (first,) = beam(task.model, source[None], settings.search.beam, settings.search.longest)
        began = time.process_time()
        best = exact(task.model, source, settings.search.longest, budget, first.best)
        seconds = time.process_time() - began
        tokens = best.best.tokens
        with torch.no_grad():
            hidden = task.model.hidden(source[None], torch.tensor([[BOS, *tokens]]))[0]
            chances = task.model.output.probs(hidden)
        sure = chances.gather(1, torch.tensor([*tokens, EOS])[:, None]).mean().item()
        possible = (chances > 0).sum(1).double().mean().item()
        same = tokens == first.best.tokens
        found.append(
            Case(-best.best.log_prob, len(tokens), sure, possible, first.exact, same, best.opened, best.exact, seconds)
        )
        print(f"\r{folder}: {number}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return found


def share(marks: list[bool]) -> str:
    return f"{100 * statistics.fmean(marks):.0f}" if marks else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=100, help="sources of each run")
    parser.add_argument("--budget", type=int, default=max(BUDGETS), help="prefixes that a proof may continue")
    parser.add_argument("--split", choices=("val", "test"), default="test")
    options = parser.parse_args()
    known = {folder: cases(folder, options.count, options.budget, options.split) for folder in options.runs}
    budgets = [budget for budget in BUDGETS if budget <= options.budget]
    print(
        "| run | −log p(best) | tokens | mean p of its tokens | possible tokens | beam alone, % | "
        + " | ".join(f"budget {budget}, %" for budget in budgets)
        + " | beam = best where proved, % | prefixes a second |"
    )
    print("|---" * (8 + len(budgets)) + "|")
    for folder, found in known.items():
        cells = [
            f"{statistics.median(case.cost for case in found):.2f}",
            f"{statistics.fmean(case.length for case in found):.1f}",
            f"{statistics.fmean(case.sure for case in found):.3f}",
            f"{statistics.fmean(case.possible for case in found):.1f}",
            share([case.beam for case in found]),
            *(share([case.proved and case.opened <= budget for case in found]) for budget in budgets),
            share([case.same for case in found if case.proved]),
            f"{sum(case.opened for case in found) / sum(case.seconds for case in found):.0f}",
        ]
        print(f"| {folder.name} | {' | '.join(cells)} |")
    print("\nProved within the budget, % (median of prefixes continued; sources), by −log p(best):\n")
    names = [f"{low}…{high:g}" for low, high in pairwise(BINS)]
    print(f"| run | {' | '.join(names)} |")
    print("|---" * (1 + len(names)) + "|")
    for folder, found in known.items():
        cells = []
        for low, high in pairwise(BINS):
            own = [case for case in found if low <= case.cost < high]
            median = f" ({statistics.median(case.opened for case in own):.0f}; {len(own)})" if own else ""
            cells.append(share([case.proved for case in own]) + median)
        print(f"| {folder.name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
