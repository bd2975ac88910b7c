"""Numbers as files and queries have them."""

from __future__ import annotations

from typing import Any


def number(value: Any) -> float:
    """As ``float`` reads it, but for digits with underscores between them, which are numbers in Python alone.

    ValueError or TypeError where it is none.
    """
    if not isinstance(value, (int, float)) and "_" in str(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
