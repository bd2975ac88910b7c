"""CSV and Parquet with a header, every column a number."""

from __future__ import annotations

import io
import math
from pathlib import Path

from ..kit.inputs import number, shortened, twice
from ..kit.recipe import DataError
from ..text.files import is_packed, unpacked
from ..text.tables import rows


def read_csv(path: Path) -> tuple[list[str], list[list[float]], list[int]]:
    """Names of the columns, the rows as numbers, and the line that each row begins in."""
    found = rows(path)
    _, header = next(found)
    _check_names(f"{path}, line 1", header)
    places, numbers = [], []
    for place, cells in found:
        places.append(place)
        numbers.append(_row(path, place, header, cells))
    return header, numbers, places


def read_parquet(path: Path) -> tuple[list[str], list[list[float]], list[int]]:
    """As :func:`read_csv`; the places are numbers of rows."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow; install it: python -m pip install pyarrow") from None
    source = io.BytesIO(unpacked(path)) if is_packed(path) else path
    try:
        with parquet.ParquetFile(source) as file:  # read_table fails where two columns have one name
            table = file.read()
    except (ArrowException, OSError) as error:
        raise DataError(f"cannot read {path}, it is damaged or no Parquet: {shortened(str(error))}") from None
    names = list(table.column_names)
    _check_names(f"{path}", names)
    columns = [column.to_pylist() for column in table.columns]
    numbers = [_row(path, place, names, cells) for place, cells in enumerate(zip(*columns, strict=True), 1)]
    return names, numbers, list(range(1, len(numbers) + 1))


def _check_names(where: str, names: list[str]) -> None:
    if not all(name.strip() for name in names):
        at = [bool(name.strip()) for name in names].index(False) + 1
        raise DataError(f"{where}: column {at} of {len(names)} has no name")
    if (repeated := twice(names)) is not None:
        raise DataError(f"{where}: the column {repeated!r} is there twice; leave one of them")


def _row(path: Path, place: int, names: list[str], cells: list[str] | tuple[object, ...]) -> list[float]:
    if len(cells) != len(names):
        raise DataError(f"{path}, line {place}: {len(cells)} cells where the header has {len(names)}")
    row = []
    for name, cell in zip(names, cells, strict=True):
        try:
            value = number(cell)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{path}, line {place}: {name} must be a number, got {shortened(repr(cell))}")
        row.append(value)
    return row
