"""What predictions read: lines of text, CSV with a header or JSON lines, each into the typed query of a recipe."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, get_type_hints

from .recipe import DataError
from .settings import as_kind, kind_text, unknown

Q = TypeVar("Q")
Form = Literal["text", "csv", "jsonl"]
FORMS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}  # by the ending of a file; all others are text


def query_of(kind: type[Q], record: Mapping[str, Any]) -> Q:
    """A query from named values; names that it does not have are left out, those that it needs must be there."""
    hints, values = get_type_hints(kind), {}
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name not in record:
            if one.default is MISSING:
                raise DataError(unknown(one.name, [str(name) for name in record], "column"))
            continue
        value = record[one.name]
        try:
            values[one.name] = as_kind(value, hints[one.name])
        except (TypeError, ValueError):
            raise DataError(f"{one.name} must be {kind_text(hints[one.name])}, got {shortened(repr(value))}") from None
    return kind(**values)


def shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def reader(form: Form, kind: type[Q], read: Callable[[str], Q]) -> Callable[[bytes], Q | None]:
    """Lines → queries; None for a line that asks nothing, which is the header of a CSV file.

    DataError says what is wrong with a line, and the next line can still be read.
    """
    header: list[str] = []

    def one(line: bytes) -> Q | None:
        try:
            text = line.decode("utf-8").rstrip("\r\n").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise DataError(f"not UTF-8 ({error.reason} at byte {error.start + 1})") from None
        if form == "text":
            return read(text)
        if form == "jsonl":
            return query_of(kind, _record(text))
        cells = next(csv.reader([text]), [])
        if not header:
            header.extend(cells)
            return None
        if len(cells) != len(header):
            raise DataError(f"{len(cells)} cells where the header has {len(header)}")
        return query_of(kind, dict(zip(header, cells, strict=True)))

    return one


def _record(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise DataError(f"a line must be a JSON object, got {shortened(text)}")
    return record


def numbered(groups: Iterator[list[bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Groups of lines with their numbers from 1 on."""
    count = 0
    for group in groups:
        yield [(count + index, line) for index, line in enumerate(group, 1)]
        count += len(group)
