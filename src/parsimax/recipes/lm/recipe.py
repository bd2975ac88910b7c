"""The recipe ``lm``: the beginning of a text in, how it may go on out."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...analysis import figures as drawn
from ...analysis import measures, rank, record
from ..kit.pictures import curves
from ..kit.recipe import Answer, Evaluation, Recipe
from ..kit.runs import Run
from .model import Lm, Windows, repetition
from .settings import Options, Settings
from .words import EOS, UNK, Words, lines_of, path_of, stream, words_of

CONTEXTS = 2048  # of the spectrum
TEXTS, LENGTH = 20, 100  # written to measure repetition
SHOWN = 5  # unknown words that a note names


@dataclass(frozen=True)
class Beginning:
    """What a prediction reads, parted as the training text was; nothing begins a new line of text."""

    text: str


class LmRecipe(Recipe[Settings, Lm, Beginning, Options]):
    query = Beginning

    def start(self, settings: Settings, run: Run) -> Lm:
        words = Words.learn(lines_of(settings.data, "train"), settings.data.vocabulary)
        words.save(run)
        return self.reopen(settings, run)

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> Lm:
        words = Words.load(run)
        torch.manual_seed(settings.train.seed)
        least = torch.zeros(2 * settings.train.columns, dtype=torch.long)
        texts = dict.fromkeys(("train", "val"), least)
        if data:
            texts = {split: stream(lines_of(settings.data, split), words) for split in texts}
        return Lm(settings, words, texts["train"], texts["val"])

    def files(self, settings: Settings, split: str) -> list[Path]:
        return [] if settings.data.root is None else [path_of(settings.data.root, split)]

    def windows(self, task: Lm, settings: Settings, split: str) -> Windows:
        text = stream(lines_of(settings.data, split), task.words)
        if split == "val" and settings.train.eval_words:
            text = text[: settings.train.eval_words]
        return Windows(text, min(settings.train.columns, max(1, len(text) // 4)), settings.train.window, split)

    def evaluate(self, task: Lm, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        text = self.windows(task.eval(), settings, split)
        show("reading the text")
        measured = task.measure(text)
        figures: dict[str, Any] = {"words": text.columns.numel(), **measured}
        figures |= self.density(task, text)
        figures["unknown"] = (text.columns == UNK).double().mean().item()
        if (spectrum := self.spectrum(task, text)) is not None:
            figures |= {"rank": spectrum.rank, "rank of linear softmax": settings.model.embedding + 2}
        show("writing texts")
        texts = task.write([EOS], LENGTH, TEXTS, settings.train.seed)
        figures["repetition of written text"] = repetition(texts)
        lines = lines_of(settings.data, split)
        figures["repetition of this text"] = repetition([task.words.numbered(line)[:LENGTH] for line in lines])
        return Evaluation(figures, [{"text": task.words.text(one)} for one in texts])

    def density(self, task: Lm, text: Windows) -> dict[str, float]:
        """The share of the words before it that a word attends to, in the first window of the text."""
        if task.settings.model.kind != "transformer":
            return {}
        with torch.no_grad(), record(task.model) as recording:
            task.model(next(iter(text)).entered.to(task.device))
        return {"density (self)": statistics.fmean(head.density for head in measures(recording))}

    def dials(self, settings: Settings) -> list[str]:
        own = settings.model
        used = {
            "model.output.": own.head == "linear" or own.head.startswith("mixture"),
            "model.attention.": own.kind == "transformer",
        }
        return [key for key in super().dials(settings) if used[f"{key.rpartition('.')[0]}."]]

    def quality(self, task: Lm) -> tuple[str, str]:
        return "ε-perplexity", "min"

    def zeros(self, task: Lm, figures: Mapping[str, Any], key: str) -> float:
        if key.startswith("model.output."):
            return 1 - float(figures["possible words"]) / len(task.words)
        return 1 - float(figures["density (self)"])

    def speed(self, task: Lm, settings: Settings) -> dict[str, float]:
        pace = task.pace()
        return {"seconds per epoch": pace["step ms"] / 1000 * len(task.batches)} if pace else {}

    def spectrum(self, task: Lm, text: Windows) -> Any:
        """None for a head that gives some words no probability, whose logarithms have no rank."""
        if task.settings.model.output.entry.sparse:
            return None
        return rank(task.model.head, task.contexts(text, CONTEXTS).split(256))

    def read(self, task: Lm, line: str, options: Options) -> Beginning:
        return Beginning(line)

    def predict(self, task: Lm, settings: Settings, queries: Sequence[Beginning], options: Options) -> list[Answer]:
        answers = []
        for query in queries:
            words = words_of(settings.data, query.text)
            numbers = [EOS, *task.words.numbered(words)]
            unknown = list(dict.fromkeys(w for w in words if w not in task.words.numbers))
            notes = (f"unknown words are read as <unk>: {' '.join(unknown[:SHOWN])}",) if unknown else ()
            texts = [task.words.text(one) for one in task.write(numbers, options.words, options.samples, options.seed)]
            lines = [json.dumps({"text": query.text, "goes on": texts}, ensure_ascii=False)] if options.json else texts
            answers.append(Answer(tuple(lines), notes))
        return answers

    def report(self, task: Lm, settings: Settings, run: Run, folder: Path) -> list[Path]:
        """``training.png``, ``spectrum.png`` and, for a head with a function of each score, ``function.png``."""
        folder.mkdir(parents=True, exist_ok=True)
        names = ("loss", "ε-perplexity" if settings.model.output.entry.sparse else "perplexity", "accuracy")
        pictures = {"training.png": curves(run, *names)}
        spectrum = self.spectrum(task.eval(), self.windows(task, settings, "val"))
        if spectrum is not None:
            pictures["spectrum.png"] = drawn.spectrum(
                {settings.model.head: spectrum}, settings.model.embedding, bias=True
            )
        if getattr(task.model.head, "function", None) is not None:
            pictures["function.png"] = drawn.function(task.model.head.function)  # type: ignore[arg-type]
        written = []
        for name, figure in pictures.items():
            if figure is not None:
                figure.savefig(folder / name, dpi=150)
                written.append(folder / name)
        return written


RECIPE = LmRecipe()
