"""CSV and Parquet with a header, every column a number."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from ..kit.inputs import shortened
from ..kit.recipe import DataError
from ..text.files import lines


def read_csv(path: Path) -> tuple[list[str], list[list[float]], list[int]]:
    """Names of the columns, the rows as numbers, and the line of each row."""
    reader = csv.reader(lines(path))
    rows: list[list[float]] = []
    places: list[int] = []
    try:
        header = next(reader)
        _check_names(path, header)
        for cells in reader:
            if cells:
                rows.append(_row(path, reader.line_num, header, cells))
                places.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    return header, rows, places


def read_parquet(path: Path) -> tuple[list[str], list[list[float]], list[int]]:
    """As :func:`read_csv`; the places are numbers of rows."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow; install it: python -m pip install pyarrow") from None
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise DataError(f"cannot read {path}, it is damaged or no Parquet: {shortened(str(error))}") from None
    _check_names(path, table.column_names)
    columns = [column.to_pylist() for column in table.columns]
    rows = [_row(path, number, table.column_names, cells) for number, cells in enumerate(zip(*columns, strict=True), 1)]
    return list(table.column_names), rows, list(range(1, len(rows) + 1))


def _check_names(path: Path, names: list[str]) -> None:
    if not all(name.strip() for name in names):
        at = [bool(name.strip()) for name in names].index(False) + 1
        raise DataError(f"{path}, line 1: column {at} of {len(names)} has no name")
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path} has the column {twice!r} twice")


def _row(path: Path, place: int, names: list[str], cells: list[str] | tuple[object, ...]) -> list[float]:
    if len(cells) != len(names):
        raise DataError(f"{path}, line {place}: {len(cells)} cells where the header has {len(names)}")
    row = []
    for name, cell in zip(names, cells, strict=True):
        try:
            number = float(cell)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(f"{path}, line {place}: {name} must be a number, got {shortened(repr(cell))}")
        row.append(number)
    return row
