"""The recipe ``finetune``: a sentence or two in, a class or a number out."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...huggingface import desparsify
from ..kit.beside import step_ratio
from ..kit.inputs import value_of
from ..kit.recipe import Answer, DataError, Evaluation, Recipe
from ..kit.runs import Run
from ..kit.settings import SettingsError, unknown
from . import data, encoder, figures
from .data import Example
from .encoder import Encoder
from .model import Examples, FineTuning, Tokens
from .report import report
from .settings import Data, Options, Settings

SHOWN = 12  # examples on a page
DIGITS = 7  # of a number: what float32 has


@dataclass(frozen=True)
class Query:
    """What a prediction reads: one text or two."""

    texts: tuple[str, ...]


class FineTune(Recipe[Settings, FineTuning, Query, Options]):
    query = Query

    def start(self, settings: Settings, run: Run) -> FineTuning:
        train, val = (data.load(settings.data, split) for split in ("train", "val"))
        classes = data.classes_of(train) if settings.data.kind == "classes" else []
        _check_test(settings.data, classes)
        begun = encoder.start(settings, [text for one in train for text in one.texts], classes)
        config = copy.deepcopy(begun.model.config)
        with encoder.usable(settings.model.encoder):
            task = self._task(settings, begun, classes, train, val, settings.train.steps)
            task.at_the_end()
            attention = figures.recorded(begun, task.val, figures.some(task.val, SHOWN))
        encoder.keep(config, begun.tokenizer, attention, run.folder)
        for name, examples in (("training", task.train_examples), ("validation", task.val)):
            if note := _cut(examples, begun.most(settings.data.longest)):
                print(f"{name}: {note}", flush=True)
        return task

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> FineTuning:
        kept = encoder.kept(run.folder)
        names = kept.model.config.id2label
        classes = [names[number] for number in sorted(names)] if settings.data.kind == "classes" else []
        train, val = (_load(settings, split) if data else [] for split in ("train", "val"))
        return self._task(settings, kept, classes, train, val, settings.train.steps if data else None)

    def _task(
        self,
        settings: Settings,
        begun: Encoder,
        classes: list[str],
        train: list[Example],
        val: list[Example],
        steps: int | None,
    ) -> FineTuning:
        """``steps`` are those of training; None for a task that only answers."""
        torch.manual_seed(settings.train.seed)
        encoder.put_mapping(begun.model, settings.model, steps)
        most = begun.most(settings.data.longest)
        made = (Examples(some, classes, begun, most) for some in (train, val))
        return FineTuning(begun, settings, classes, *made)

    def files(self, settings: Settings, split: str) -> list[Path]:
        return [] if settings.data.root is None else [data.file_of(settings.data, split)]

    def export(self, task: FineTuning, run: Run) -> list[Path]:
        return [encoder.export(task.encoder, run.folder)]

    def _examples(self, task: FineTuning, settings: Settings, split: str) -> Examples:
        most = task.encoder.most(settings.data.longest)
        return Examples(_load(settings, split), task.classes, task.encoder, most)

    def evaluate(self, task: FineTuning, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        examples = self._examples(task.eval(), settings, split)
        show(f"reading {len(examples)} examples")
        began = time.perf_counter()
        said = task.said(examples)
        seconds = time.perf_counter() - began
        found: dict[str, Any] = {"examples": len(examples)}
        if task.classes:
            found |= figures.of_classes(examples.wanted, said.argmax(-1), task.classes)
        else:
            found |= figures.of_numbers(examples.wanted, said)
        found["loss"] = task.loss_of(said, examples.wanted).item()
        found["cut examples"] = len(examples.long)
        found["examples a second"] = len(examples) / seconds
        found |= figures.attention(figures.recorded(task.encoder, examples, figures.some(examples)))
        rows = [
            {"texts": list(one.texts), "wanted": one.label, **known(task, row)}
            for one, row in zip(examples.examples, said, strict=True)
        ]
        return Evaluation(found, rows)

    def speed(self, task: FineTuning, settings: Settings) -> dict[str, float]:
        """Beside the same encoder with the attention that transformers itself would use."""
        if settings.model.mapping == "softmax":
            return {}
        other = desparsify(copy.deepcopy(task.model))
        plan = task.batches.plan(settings.train.seed)

        def loss(model: Any, batch: Any) -> torch.Tensor:
            logits = model(**batch.inputs).logits
            return task.loss_of(logits if task.classes else logits[:, 0], batch.wanted)

        return {"step time / softmax": step_ratio(task.model, other, loss, plan, task.batches.make)}

    def read(self, task: FineTuning, line: str, options: Options) -> Query:
        """A line is a text; of two texts, both with a tab between."""
        cells = line.split("\t") if len(task.columns) > 1 else [line]
        if len(cells) != len(task.columns):
            raise DataError(f"{len(cells)} columns where {', '.join(task.columns)} are two, tab-separated")
        return Query(tuple(map(data.clean, cells)))

    def record(self, task: FineTuning, record: Mapping[str, Any], options: Options) -> Query:
        """The text columns of the training data, by name."""
        if missing := [name for name in task.columns if name not in record]:
            raise DataError(unknown(missing[0], [str(name) for name in record], "column"))
        return Query(tuple(data.clean(value_of(name, record[name], str)) for name in task.columns))

    def check(self, task: FineTuning, query: Query, options: Options) -> None:
        if options.probabilities and not task.classes:
            raise SettingsError(
                "--probabilities: this run says numbers (data.kind=numbers), which have none; leave it out"
            )
        if len(query.texts) != len(task.columns):
            raise DataError(f"{len(query.texts)} texts where {', '.join(task.columns)} are {len(task.columns)}")
        if "" in query.texts:
            raise DataError(f"{task.columns[query.texts.index('')]} is empty")

    def predict(self, task: FineTuning, settings: Settings, queries: Sequence[Query], options: Options) -> list[Answer]:
        most = task.encoder.most(settings.data.longest)
        tokens = Tokens([query.texts for query in queries], task.tokenizer, most)
        answers = []
        for at, row in enumerate(task.eval().said(tokens)):
            cut = tokens.lengths[at] if at in tokens.long else None
            notes = () if cut is None else (f"it has {cut} tokens, of which {most} are read",)
            found = {**known(task, row), "cut": cut}
            answers.append(Answer((line(found, options),), own_notes=notes))
        return answers

    def report(self, task: FineTuning, settings: Settings, run: Run, folder: Path) -> list[Path]:
        examples = self._examples(task.eval(), settings, "val")
        some = figures.some(examples, SHOWN)
        now = figures.recorded(task.encoder, examples, some)
        said = task.said(examples)
        captions = [
            f"{examples.examples[at].label} is right; the model says {line(known(task, said[at]), Options())}"
            for at in some
        ]
        return report(now, (task.monitor, *({"loss"} - {task.monitor})), captions, run, folder)


def _load(settings: Settings, split: str) -> list[Example]:
    return data.load(settings.data, split)


def _check_test(own: Data, classes: list[str]) -> None:
    """What is wrong with the test data is said before the training."""
    try:
        for one in data.load_if_there(own, "test"):
            if classes:
                data.class_of(one, classes)
    except DataError as error:
        hint = "" if own.dev_is_test else "; if test has no labels, as in GLUE, set data.dev_is_test=true"
        raise DataError(f"{error}{hint}") from None


def _cut(examples: Examples, most: int) -> str:
    """What is said of examples with more tokens than are read."""
    if not examples.long:
        return ""
    first = examples.examples[examples.long[0]].where
    return f"{len(examples.long)} of {len(examples)} examples have more than {most} tokens and are cut, first {first}"


def known(task: FineTuning, row: torch.Tensor) -> dict[str, Any]:
    """A label with all probabilities, or a number."""
    if not task.classes:
        return {"number": float(f"{row.item():.{DIGITS}g}")}
    p = row.double().softmax(-1)
    order = p.argsort(descending=True).tolist()
    return {
        "label": task.classes[order[0]],
        "probability": round(p[order[0]].item(), 6),
        "probabilities": {task.classes[at]: round(p[at].item(), 6) for at in order},
    }


def line(found: dict[str, Any], options: Options) -> str:
    if options.json:
        return json.dumps(found, ensure_ascii=False)
    if "number" in found:
        return f"{found['number']:.{DIGITS}g}"
    if options.probabilities:
        return "\t".join(f"{name}:{p:.4g}" for name, p in found["probabilities"].items())
    return f"{found['label']}\t{found['probability']:.4g}"


RECIPE = FineTune()
