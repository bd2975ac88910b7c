"""What the subcommands of ``parsimax`` do with recipes and runs. Torch is imported only where something runs."""

from __future__ import annotations

import math
import os
import pickle
import shutil
import sys
import textwrap
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import RECIPES, Entry, find
from .kit import runs
from .kit.recipe import Wanted
from .kit.settings import SettingsError, changed, from_yaml, kind_text, leaves, shown, words_of

SPLITS = ("val", "test")


def list_recipes() -> None:
    width = max(map(len, RECIPES))
    for entry in RECIPES.values():
        print(f"{entry.name:{width}}  {entry.summary}")


def show_config(name: str) -> None:
    """Every setting: its key, default, type and what it does."""
    entry = find(name)
    rows = [
        (f"{leaf.key}={shown(leaf.value)}", kind_text(leaf.kind, _ends(leaf.low, leaf.high)), leaf.help)
        for leaf in leaves(entry.settings())
    ]
    keys, kinds = (max(len(row[column]) for row in rows) for column in (0, 1))
    room = max(30, shutil.get_terminal_size((140, 24)).columns - keys - kinds - 4)
    for key, kind, text in rows:
        first, *more = textwrap.wrap(text, room)
        print(f"{key:{keys}}  {kind:{kinds}}  {first}")
        for line in more:
            print(" " * (keys + kinds + 4) + line)


def train(name: str, words: list[str], config: Path | None, folder: Path | None) -> None:
    """A new run, from the first step to its figures on the validation data."""
    entry = find(name)
    settings = entry.settings()
    if config is not None:
        settings = changed(settings, from_yaml(config), f"{config}: ")
    settings = changed(settings, words_of(words))
    check_data_root(settings, entry.settings())
    _need("lightning", "yaml", "sacrebleu", "tokenizers")
    if (given := os.environ.get("PARSIMAX_RUN")) and os.environ.get("LOCAL_RANK", "0") != "0":
        run = runs.Run(Path(given))  # another process of the same training: the first one made the folder
    else:
        run = runs.create(entry.name, settings, folder)
        os.environ["PARSIMAX_RUN"] = str(run.folder)
        print(f"run: {run.folder}", flush=True)
    try:
        task = entry.recipe().start(settings, run)
    except ValueError:
        _remove(run)
        raise
    _fit(entry, settings, run, task, resume=False)


def resume(folder: Path) -> None:
    """Go on with a run that was stopped."""
    run = runs.open_run(folder)
    entry = find(run.recipe)
    settings = run.settings(entry.settings())
    check_data_root(settings, settings)
    recipe = entry.recipe()
    if not run.last.exists():
        print(f"{folder} has no checkpoint yet: it begins again", flush=True)
        _fit(entry, settings, run, recipe.start(settings, run), resume=False)
    else:
        _fit(entry, settings, run, recipe.reopen(settings, run), resume=True)


def evaluate(folder: Path, split: str, checkpoint: str) -> None:
    run, entry, settings, task = _restored(folder, checkpoint)
    check_data_root(settings, settings)
    figures = entry.recipe().evaluate(task, settings, split, _progress)
    _clear()
    run.add_results(split if checkpoint == "best" else f"{split}, last checkpoint", figures)
    print(f"{folder}, {split}, {checkpoint} checkpoint")
    print_figures(figures)


def predict(folder: Path, checkpoint: str, lines: Iterable[str], wanted: Wanted) -> None:
    _, entry, settings, task = _restored(folder, checkpoint)
    for output in entry.recipe().predict(
        task, settings, (line.rstrip("\r\n").removeprefix("\ufeff") for line in lines), wanted
    ):
        print(output, flush=True)


def report(folder: Path, out: Path | None, checkpoint: str) -> None:
    run, entry, settings, task = _restored(folder, checkpoint)
    check_data_root(settings, settings)
    for path in entry.recipe().report(task, settings, run, out or folder / "report"):
        print(path)


def compare(folders: list[Path], split: str) -> None:
    """One table: the settings in which the runs differ, then their figures."""
    opened = [runs.open_run(folder) for folder in folders]
    results = [run.read_results().get(split) for run in opened]
    if missing := [str(run.folder) for run, result in zip(opened, results, strict=True) if result is None]:
        commands = "; ".join(f"parsimax eval {name} --split {split}" for name in missing)
        raise SettingsError(f"no figures of {split} in {', '.join(missing)}; first run: {commands}")
    configs = [{"recipe": run.recipe, **from_yaml(run.config)} for run in opened]
    rows: list[list[str]] = [["", *(str(folder) for folder in folders)]]
    for key in dict.fromkeys(key for config in configs for key in config):
        values = [_cell(config.get(key)) for config in configs]
        if len({*values}) > 1:
            rows.append([key, *values])
    known = [result or {} for result in results]
    for key in dict.fromkeys(key for result in known for key in result):
        rows.append([key, *(_cell(result.get(key)) for result in known)])
    print_table(rows)


def print_figures(figures: dict[str, Any]) -> None:
    print_table([[name, _cell(value)] for name, value in figures.items()])


def print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


OF_FILES = ("languages", "size", "source", "target")  # settings of the data that the embedded default does not have


def check_data_root(settings: Any, defaults: Any) -> None:
    root = settings.data.root
    if root is not None and not root.is_dir():
        raise SettingsError(f"data.root: {root} is not a folder; leave it out for the embedded data")
    for name in OF_FILES:
        if root is None and getattr(settings.data, name, None) != getattr(defaults.data, name, None):
            raise SettingsError(f"data.{name} chooses among files: give their folder too, data.root=PATH")


def _fit(entry: Entry, settings: Any, run: runs.Run, task: Any, resume: bool) -> None:
    from .kit.training import fit

    try:
        fit(task, run, resume)
    except KeyboardInterrupt:
        if run.last.exists():
            print(f"\nstopped; go on by: parsimax train --resume {run.folder}", file=sys.stderr)
        raise
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    best = entry.recipe().restore(settings, run, run.best)
    figures = entry.recipe().evaluate(best, settings, "val", _progress)
    figures |= {**entry.recipe().speed(task, settings), **task.pace()}
    _clear()
    run.add_results("val", figures)
    print(f"{run.folder}: on the validation data, with the best checkpoint:")
    print_figures(figures)


def _restored(folder: Path, checkpoint: str) -> tuple[runs.Run, Entry, Any, Any]:
    run = runs.open_run(folder)
    entry = find(run.recipe)
    settings = run.settings(entry.settings())
    path = run.best if checkpoint == "best" else run.last
    if not path.exists():
        raise SettingsError(f"{path} does not exist: the run has not come to its first validation")
    try:
        return run, entry, settings, entry.recipe().restore(settings, run, path)
    except (pickle.UnpicklingError, EOFError, zipfile.BadZipFile) as error:
        raise SettingsError(f"{path} cannot be read, it is damaged: {error}") from None


def _remove(run: runs.Run) -> None:
    """Data or sizes were refused before anything was trained: leave no empty run behind."""
    for path in run.folder.iterdir():  # which was made for this run
        path.unlink()
    run.folder.rmdir()


def _need(*modules: str) -> None:
    from importlib.util import find_spec

    if missing := [name for name in modules if find_spec(name) is None]:
        raise SettingsError(
            f"recipes need {', '.join(missing)}; install with: python -m pip install 'parsimax[recipes]'"
        )


def _ends(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    return f" ≥ {low:g}" if high is None else f" {low or 0:g}…{high:g}"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(_cell, value))
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return "–" if value is None else str(value)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
