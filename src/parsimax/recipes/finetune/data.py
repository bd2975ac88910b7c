"""Texts with what is to be said of them: of files in a folder, checked line by line, or docstrings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ..kit.inputs import number, shortened
from ..kit.recipe import DataError
from ..kit.settings import shown, unknown
from ..text import tables
from ..text.files import WORDS, ending, held_out, lines, of_split, refuse_share
from . import docstrings
from .settings import Data

TABLES = (".tsv", ".csv")
LARGEST = torch.finfo(torch.float32).max  # of the numbers that can be learned
LINES = ("", ".txt", *(f".{word}" for words in WORDS.values() for word in words))  # of a label and a text


class Example(NamedTuple):
    """One text or two, what is to be said of them, and where they stand."""

    texts: tuple[str, ...]
    label: str
    where: str


def file_of(data: Data, split: str) -> Path:
    """What a split is read from; the training file for those to validate on that have none of their own."""
    assert data.root is not None
    found = of_split(data.root, _called(data, split), (*TABLES, *LINES)) if _called(data, split) else None
    if found is None and split == "val":
        found = of_split(data.root, "train", (*TABLES, *LINES))
    if found is None:
        there = ", ".join(sorted(path.name for path in data.root.iterdir())[:8]) or "nothing"
        name = "dev, which is to be test by data.dev_is_test," if data.dev_is_test and split == "test" else split
        raise DataError(
            f"{data.root} has no file of {name} (.tsv or .csv with a header, or lines of a label and a text, also "
            f"with .gz); it holds {there}"
        )
    return found


def _called(data: Data, split: str) -> str:
    """The split as its file is called; none for what is held out."""
    if not data.dev_is_test or split == "train":
        return split
    return "val" if split == "test" else ""


def load(data: Data, split: str) -> list[Example]:
    if data.root is None:
        known = enumerate(docstrings.splits()[split], 1)
        return [Example((text,), family, f"docstring {number} of {split}") for number, (text, family) in known]
    path = file_of(data, split)
    rows = read(path, data)
    if split == "test":
        return rows
    other = file_of(data, "val" if split == "train" else "train")
    if path != other:
        if split == "train":
            refuse_share(data.held_out, Data().held_out, other)
        return rows
    train, val = held_out(len(rows), data.held_out, path)
    return [rows[at] for at in (train if split == "train" else val)]


def load_if_there(data: Data, split: str) -> list[Example]:
    """As :func:`load`; nothing where the split has no file, unless it is to be another's."""
    known = data.root is None or data.dev_is_test or of_split(data.root, split, (*TABLES, *LINES))
    if not known:
        return []
    return load(data, split)


def read(path: Path, data: Data) -> list[Example]:
    """All examples of a file; DataError names the line that cannot be one."""
    table = ending(path) in TABLES
    found = [Example(tuple(map(clean, texts)), clean(label), where) for texts, label, where in _rows(path, data, table)]
    for one in found:
        if not all(one.texts):
            empty = data.text[one.texts.index("")] if table else "the text"
            raise DataError(f"{one.where}: {empty} is empty")
        if not one.label:
            raise DataError(f"{one.where}: the label is empty")
        if data.kind == "numbers":
            number_of(one)
    if not found:
        raise DataError(f"{path} has no examples")
    return found


def _rows(path: Path, data: Data, table: bool) -> Iterator[tuple[Sequence[str], str, str]]:
    if table:
        yield from _of_table(path, data)
        return
    if len(data.text) > 1:
        raise DataError(f"{path} has lines of a label and a text; two texts, data.text, need a .tsv or .csv")
    for key in ("text", "label"):
        if (given := getattr(data, key)) != getattr(Data(), key):
            raise DataError(
                f"data.{key}={shown(given)} names a column, and {path} has none but lines of a label and a text; leave "
                f"it out"
            )
    for place, line in enumerate(lines(path), 1):
        if line.strip():
            label, *text = line.split(maxsplit=1)
            if not text:
                raise DataError(f"{path}, line {place}: a label and a text belong there, got {shortened(line)!r}")
            yield text, label, f"{path}, line {place}"


def _of_table(path: Path, data: Data) -> Iterator[tuple[Sequence[str], str, str]]:
    rows = tables.rows(path)
    _, header = next(rows)
    for name, key in (*((one, "data.text") for one in data.text), (data.label, "data.label")):
        if name not in header:
            raise DataError(f"{path}, line 1: {unknown(name, header, 'column')}; set {key} to the one you mean")
    columns, label = [header.index(name) for name in data.text], header.index(data.label)
    for place, cells in rows:
        yield [cells[column] for column in columns], cells[label], f"{path}, line {place}"


def clean(text: str) -> str:
    """A text with single blanks, as training and predictions read it."""
    return " ".join(text.split())


def number_of(example: Example) -> float:
    try:
        value = number(example.label)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise DataError(
            f"{example.where}: a number belongs there (float32, data.kind=numbers), got {shortened(example.label)!r}"
        )
    return value


def classes_of(train: list[Example]) -> list[str]:
    """The labels of the training data, sorted."""
    found = sorted({one.label for one in train})
    if len(found) < 2:
        raise DataError(f"{train[0].where}: {found[0]!r} is the only label of all examples; two are needed")
    return found


def class_of(example: Example, classes: list[str]) -> int:
    if example.label not in classes:
        known = ", ".join(classes[:8])
        raise DataError(
            f"{example.where}: the label {shortened(example.label)!r} is none of those trained on ({known}); take it "
            f"out, or give train more examples of it than are held out"
        )
    return classes.index(example.label)
