"""What predictions read: lines of text, CSV or TSV with a header, JSON lines, each into the typed query of a recipe."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from .recipe import DataError
from .settings import as_kind, kind_text, unknown

Q = TypeVar("Q")
Form = Literal["text", "csv", "tsv", "jsonl"]
FORMS: dict[str, Form] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}  # by the ending of a file; all others are text


def form_of(path: Path | None) -> Form:
    """The format of a file by its name, gzipped or not; text for the standard input."""
    name = "" if path is None else path.name.lower().removesuffix(".gz")
    return FORMS.get(Path(name).suffix, "text")


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, unpacked if it is gzipped; RuntimeError names it where it cannot be read."""
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield from file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RuntimeError(f"cannot read {path} to its end, it is damaged or cut off: {error}") from None
    except OSError as error:
        raise RuntimeError(f"cannot read {path}: {error.strerror or error}") from None


def query_of(kind: type[Q], record: Mapping[str, Any]) -> Q:
    """A query from named values; names that it does not have are left out, those that it needs must be there."""
    hints, values = get_type_hints(kind), {}
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name not in record:
            if one.default is MISSING:
                raise DataError(unknown(one.name, [str(name) for name in record], "column"))
            continue
        values[one.name] = value_of(one.name, record[one.name], hints[one.name])
    return kind(**values)


def number(value: Any) -> float:
    """As ``float`` reads it, but for digits with underscores between them, which are numbers in Python alone.

    ValueError, TypeError or OverflowError where it is none.
    """
    if not isinstance(value, (int, float)) and "_" in str(value):  # bytes are read too
        raise ValueError(f"{value!r} is no number")
    return float(value)


def value_of(name: str, value: Any, kind: Any) -> Any:
    """A named value as ``kind``; DataError where it is not one, naming the part of a list that is not."""
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(value_of(name, part, get_args(kind)[0]) for part in value)
    try:
        if kind in (int, float):
            number(value)
        return as_kind(value, kind)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{name} must be {kind_text(kind)}, got {shortened(repr(value))}") from None


def twice(names: Sequence[str]) -> str | None:
    """The first name that is there twice, if one is; columns without a name are not looked at."""
    return next((name for name in names if name and names.count(name) > 1), None)


def shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def reader(
    form: Form, record: Callable[[Mapping[str, Any]], Q], read: Callable[[str], Q]
) -> Callable[[bytes], Q | None]:
    """Lines → queries; None for a line that asks nothing, which is the header of a CSV or TSV file.

    DataError says what is wrong with a line, and the next line can still be read.
    """
    if form in ("csv", "tsv"):
        return _Rows(record, form == "tsv")
    return lambda line: read(_text(line)) if form == "text" else record(_record(_text(line)))


class _Rows(Generic[Q]):
    """The rows of a CSV or TSV file; none is read by a header that could not be.

    Cells of a TSV file hold no quotes that mean something, as GLUE has it; those of CSV do.
    """

    def __init__(self, record: Callable[[Mapping[str, Any]], Q], tabs: bool) -> None:
        self.record = record
        self.dialect: Any = Tabs if tabs else csv.excel
        self.header: list[str] | None = None

    def __call__(self, line: bytes) -> Q | None:
        if self.header is None:
            self.header = []
            names = self.cells(line)
            if (name := twice(names)) is not None:
                raise DataError(f"the header has the column {name!r} twice; leave one of them")
            self.header = names
            return None
        if not self.header:
            raise DataError("the header, in line 1, is empty or cannot be read")
        cells = self.cells(line)
        if len(cells) != len(self.header):
            raise DataError(f"{len(cells)} cells where the header has {len(self.header)}")
        return self.record(dict(zip(self.header, cells, strict=True)))

    def cells(self, line: bytes) -> list[str]:
        if self.dialect is csv.excel and _goes_on(line):
            raise DataError("not CSV: a quote that opens in it is not closed")
        try:
            return next(csv.reader([_text(line)], self.dialect), [])
        except csv.Error as error:
            raise DataError(f"not CSV: {error}") from None


class Tabs(csv.excel_tab):
    quoting = csv.QUOTE_NONE


def _goes_on(row: bytes) -> bool:
    """Whether a quoted cell is open at the end of a row, so that the next line belongs to it."""
    reader = csv.reader([row.decode("utf-8", "replace"), ""])
    try:
        next(reader)
    except csv.Error:  # such as a cell that is too large: the row ends here, and is refused
        return False
    return reader.line_num > 1


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error.reason} at byte {error.start + 1})") from None


def _record(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{error.object[error.start]!a} is half of a character; write both halves") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise DataError(f"a line must be a JSON object, got {shortened(text)}")
    return record


def numbered(groups: Iterator[list[bytes]], form: Form) -> Iterator[list[tuple[int, bytes]]]:
    """Groups of rows with the numbers of their first lines, from 1 on; a quoted cell of CSV may have several lines."""
    count, first, row = 0, 0, b""
    for group in groups:
        rows = []
        for line in group:
            count += 1
            first, row = first if row else count, row + line
            if form != "csv" or not _goes_on(row):
                rows.append((first, row))
                row = b""
        yield rows
    if row:
        yield [(first, row)]
