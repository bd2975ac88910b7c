"""Figures of trained language models: the rank of their log-probabilities, and the functions that they learned.

    python benchmarks/spectra.py RUN [RUN …] [--contexts 2048] [--spectra FILE.png] [--functions FILE.png]

Each RUN is one of the recipe ``lm``, all of one width; its name in the figure is that of its head. The contexts are the
first of the validation text.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from parsimax.analysis import figures, rank
from parsimax.recipes.commands import restored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--contexts", type=int, default=2048)
    parser.add_argument("--spectra", type=Path)
    parser.add_argument("--functions", type=Path)
    given = parser.parse_args()
    spectra, functions, width = {}, {}, None
    for folder in given.runs:
        _, entry, settings, task = restored(folder, "best")
        name, width = settings.model.head, settings.model.embedding
        contexts = task.contexts(entry.recipe().windows(task, settings, "val"), given.contexts)
        if not settings.model.output.entry.sparse:
            spectra[name] = rank(task.model.head, contexts.split(256))
            print(f"{name}: {spectra[name]}, d + 2 = {width + 2}", flush=True)
        if getattr(task.model.head, "function", None) is not None:
            functions[name] = task.model.head.function
        if name == "plif":
            slopes = torch.nn.functional.softplus(functions[name].raw_slopes)
            about = [f"{value:.3f}" for value in (slopes.mean(), slopes.std(), slopes.min(), slopes.max())]
            print(f"slopes of plif: mean, deviation, least, largest: {', '.join(about)}")
    if given.spectra:
        figures.spectrum(spectra, width, bias=True).savefig(given.spectra, dpi=130)
    for name, function in functions.items() if given.functions else ():
        figures.function(function).savefig(given.functions.with_stem(f"{given.functions.stem}_{name}"), dpi=130)


if __name__ == "__main__":
    main()
