"""Rows of numbers with their labels: of files in a folder, or made by scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..kit.inputs import shortened
from ..kit.recipe import DataError
from ..kit.settings import unknown
from ..text.files import ending, held_out, of_split, refuse_share
from .arff import label_places, read
from .settings import Data
from .tables import read_csv, read_parquet

FORMATS: dict[str, Callable[[Path], tuple[list[str], list[list[float]], list[int]]]] = {
    ".arff": read,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


class Rows(NamedTuple):
    """Numbers (N, F), which labels each row has (N, L), and the names of both."""

    numbers: Tensor
    labels: Tensor
    columns: list[str]
    names: list[str]

    def some(self, which: list[int]) -> Rows:
        return self._replace(numbers=self.numbers[which], labels=self.labels[which])


def file_of(root: Path, split: str) -> Path | None:
    return of_split(root, split, FORMATS)


def files(data: Data, split: str) -> list[Path]:
    """What a split is read from: its file, the training file for validation rows without one, and the label list."""
    if data.root is None:
        return []
    path = file_of(data.root, split) or (file_of(data.root, "train") if split == "val" else None)
    if path is None:
        there = ", ".join(sorted(one.name for one in data.root.iterdir())[:8]) or "nothing"
        kinds = ", ".join(FORMATS)
        raise DataError(f"{data.root} has no file NAME-{split} ending in {kinds} (also with .gz); it holds {there}")
    return [path, *([xml_of(path)] if ending(path) == ".arff" else [])]


def xml_of(path: Path) -> Path:
    found = sorted(one for one in path.parent.iterdir() if one.suffix.lower() == ".xml")
    if len(found) != 1:
        there = ", ".join(one.name for one in found) or "none"
        raise DataError(f"{path.parent} must have one XML file with the labels of {path.name}, it has {there}")
    return found[0]


def load(data: Data, split: str) -> Rows:
    if data.root is None:
        return embedded(data.classes, data.average, data.rows)[split]
    path, *more = files(data, split)
    if more and data.labels:
        raise DataError(
            f"data.labels names columns of CSV or Parquet: leave it out, {path} has its labels in {more[0]}"
        )
    places = label_places(more[0]) if more else {}
    rows = _read(path, [*places] or list(data.labels), {name: f"{more[0]}, line {at}" for name, at in places.items()})
    if split == "test":
        return rows
    if (own := file_of(data.root, "val")) is not None:
        if split == "train":
            refuse_share(data.held_out, Data().held_out, own)
        return rows
    train, val = held_out(len(rows.numbers), data.held_out, path)
    return rows.some(val if split == "val" else train)


def head(path: Path) -> str:
    """Where the names of a file's columns are; those of ARFF are in many lines, those of Parquet in none."""
    return f"{path}, line 1" if ending(path) == ".csv" else f"{path}"


def _read(path: Path, labels: list[str], told: Mapping[str, str]) -> Rows:
    """The rows of a file; ``told`` says where a label is named, if that is not in the settings."""
    columns, values, places = FORMATS[ending(path)](path)
    if not labels:
        some = ", ".join(map(shortened, columns[-5:]))
        raise DataError(f"{path}: say which columns are labels: data.labels=NAME,NAME,… of {some}")
    if missing := [name for name in labels if name not in columns]:
        where = f"{told[missing[0]]}: {path.name} does not have this label" if told else head(path)
        raise DataError(f"{where}: {unknown(missing[0], columns, 'column')}")
    if not values:
        raise DataError(f"{path} has no rows")
    on = [columns.index(name) for name in labels]
    off = [at for at in range(len(columns)) if at not in {*on}]
    if not off:
        raise DataError(f"{path} has no column that is not a label")
    table = torch.tensor(values, dtype=torch.float32)
    wrong = (~table.isfinite()).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        value = f"{values[row][column]:g}"
        raise DataError(f"{path}, line {places[row]}: {columns[column]} must be a number of float32, got {value}")
    marks = table[:, on]
    wrong = ((marks != 0) & (marks != 1)).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        value = values[row][on[column]]
        raise DataError(f"{path}, line {places[row]}: the label {labels[column]} must be 0 or 1, got {value:g}")
    return Rows(table[:, off], marks > 0, [columns[at] for at in off], labels)


@lru_cache(4)
def embedded(classes: int, average: int, rows: int) -> dict[str, Rows]:
    """Rows of ``make_multilabel_classification``: bags of words, of which each label has its own."""
    from sklearn.datasets import make_multilabel_classification

    numbers, labels = make_multilabel_classification(
        rows, n_features=2 * classes, n_classes=classes, n_labels=average, length=50, random_state=0
    )
    columns = [f"word {at}" for at in range(numbers.shape[1])]
    names = [f"label {at}" for at in range(classes)]
    every = Rows(torch.tensor(numbers, dtype=torch.float32), torch.tensor(labels, dtype=torch.bool), columns, names)
    fifth = rows // 5
    parts = {"test": range(fifth), "val": range(fifth, 2 * fifth), "train": range(2 * fifth, rows)}
    return {split: every.some(list(part)) for split, part in parts.items()}
