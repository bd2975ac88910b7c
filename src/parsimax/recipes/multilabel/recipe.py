"""The recipe ``multilabel``: a row of numbers in, its labels out."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..kit.inputs import number, shortened, value_of
from ..kit.recipe import Answer, DataError, Evaluation, Recipe
from ..kit.runs import Run, read_json, write
from ..kit.settings import SettingsError, unknown
from . import data
from .data import Rows
from .model import Labels
from .pictures import pictures
from .scores import figures
from .settings import Options, Settings

NAMES = "names.json"  # of columns and labels, in a run
EXCHANGED = ("rsoftmax", "rsoftmax-predicted")  # the first may take the place of the second, with a rate
TOO_FAR = "is too far from the rows that the run was trained on"
MEASURED = 0.2  # seconds of passes that the pace is taken over: one alone may take less than a millisecond


@dataclass(frozen=True)
class Numbers:
    """What a prediction reads: the numbers of a row in the order of the training data."""

    numbers: tuple[float, ...]


class MultiLabel(Recipe[Settings, Labels, Numbers, Options]):
    query = Numbers

    def start(self, settings: Settings, run: Run) -> Labels:
        train, val = (data.load(settings.data, split) for split in ("train", "val"))
        _check_same(settings, "val", val, train.columns, train.names)
        others = {"val": val}
        if settings.data.root is not None and data.file_of(settings.data.root, "test") is not None:
            others["test"] = _same(settings, "test", train.columns, train.names)  # said before the training
        settings.check_size(len(train.columns))
        _check_labelled(settings, train)
        write(run.folder / NAMES, json.dumps({"columns": train.columns, "labels": train.names}, ensure_ascii=False))
        task = _task(settings, train, val)
        if (far := task.too_far(train.numbers)) is not None:
            raise DataError(f"{_file(settings, 'train')}: the numbers of {far} lie too far apart for float32")
        for split, rows in others.items():
            _check_near(settings, split, task, rows)
        return task

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> Labels:
        _check_layer(settings, run)
        columns, labels = _names(run.folder / NAMES)
        if data:
            train, val = (_same(settings, split, columns, labels) for split in ("train", "val"))
        else:
            train = val = Rows(torch.empty(0, len(columns)), torch.empty(0, len(labels)).bool(), columns, labels)
        return _task(settings, train, val)

    def files(self, settings: Settings, split: str) -> list[Path]:
        return data.files(settings.data, split)

    @torch.no_grad()
    def evaluate(self, task: Labels, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        rows = _same(settings, split, task.columns, task.names)
        _check_near(settings, split, task, rows)
        numbers = rows.numbers.to(task.device)
        began, passes, seconds = time.perf_counter(), 0, 0.0
        while seconds < MEASURED:
            p, given = (part.cpu() for part in task.eval()(numbers))
            passes, seconds = passes + 1, time.perf_counter() - began
        measured = {**figures(rows.labels, given, p), "rows a second": passes * len(rows.numbers) / seconds}
        if task.layer.kind == "softmax":
            measured["threshold"] = task.layer.threshold.item()
        if task.layer.kind == "entmax" and task.layer.mapping is not None:
            measured["alpha"] = float(task.layer.mapping.value("alpha"))
        outputs = [
            {"wanted": _named(task, wanted), **known(task, chosen, row)}
            for wanted, chosen, row in zip(rows.labels, given, p, strict=True)
        ]
        return Evaluation(measured, outputs)

    def dials(self, settings: Settings) -> list[str]:
        own, layer = settings.model.number, settings.model.layer
        turned = [] if own is None else [f"model.{own.name}"]
        if layer in EXCHANGED:
            turned += [f"model.layer={one}" for one in EXCHANGED[: EXCHANGED.index(layer) + 1]]
        return turned

    def read(self, task: Labels, line: str, options: Options) -> Numbers:
        """Numbers by commas, tabs or blanks; a cell between two commas or tabs may not be empty."""
        words = re.split(r" *[,;\t] *| +", line.strip(" "))
        try:
            return Numbers(tuple(map(number, words)))
        except ValueError:
            raise DataError(f"a row is {len(task.columns)} numbers, got {shortened(line)!r}") from None

    def record(self, task: Labels, record: Mapping[str, Any], options: Options) -> Numbers:
        """The columns of the training data by name, or all at once as ``numbers``; others are not looked at."""
        if "numbers" in record and "numbers" not in task.columns:
            if isinstance(record["numbers"], str):
                return self.read(task, record["numbers"], options)
            return super().record(task, record, options)
        if missing := [name for name in task.columns if name not in record]:
            raise DataError(unknown(missing[0], [str(name) for name in record], "column"))
        return Numbers(tuple(value_of(name, record[name], float) for name in task.columns))

    def check(self, task: Labels, query: Numbers, options: Options) -> None:
        if len(query.numbers) != len(task.columns):
            raise DataError(f"a row is {len(task.columns)} numbers, got {len(query.numbers)}")
        if any(map(math.isnan, query.numbers)):
            raise DataError("a number is NaN")
        numbers = torch.tensor([query.numbers])
        if not numbers.isfinite().all():
            raise DataError("a number is infinite, or too large for float32")
        if (far := task.too_far(numbers)) is not None:
            raise DataError(f"{far} {TOO_FAR}")

    @torch.no_grad()
    def predict(self, task: Labels, settings: Settings, queries: Sequence[Numbers], options: Options) -> list[Answer]:
        rows = torch.tensor([query.numbers for query in queries], device=task.device)
        p, given = (part.cpu() for part in task.eval()(rows))
        return [Answer((line(known(task, *one), options),)) for one in zip(given, p, strict=True)]

    @torch.no_grad()
    def report(self, task: Labels, settings: Settings, run: Run, folder: Path) -> list[Path]:
        rows = _same(settings, "val", task.columns, task.names)
        _, given = task.eval()(rows.numbers.to(task.device))
        return pictures(rows, given.cpu(), run, folder)


def _task(settings: Settings, train: Rows, val: Rows) -> Labels:
    torch.manual_seed(settings.train.seed)
    return Labels(settings, train, val)


def _file(settings: Settings, split: str) -> str:
    path = next(iter(data.files(settings.data, split)), None)
    return "the embedded data" if path is None else f"{path}"


def _check_labelled(settings: Settings, train: Rows) -> None:
    if not train.labels.any():
        some = ", ".join(map(shortened, train.names[:5])) + (", …" if len(train.names) > 5 else "")
        raise DataError(f"{_file(settings, 'train')}: no row to train on has a label ({some}); at least one must")


def _check_near(settings: Settings, split: str, task: Labels, rows: Rows) -> None:
    if (far := task.too_far(rows.numbers)) is not None:
        raise DataError(f"{_file(settings, split)}: {far} {TOO_FAR}")


def _check_layer(settings: Settings, run: Run) -> None:
    """Only a rate may take the place of the predicted one: the scores of other layers are learned for their mapping."""
    own, given = run.settings(Settings()).model.layer, settings.model.layer
    if given != own and (given, own) != EXCHANGED:
        raise SettingsError(f"model.layer={given} cannot take the place of {own}; train a run of its own with it")


def _names(path: Path) -> tuple[list[str], list[str]]:
    content = read_json(path)
    columns, labels = content.get("columns"), content.get("labels")
    if not isinstance(columns, list) or not isinstance(labels, list) or not columns or not labels:
        raise DataError(f"{path} is damaged: it must name columns and labels; bring it back from a copy")
    return columns, labels


def _same(settings: Settings, split: str, columns: list[str], names: list[str]) -> Rows:
    rows = data.load(settings.data, split)
    _check_same(settings, split, rows, columns, names)
    return rows


def _check_same(settings: Settings, split: str, rows: Rows, columns: list[str], names: list[str]) -> None:
    """The columns of every split are those of the training data, in their order."""
    for known, own, what in ((columns, rows.columns, "column"), (names, rows.names, "label")):
        if known != own:
            first = next((one for one in own if one not in known), None) or next(
                (one for one in known if one not in own), "their order"
            )
            file = next(iter(data.files(settings.data, split)), None)
            where = "the embedded data" if file is None else data.head(file)
            raise DataError(f"{where}: the {what}s of {split} are not those of the training data: {shortened(first)}")


def _named(task: Labels, chosen: Tensor) -> list[str]:
    return [task.names[at] for at in chosen.nonzero().flatten().tolist()]


def known(task: Labels, chosen: Tensor, p: Tensor) -> dict[str, Any]:
    """The labels, and the probability of each that is possible, the largest first."""
    order = [at for at in p.argsort(descending=True).tolist() if p[at] > 0]
    return {"labels": _named(task, chosen), "possible": {task.names[at]: float(f"{p[at].item():.6g}") for at in order}}


def line(found: dict[str, Any], options: Options) -> str:
    if options.json:
        return json.dumps(found, ensure_ascii=False)
    if options.probabilities:
        return "\t".join(f"{_cell(name)}:{value:.4g}" for name, value in found["possible"].items())
    return "\t".join(map(_cell, found["labels"]))


def _cell(name: str) -> str:
    return " ".join(name.replace("\t", " ").splitlines())


RECIPE = MultiLabel()
