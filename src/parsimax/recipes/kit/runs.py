"""A run's folder: its settings, versions, metrics and checkpoints. Nothing in it is overwritten silently."""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from . import durable
from .durable import PART
from .durable import write as write
from .settings import SettingsError, changed, flat, from_yaml, leaves, to_yaml, words_of

S = TypeVar("S")
PACKAGES = ("parsimax", "torch", "lightning", "numpy")  # and those that the recipe needs


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
    def data(self) -> Path:
        """Hashes of the files that the run was begun with."""
        return self.folder / "data.json"

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        return self.folder / "checkpoints" / "best.ckpt"

    @property
    def previous(self) -> Path:
        """What ``last`` was before it, for the case that it cannot be read."""
        return self.folder / "checkpoints" / "previous.ckpt"

    @property
    def results(self) -> Path:
        return self.folder / "results.json"

    @property
    def dial(self) -> Path:
        return self.folder / "dial"

    @property
    def before(self) -> Path:
        """What was measured of earlier weights or settings, in numbered folders."""
        return self.folder / "before"

    def outputs(self, split: str) -> Path:
        return self.folder / "outputs" / f"{split}.jsonl"

    @property
    def recipe(self) -> str:
        name = read_json(self.about).get("recipe")
        if not isinstance(name, str):
            raise SettingsError(f"{self.about} does not say of which recipe the run is; it is damaged")
        return name

    def settings(self, defaults: S) -> S:
        return changed(defaults, from_yaml(self.config), f"{self.config}: ")

    def rows(self) -> list[dict[str, str]]:
        return read_metrics(self.metrics)

    def read_results(self) -> dict[str, dict[str, Any]]:
        """What was measured, by split."""
        found = read_json(self.results) if self.results.exists() else {}
        if wrong := [split for split, figures in found.items() if not isinstance(figures, dict)]:
            raise SettingsError(f"{self.results} is damaged: {wrong[0]} has no figures; move it away, and eval again")
        return found

    def add_results(self, split: str, figures: Mapping[str, Any]) -> None:
        """Keep the figures of a split beside those of the others; those that are not measured again stay."""
        fresh = {name: None if value != value else value for name, value in figures.items()}  # JSON has no NaN
        with durable.turn(self.folder):  # evaluations may end at the same time
            known = self.read_results()
            known[split] = {**known.get(split, {}), **fresh}
            write(self.results, json.dumps(known, indent=1, ensure_ascii=False))

    def measured(self) -> list[str]:
        """Of what there are figures: splits, and the dial."""
        return [*self.read_results(), *(["the dial"] if self.dial.exists() else [])]

    def set_aside(self, keep: str = "") -> list[str]:
        """Move what was measured of other weights or settings into the next folder of ``before``: the figures of all
        splits but one, outputs and dials; what was moved, as :meth:`measured` calls it.
        """
        with durable.turn(self.folder):
            known = self.read_results()
            gone = {split: figures for split, figures in known.items() if split != keep}
            files = [path for path in (self.folder / "outputs", self.dial) if path.exists()]
            if not gone and not files:
                return []
            moved = [one for one in self.measured() if one != keep]
            before = next(free(self.before))
            durable.folder(before)
            if gone:
                write(before / self.results.name, json.dumps(gone, indent=1, ensure_ascii=False))
                kept = {split: figures for split, figures in known.items() if split == keep}
                write(self.results, json.dumps(kept, indent=1, ensure_ascii=False))
            for path in files:
                path.rename(before / path.name)
        return moved


def create(recipe: str, settings: Any, folder: Path | None = None, packages: Sequence[str] = ()) -> Run:
    """A new folder: the one that is named, which must not hold anything, or the next number under ``runs/recipe``."""
    if folder is None:
        folder = _next_folder(Path("runs") / recipe)
    elif folder.exists():
        _check_unbegun(folder)
    durable.folder(folder)
    run = Run(folder)
    with durable.only_writer(folder):
        _check_unbegun(folder)  # another training may have been quicker
        write(run.about, json.dumps({"recipe": recipe, **versions(packages)}, indent=1))
        write(run.config, to_yaml(settings))  # last: what has it is a run, or somebody's settings
    return run


def remove(run: Run, made: bool) -> None:
    """Take away a run that did not begin: the folder too if it was ``made`` for the run, which held nothing before."""
    for path in run.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if made:
        run.folder.rmdir()


def _check_unbegun(folder: Path) -> None:
    if not folder.is_dir() or not _unbegun(folder):
        there = f"go on with it by `parsimax train --resume {folder}`, or " if (folder / "run.json").exists() else ""
        raise SettingsError(f"{folder} exists and is not overwritten; {there}name another folder")


def _unbegun(folder: Path) -> bool:
    """Whether nothing is in the folder but what a training leaves that was killed before its run was made."""
    return all(path.name in ("run.json", ".lock") or path.suffix == PART for path in folder.iterdir())


def _next_folder(parent: Path) -> Path:
    for folder in free(parent):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # another training was quicker
            continue
        return folder
    raise AssertionError


def altered(run: Run, settings: S, words: Sequence[str]) -> S:
    """The settings of a run that goes on with other values, where that is possible; its file says so too."""
    if not words:
        return settings
    made = changed(settings, words_of(words))
    before, fixed = flat(settings), {leaf.key for leaf in leaves(settings) if not leaf.later}
    if wrong := [key for key, value in flat(made).items() if key in fixed and value != before[key]]:
        free = ", ".join(leaf.key for leaf in leaves(settings) if leaf.later)
        raise SettingsError(f"{wrong[0]} is fixed since the run began; begin another run, or change only {free}")
    return made


def open_run(folder: Path) -> Run:
    run = Run(folder)
    if not run.about.is_file() or not run.config.is_file():
        found = sorted(str(path.parent) for path in folder.glob("**/run.json"))[:5] if folder.is_dir() else []
        hint = f"; under it there is {', '.join(found)}" if found else ""
        raise SettingsError(f"{folder} is not the folder of a run: it has no run.json and config.yaml{hint}")
    return run


def versions(packages: Sequence[str] = ()) -> dict[str, Any]:
    found = {}
    for name in (*PACKAGES, *packages):
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


def read_json(path: Path) -> dict[str, Any]:
    """A file of the run; SettingsError where it is not what was written."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is damaged, it is not JSON: {error}; bring it back from a copy") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} is damaged: it must hold an object, got a {type(content).__name__}")
    return content


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The rows of a metrics file: one a line, ``step`` first."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("step")]
        if all(row["step"].isdigit() for row in rows):
            return rows
        problem = "a step is no number"
    except (UnicodeDecodeError, csv.Error) as error:
        problem = str(error)
    raise SettingsError(f"{path} is damaged: {problem}; move it away, and it begins anew")


def free(parent: Path) -> Iterator[Path]:
    """Folders of the next numbers under ``parent``."""
    taken = [int(path.name) for path in parent.glob("[0-9]*") if path.name.isdigit()] if parent.is_dir() else []
    number = max(taken, default=0)
    while True:
        number += 1
        yield parent / f"{number:04d}"
