"""Where the launch table of a device is kept: what ``parsimax tune`` has measured there. Imports no Triton."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import torch

VARIABLE = "PARSIMAX_TRITON_TABLE"  # names another file
KINDS = ("light", "heavy", "ordered", "heaviest", "backward")
# The least and the most: a tensor of Triton has up to 2^20 numbers, a program up to 1024 threads.
LIMITS = {"scores": (1, 1024), "tile": (16, 1 << 20), "cluster": (1, 8)}
BLOCKS = {"BM": (16, 1024), "BN": (16, 1024), "warps": (1, 32), "stages": (1, 8)}  # of attention


def path() -> Path | None:
    """The file for the GPU in use; None without one."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    if not torch.cuda.is_available():
        return None
    name = re.sub(r"\W+", "-", torch.cuda.get_device_name()).strip("-").lower()
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "parsimax", f"triton-{name}.json")


def read() -> dict[str, Any]:
    """What was measured; nothing if nobody has."""
    file = path()
    if file is None or not file.exists():
        return {}
    try:
        table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        wrong = problem(table)
    except ValueError as error:
        wrong = str(error)
    if wrong is not None:
        raise ValueError(f"{file} is no launch table: {wrong}; remove it, then `parsimax tune` writes a new one")
    return table


def problem(table: Any) -> str | None:
    """What is wrong with what a file holds."""
    parts = (*LIMITS, "attention")
    if not isinstance(table, dict) or any(not isinstance(part, dict) for part in table.values()):
        return f"it holds {table!r}, not an object of objects called {', '.join(parts)}"
    for name, part in table.items():
        if name not in parts:
            return f"it has {name!r}; there are {', '.join(parts)}"
        for key, value in part.items():
            if name == "attention":
                if not re.fullmatch(r"\d+, [24], (True|False)", key):
                    return f"attention has {key!r}; a key is a head size, the bytes of a number, and whether α is any"
                if not isinstance(value, list) or len(value) != len(BLOCKS):
                    return f"attention, {key!r} is {value!r}, not the four numbers {', '.join(BLOCKS)}"
                given = zip(BLOCKS.items(), value, strict=True)
                for (block, limits), number in given:
                    if not _fits(number, limits, any_number=block == "stages"):
                        kind = "a number" if block == "stages" else "a power of 2"
                        return f"attention, {key!r} has {block} = {number!r}, not {kind} {_span(limits)}"
            elif key not in KINDS:
                return f"{name} has {key!r}; there are {', '.join(KINDS)}"
            elif not _fits(value, LIMITS[name]):
                return f"{name}, {key!r} is {value!r}, not a power of 2 {_span(LIMITS[name])}"
    return None


def _span(limits: tuple[int, int]) -> str:
    return f"from {limits[0]} to {limits[1]}"


def _fits(value: Any, limits: tuple[int, int], any_number: bool = False) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and limits[0] <= value <= limits[1]
    return whole and (any_number or value & (value - 1) == 0)


def words() -> str:
    """For ``python -m parsimax.info``."""
    file = path()
    if file is None or not file.exists():
        return "built in; `parsimax tune` measures one"
    try:
        read()
    except ValueError as error:
        return f"an error: {error}"
    return f"measured, {file}"
