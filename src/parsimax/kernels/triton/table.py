"""Where the launch table of a device is kept: what ``parsimax tune`` has measured there. Imports no Triton."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import torch

VARIABLE = "PARSIMAX_TRITON_TABLE"  # names another file


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
    except ValueError as error:
        raise ValueError(
            f"{file} is no launch table: {error}; remove it, or write it anew with `parsimax tune`"
        ) from None
    return table


def words() -> str:
    """For ``python -m parsimax.info``."""
    file = path()
    return f"measured, {file}" if file is not None and file.exists() else "built in; `parsimax tune` measures one"
