"""Triplets of source, machine output and post-edit, read from files and checked line by line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..kit.inputs import twice
from ..kit.recipe import DataError
from ..text import files
from .settings import Data

PARTS = ("src", "mt", "pe")
NAMES = {"train": ["train"], "val": ["dev", "val", "valid"], "test": ["test"]}


class Triplet(NamedTuple):
    source: str
    machine: str
    edited: str


def paths(data: Data, split: str) -> list[Path]:
    """The files of a split, those of artificial triplets among them: one table, or three texts."""
    assert data.root is not None
    found = _paths(data.root, NAMES["train" if split in _held_out(data) else split])
    if split == "train" and data.artificial:
        found += _paths(data.root, [data.artificial])
    return found


def read(data: Data, split: str) -> list[Triplet]:
    """The triplets of a split; in train the real ones repeated as the settings say, then the artificial ones."""
    assert data.root is not None
    held = _held_out(data)
    real = _read(_paths(data.root, NAMES["train" if split in held else split]))
    if held and (split == "train" or split in held):
        real = _part(real, data.held_out, held, split)
    if split != "train" or not data.artificial:
        return real
    return real * data.oversample + _read(_paths(data.root, [data.artificial]))


def check_test(data: Data) -> None:
    """DataError for a test split that could not be evaluated; one that is not there, or not its post-edits, is fine."""
    if data.root is None:
        return
    table, *texts = (_file(data.root, NAMES["test"], end) for end in ("tsv", *PARTS))
    there = [path for path in texts if path is not None]
    if table is None and there == texts[:2]:  # the post-edits are hidden
        _parallel(there)
    elif table is not None or there:
        read(data, "test")


def _held_out(data: Data) -> list[str]:
    """The splits that have no files and are taken from train."""
    assert data.root is not None
    root = data.root
    return [split for split in ("val", "test") if data.held_out and not _there(root, NAMES[split])]


def _there(root: Path, names: list[str]) -> bool:
    return _file(root, names, "tsv") is not None or _file(root, names, "src") is not None


def _file(root: Path, names: list[str], end: str) -> Path | None:
    paths = (root / f"{name}.{end}{gz}" for name in names for gz in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _paths(root: Path, names: list[str]) -> list[Path]:
    if table := _file(root, names, "tsv"):
        return [table]
    return [files.find(root, [f"{name}.{part}" for name in names]) for part in PARTS]


def _part(triplets: list[Triplet], count: int, held: list[str], split: str) -> list[Triplet]:
    """``count`` triplets over the whole, so that a file sorted by subject gives some of each; for train, the rest."""
    if len(held) * count >= len(triplets):
        raise DataError(f"data.held_out={count} for {' and '.join(held)} leaves nothing of {len(triplets)} triplets")
    stride = len(triplets) // count
    first = {name: stride * number // len(held) for number, name in enumerate(held)}
    places = {name: {start + stride * number for number in range(count)} for name, start in first.items()}
    if split != "train":
        return [triplets[place] for place in sorted(places[split])]
    taken = set().union(*places.values())
    return [one for place, one in enumerate(triplets) if place not in taken]


def _read(paths: list[Path]) -> list[Triplet]:
    return _of_table(paths[0]) if len(paths) == 1 else _of_texts(paths)


def _of_texts(paths: list[Path]) -> list[Triplet]:
    found = [Triplet(*(" ".join(one.split()) for one in row)) for row in zip(*_parallel(paths), strict=True)]
    for number, one in enumerate(found, 1):
        _check(one, paths, number)
    return found


def _parallel(paths: list[Path]) -> list[list[str]]:
    texts = [files.lines(path, blank=True) for path in paths]
    if len({*map(len, texts)}) > 1:
        counts = ", ".join(f"{path} has {len(text)} lines" for path, text in zip(paths, texts, strict=True))
        raise DataError(f"{counts}: they must be parallel")
    return texts


def _of_table(path: Path) -> list[Triplet]:
    header, *body = (_cells(path, number, line) for number, line in enumerate(files.lines(path), 1))
    if missing := [part for part in PARTS if part not in header]:
        raise DataError(f"{path}, line 1: no column {', '.join(missing)}; its columns are {', '.join(header)}")
    if (column := twice(header)) is not None:
        raise DataError(f"{path}, line 1: has the column {column!r} twice; give each a name of its own")
    columns = [header.index(part) for part in PARTS]
    found = []
    for number, row in enumerate(body, 2):
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} columns where the header has {len(header)}")
        found.append(Triplet(*(" ".join(row[column].split()) for column in columns)))
        _check(found[-1], [path], number)
    if not found:
        raise DataError(f"{path} has a header and no triplets")
    return found


def _cells(path: Path, number: int, line: str) -> list[str]:
    if "\r" in line:  # a cell of several lines, or a file whose lines end as on old Macs
        raise DataError(
            f"{path}, line {number}: a carriage return within the line; put a space there, and end lines with a newline"
        )
    return line.split("\t")


def _check(one: Triplet, paths: list[Path], number: int) -> None:
    """Machine output may be missing, or the source: not both, nor the post-edit."""
    if not one.edited:
        raise DataError(f"{paths[-1]}, line {number}: the post-edit is empty; remove this triplet")
    if not one.source and not one.machine:
        raise DataError(f"{paths[0]}, line {number}: source and machine output are both empty; remove this triplet")
