"""Which data a run was begun with: a hash of every file, so that a change is told and not trained on silently."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .recipe import Recipe
from .runs import Run, read_json, write
from .settings import SettingsError

SPLITS = ("train", "val", "test")


def note(recipe: Recipe[Any, Any, Any, Any], settings: Any, run: Run) -> None:
    """Keep the hashes of the data in the run; a split that is not there, such as hidden tests, is left out."""
    known = {}
    for split in SPLITS:
        try:
            known[split] = {path.name: digest(path) for path in recipe.files(settings, split)}
        except ValueError:
            continue
    write(run.data, json.dumps(known, indent=1, ensure_ascii=False))


def check(recipe: Recipe[Any, Any, Any, Any], settings: Any, run: Run, splits: tuple[str, ...], allowed: bool) -> None:
    """SettingsError with the names of the files that are not as they were when the run began, unless ``allowed``."""
    if not run.data.exists() or allowed:  # a run of an older version
        return
    known = read_json(run.data)
    for split in splits:
        now = {path.name: path for path in recipe.files(settings, split)}
        before: dict[str, str] = known.get(split, {})
        if not isinstance(before, dict):
            raise SettingsError(f"{run.data} is damaged: it must name the files of {split}; bring it back from a copy")
        if split in known and {*now} != {*before}:
            other = ", ".join(sorted({*now} ^ {*before}))
            raise SettingsError(f"the files of {split} are others than when the run began: {other}; {WAY_OUT}")
        if changed := [str(path) for name, path in now.items() if name in before and digest(path) != before[name]]:
            raise SettingsError(f"changed since the run began: {', '.join(changed)}; {WAY_OUT}")


WAY_OUT = "bring the data back, or allow it by --changed-data"


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()
