"""Tables with a header: CSV, and TSV, whose cells hold no quotes that mean something, as GLUE has it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from ..kit.inputs import twice
from ..kit.recipe import DataError
from .files import ending, lines


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of the header and of each row, as many, with the line that they begin in; blank lines are left out."""
    found = _parsed(path)
    place, header = next(found)
    if not any(cell.strip() for cell in header):
        raise DataError(f"{path}, line 1: empty; the names of the columns belong there")
    if (repeated := twice(header)) is not None:
        raise DataError(f"{path}, line 1: the column {repeated!r} is there twice; leave one of them")
    yield place, header
    for place, cells in found:
        if not cells:
            continue
        if len(cells) != len(header):
            raise DataError(f"{path}, line {place}: {len(cells)} cells where the header has {len(header)}")
        yield place, cells


def _parsed(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows with their first lines: a quoted cell may have several, and one that is not closed is refused."""
    tabs = ending(path) == ".tsv"
    text = (f"{line}\n" for line in lines(path))
    reader = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(text, strict=True)
    first = 1
    try:
        for cells in reader:
            yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        if "new-line" in str(error):  # what follows it is advice on how Python opens files
            wrong = "a carriage return within the line; put a space there, and end lines with a newline"
        else:
            wrong = f"cannot be read: {error}" + (
                "" if tabs else "; a quote in a cell is written twice, and the cell in quotes"
            )
        raise DataError(f"{path}, line {first}: {wrong}") from None
