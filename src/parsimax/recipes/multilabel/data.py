"""Rows of numbers with their labels: of files in a folder, or made by scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..kit.recipe import DataError
from ..kit.settings import unknown
from ..text.files import ending, held_out, of_split
from .arff import label_names, place_of, read
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
    found = sorted(path.parent.glob("*.xml"))
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
    rows = _read(path, label_names(more[0]) if more else list(data.labels), more[0] if more else None)
    if split == "test" or file_of(data.root, "val") is not None:
        return rows
    train, val = held_out(len(rows.numbers), data.held_out, path)
    return rows.some(val if split == "val" else train)


def _read(path: Path, labels: list[str], xml: Path | None) -> Rows:
    columns, values, places = FORMATS[ending(path)](path)
    if not labels:
        raise DataError(f"{path}: say which columns are labels: data.labels=NAME,NAME,… of {', '.join(columns[-5:])}")
    if missing := [name for name in labels if name not in columns]:
        where = f"{path}, line 1" if ending(path) == ".csv" else f"{path}"
        if xml is not None:
            where = f"{place_of(xml, missing[0])}: {path.name} does not have this label"
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
