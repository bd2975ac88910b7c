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
LEAST = {"scores": 1, "tile": 16}
BLOCKS = {"BM": 16, "BN": 16, "warps": 1, "stages": 1}  # of attention, with the least of each


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
    parts = (*LEAST, "attention")
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
                bad = [f"{n} = {v!r}" for (n, least), v in given if not _fits(v, least, any_number=n == "stages")]
                if bad:
                    return f"attention, {key!r} has {bad[0]}, not a power of 2 that is large enough"
            elif key not in KINDS:
                return f"{name} has {key!r}; there are {', '.join(KINDS)}"
            elif not _fits(value, LEAST[name]):
                return f"{name}, {key!r} is {value!r}, not a power of 2 from {LEAST[name]} on"
    return None


def _fits(value: Any, least: int, any_number: bool = False) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
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
