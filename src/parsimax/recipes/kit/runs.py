"""A run's folder: its settings, versions, metrics and checkpoints. Nothing in it is overwritten silently."""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from .settings import SettingsError, changed, from_yaml, to_yaml

S = TypeVar("S")
PACKAGES = ("parsimax", "torch", "lightning", "transformers", "tokenizers", "sacrebleu", "numpy")


@dataclass(frozen=True)
class Run:
    """The names in a run's folder."""

    folder: Path

    @property
    def about(self) -> Path:
        return self.folder / "run.json"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.csv"

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        return self.folder / "checkpoints" / "best.ckpt"

    @property
    def results(self) -> Path:
        return self.folder / "results.json"

    @property
    def recipe(self) -> str:
        name: str = json.loads(self.about.read_text(encoding="utf-8"))["recipe"]
        return name

    def settings(self, defaults: S) -> S:
        return changed(defaults, from_yaml(self.config), f"{self.config}: ")

    def read_results(self) -> dict[str, dict[str, Any]]:
        """What was measured, by split."""
        if not self.results.exists():
            return {}
        results: dict[str, dict[str, Any]] = json.loads(self.results.read_text(encoding="utf-8"))
        return results

    def add_results(self, split: str, figures: Mapping[str, Any]) -> None:
        """Keep the figures of a split beside those of the others; those that are not measured again stay."""
        known = self.read_results()
        fresh = {name: None if value != value else value for name, value in figures.items()}  # JSON has no NaN
        known[split] = {**known.get(split, {}), **fresh}
        write(self.results, json.dumps(known, indent=1, ensure_ascii=False))


def create(recipe: str, settings: Any, folder: Path | None = None) -> Run:
    """A new folder: the one that is named, which must not hold anything, or the next number under ``runs/recipe``."""
    if folder is None:
        folder = _next_folder(Path("runs") / recipe)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(
            f"{folder} exists and is not overwritten; go on with it by `parsimax train --resume {folder}`, "
            f"or name another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder)
    write(run.config, to_yaml(settings))
    write(run.about, json.dumps({"recipe": recipe, **versions()}, indent=1))
    return run


def _next_folder(parent: Path) -> Path:
    for folder in free(parent):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # another training was quicker
            continue
        return folder
    raise AssertionError


def open_run(folder: Path) -> Run:
    run = Run(folder)
    if not run.about.is_file() or not run.config.is_file():
        found = sorted(str(path.parent) for path in folder.glob("**/run.json"))[:5] if folder.is_dir() else []
        hint = f"; under it there is {', '.join(found)}" if found else ""
        raise SettingsError(f"{folder} is not the folder of a run: it has no run.json and config.yaml{hint}")
    return run


def versions() -> dict[str, Any]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "versions": found,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": " ".join(["parsimax", *sys.argv[1:]]),
    }


def write(path: Path, text: str) -> None:
    """Replace a file as a whole: a crash leaves the old one or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    beside.replace(path)


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The rows of a metrics file: one a line, ``step`` first."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row.get("step")]


def free(parent: Path) -> Iterator[Path]:
    """Folders of the next numbers under ``parent``."""
    taken = [int(path.name) for path in parent.glob("[0-9]*") if path.name.isdigit()] if parent.is_dir() else []
    number = max(taken, default=0)
    while True:
        number += 1
        yield parent / f"{number:04d}"
