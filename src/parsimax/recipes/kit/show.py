"""Figures and tables as text."""

from __future__ import annotations

import math
import sys
from typing import Any


def cell(value: Any) -> str:
    """A figure as people read it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(cell, value))
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return "–" if value is None else str(value)


def print_figures(figures: dict[str, Any]) -> None:
    print_table([[name, cell(value)] for name, value in figures.items()])


def print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(one.rjust(width) for one, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def progress(text: str) -> None:
    """A line that the next one replaces, on a terminal; an empty one clears it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
