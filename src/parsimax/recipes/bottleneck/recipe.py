"""The recipe ``bottleneck``: the synthetic experiment of Ganea et al., one cell a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...analysis import figures as drawn
from ...analysis import rank
from ..kit.pictures import curves
from ..kit.recipe import Answer, DataError, Evaluation, Options, Recipe
from ..kit.runs import Run
from . import paper
from .model import Bottleneck
from .settings import Settings

MOST = 2048  # contexts of the spectrum
LIKELIEST = 5


@dataclass(frozen=True)
class Context:
    """What a prediction reads: the number of a context, from 0."""

    context: int


class BottleneckRecipe(Recipe[Settings, Bottleneck, Context, Options]):
    query = Context
    held_out = False

    def start(self, settings: Settings, run: Run) -> Bottleneck:
        return self.reopen(settings, run)

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> Bottleneck:
        torch.manual_seed(settings.train.seed)
        return Bottleneck(settings)

    def evaluate(self, task: Bottleneck, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        found: dict[str, Any] = {"contexts": len(task.wanted), **task.eval().validate()}
        found |= paper.figures(settings.model.head, settings.model.width, settings.data.classes)
        spectrum = self.spectrum(task)
        found |= {"rank": spectrum.rank, "rank of linear softmax": settings.model.width + 1}
        found["entropy of the targets"] = task.entropy
        return Evaluation(found)

    def spectrum(self, task: Bottleneck) -> Any:
        return rank(task.head, task.vectors[:MOST].detach().split(256))

    def check(self, task: Bottleneck, query: Context, options: Options) -> None:
        if not 0 <= query.context < len(task.wanted):
            raise DataError(f"a context is a number from 0 to {len(task.wanted) - 1}, got {query.context}")

    @torch.no_grad()
    def predict(
        self, task: Bottleneck, settings: Settings, queries: Sequence[Context], options: Options
    ) -> list[Answer]:
        """The likeliest words of a context, each with its probability in the model and in truth."""
        numbers = torch.tensor([query.context for query in queries])
        p, wanted = task.head.probs(task.vectors[numbers]).cpu(), task.wanted[numbers]
        answers = []
        for mine, true in zip(p, wanted, strict=True):
            words = true.argsort(descending=True)[:LIKELIEST].tolist()
            rows = [{"word": word, "wanted": true[word].item(), "model": mine[word].item()} for word in words]
            text = " ".join(f"{row['word']}:{row['wanted']:.4f}/{row['model']:.4f}" for row in rows)
            answers.append(Answer((json.dumps(rows) if options.json else text,)))
        return answers

    def report(self, task: Bottleneck, settings: Settings, run: Run, folder: Path) -> list[Path]:
        """``training.png``, ``spectrum.png`` and, for a head with a function of each score, ``function.png``."""
        folder.mkdir(parents=True, exist_ok=True)
        pictures = {"training.png": curves(run, "KL", "mode match")}
        pictures["spectrum.png"] = drawn.spectrum({settings.model.head: self.spectrum(task)}, settings.model.width)
        if getattr(task.head, "function", None) is not None:
            pictures["function.png"] = drawn.function(task.head.function)  # type: ignore[arg-type]
        written = []
        for name, figure in pictures.items():
            if figure is not None:
                figure.savefig(folder / name, dpi=150)
                written.append(folder / name)
        return written


RECIPE = BottleneckRecipe()
