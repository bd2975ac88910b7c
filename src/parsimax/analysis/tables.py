"""Rows of results that print as a table, and turn into dictionaries or CSV."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload

import torch
from torch import Tensor


class HeadRow(Protocol):
    """What every row has: it belongs to one head of one layer."""

    @property
    def layer(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def head(self) -> int: ...


Row = TypeVar("Row", bound=HeadRow)


class Table(Sequence[Row], Generic[Row]):
    """Rows, one per head, layer after layer. Printed it is a table.

    Args:
        rows: dataclasses of one type.

    Example:
        >>> import torch
        >>> from parsimax import analysis
        >>> recording = analysis.Recording.from_weights({"layer.0": torch.eye(3).expand(1, 2, 3, 3)})
        >>> table = analysis.measures(recording)
        >>> len(table), table[0].support, table.dicts()[1]["head"]
        (2, 1.0, 1)
        >>> print(table.csv().splitlines()[0])
        layer,kind,mapping,head,alpha,density,entropy,support,confidence,diversity
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def layers(self) -> list[str]:
        """The names of the layers, in order."""
        return list(dict.fromkeys(row.layer for row in self.rows))

    def dicts(self) -> list[dict[str, Any]]:
        """Each row as a dictionary; one in a row gives its own columns."""
        return [_flatten(asdict(row)) for row in self.rows]  # type: ignore[call-overload]

    def matrix(self, column: str) -> Tensor:
        """A column as (layers, heads), float64; NaN where there is no number or no such head."""
        order = {name: i for i, name in enumerate(self.layers)}
        out = torch.full(
            (len(order), max((row.head + 1 for row in self.rows), default=0)), math.nan, dtype=torch.float64
        )
        for row, values in zip(self.rows, self.dicts(), strict=True):
            if column not in values:
                raise KeyError(f"no column {column!r}; there are {', '.join(values)}")
            if values[column] is not None:
                out[order[row.layer], row.head] = values[column]
        return out

    def csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table as CSV, written to ``path`` if there is one."""
        file, dicts = io.StringIO(), self.dicts()
        writer = csv.DictWriter(file, list(dicts[0]) if dicts else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(dicts)
        if path is not None:
            Path(path).write_text(file.getvalue(), encoding="utf-8")
        return file.getvalue()

    def __str__(self) -> str:
        dicts = self.dicts()
        if not dicts:
            return "(empty)"
        lines = [list(dicts[0]), *([_shown(value) for value in values.values()] for values in dicts)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        right = [not any(isinstance(values[name], str) for values in dicts) for name in dicts[0]]
        return "\n".join(
            "  ".join(
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(line, widths, right, strict=True)
            ).rstrip()
            for line in lines
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} rows>\n{self}"


def _flatten(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
