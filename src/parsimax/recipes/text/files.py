"""Text files, plain or gzipped, read with errors that name the file and the line."""

from __future__ import annotations

import codecs
import gzip
import random
import re
import zlib
from collections.abc import Container
from pathlib import Path

from ..kit.recipe import DataError

WORDS = {"train": ("train",), "val": ("val", "valid", "dev"), "test": ("test",)}


def is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def ending(path: Path) -> str:
    """That of a file's name before it was gzipped, in small letters."""
    return Path(path.stem if is_packed(path) else path.name).suffix.lower()


def unpacked(path: Path) -> bytes:
    """The bytes of a file, as they were before it was gzipped."""
    try:
        return gzip.decompress(path.read_bytes()) if is_packed(path) else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}, it is damaged or cut off: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def of_split(root: Path, split: str, endings: Container[str]) -> Path | None:
    """The file with one of these endings whose name has a word of the split in it; None where there is none."""
    if not root.is_dir():
        raise DataError(f"data.root: {root} is not a folder")
    found = [
        path
        for path in sorted(root.iterdir())
        if path.is_file() and ending(path) in endings and {*re.split(r"[-_.]", path.name.lower())} & {*WORDS[split]}
    ]
    if len(found) > 1:
        raise DataError(f"{root} has more than one file of {split}: {', '.join(path.name for path in found)}")
    return found[0] if found else None


def held_out(count: int, share: float, path: Path) -> tuple[list[int], list[int]]:
    """Numbers of the examples of ``path`` to train on, and of the others, which are to validate on: always the same."""
    order = list(range(count))
    random.Random(0).shuffle(order)
    some = max(1, round(share * count))
    if some >= count:
        raise DataError(f"{path} has {count} examples: too few to hold data.held_out={share:g} of them out")
    return sorted(order[some:]), sorted(order[:some])


def refuse_share(share: float, plain: float, validation: Path) -> None:
    """Raise where ``data.held_out`` was given in vain, as there is a file to validate on."""
    if share != plain:
        raise DataError(
            f"data.held_out={share:g}: {validation} is there to validate on; leave data.held_out or the file out"
        )


def find(folder: Path, names: list[str]) -> Path:
    """The first of ``names`` in ``folder``, as it is or with .gz."""
    if not folder.is_dir():
        raise DataError(f"data.root: {folder} is not a folder")
    for name in names:
        if Path(name).name != name:
            raise DataError(f"{name!r} is not the name of a file in {folder}")
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise DataError(f"{folder} has no {' or '.join(names)} (also with .gz); it holds {there}")


def lines(path: Path, blank: bool = False) -> list[str]:
    """The lines without their ends. An empty file and bytes that are not UTF-8 are refused, and so is a file of blank
    lines alone, unless they are as good as others (``blank``).
    """
    content = unpacked(path).removeprefix(codecs.BOM_UTF8)
    if not (content if blank else content.strip()):
        raise DataError(f"{path} is empty")
    found = []
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), 1):
        try:
            found.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, line {number}: not UTF-8 ({error.reason}); save the file as UTF-8") from None
    return found


def columns(path: Path, count: int, names: str) -> list[list[str]]:
    """Tab-separated lines of ``count`` filled columns; blank lines are left out."""
    rows = []
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        row = line.split("\t")
        if len(row) != count:
            raise DataError(f"{path}, line {number}: {len(row)} columns where {names} are {count}, tab-separated")
        if empty := [name for name, cell in zip(names.split(", "), row, strict=True) if not cell.strip()]:
            raise DataError(f"{path}, line {number}: {empty[0]} is empty")
        rows.append(row)
    return rows


def parallel(source: Path, target: Path) -> list[tuple[str, str]]:
    """Pairs of two files, line by line."""
    left, right = lines(source), lines(target)
    if len(left) != len(right):
        raise DataError(f"{source} has {len(left)} lines and {target} has {len(right)}: they must be parallel")
    for number, (one, other) in enumerate(zip(left, right, strict=True), 1):
        for path, line in ((source, one), (target, other)):
            if not line.strip():
                raise DataError(f"{path}, line {number}: empty; remove this line in both files")
    return list(zip(left, right, strict=True))
