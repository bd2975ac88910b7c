"""What the subcommands of ``parsimax`` do with recipes and runs. Torch is imported only where something runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from . import RECIPES, Entry, find
from .kit import durable, runs
from .kit.options import flag
from .kit.settings import SettingsError, changed, flat, from_yaml, kind_text, leaves, shown, to_yaml, unknown, words_of
from .kit.show import cell, print_figures, print_table, progress

NEEDED = ("lightning", "yaml")  # by every recipe
WIDEST = 40  # column of `parsimax config`
TRAINED_ON = "the data it was trained on"  # what a recipe without held-out data is measured on
SHARED_RUN = "PARSIMAX_RUN"  # tells the other processes of a training which folder is theirs


def list_recipes() -> None:
    width = max(map(len, RECIPES))
    for entry in RECIPES.values():
        print(f"{entry.name:{width}}  {entry.summary}")


def show_config(name: str) -> None:
    """Every setting and every option of predictions: its key, default, type and what it does."""
    entry = find(name)
    rows = [_row(f"{leaf.key}={shown(leaf.value)}", leaf) for leaf in leaves(entry.settings())]
    flags = [_row(f"predict {flag(leaf.key)}", leaf) for leaf in leaves(entry.about.options())]
    keys, kinds = (max(len(row[column]) for row in rows + flags) for column in (0, 1))
    kinds = min(kinds, WIDEST)  # a choice of all mappings goes over several lines
    room = max(30, shutil.get_terminal_size((140, 24)).columns - keys - kinds - 4)
    for key, kind, text in rows + flags:
        choices = textwrap.wrap(kind, kinds, break_on_hyphens=False)
        for cells in zip_longest([key], choices, textwrap.wrap(text, room), fillvalue=""):
            print(f"{cells[0]:{keys}}  {cells[1]:{kinds}}  {cells[2]}".rstrip())
    if configs := entry.configs():
        print(f"--config {', '.join(configs)}: settings that are shipped")


def _row(key: str, leaf: Any) -> tuple[str, str, str]:
    return key, kind_text(leaf.kind, _ends(leaf.low, leaf.high)), leaf.help


def train(name: str, words: Sequence[str], config: str | None, folder: Path | None) -> None:
    """A new run, from the first step to its figures on the validation data."""
    entry = find(name)
    settings = entry.settings()
    if config is not None:
        path = config_path(entry, config)
        settings = changed(settings, from_yaml(path), f"{path}: ")
    settings = changed(settings, words_of(words))
    settings.check()
    settings.check_new()
    need(entry)
    made = folder is None or not folder.exists()
    if (given := os.environ.get(SHARED_RUN)) and not _first():
        run = runs.Run(Path(given))  # another process of the same training: the first one made the folder
    else:
        run = runs.create(entry.name, settings, folder, entry.about.needs)
        print(f"run: {run.folder}", flush=True)
    with _writing(run):
        try:
            task = _begun(entry, settings, run)
        except Exception:
            runs.remove(run, made)  # nothing was trained: leave no empty run behind
            raise
        _fit(entry, settings, run, task, resume=False)


def config_path(entry: Entry, given: str) -> Path:
    """A file of settings, or one that is shipped with the recipe, by its name."""
    if given in entry.configs() and not Path(given).exists():
        return entry.configs()[given]
    if not Path(given).exists() and not Path(given).suffix:
        raise SettingsError(unknown(given, [*entry.configs()] or ["no shipped one"], f"config of {entry.name}"))
    return Path(given)


def resume(folder: Path, words: Sequence[str], changed_data: bool) -> None:
    """Go on with a run that was stopped, with other values of some settings if ``words`` say so."""
    from .kit import checkpoints, provenance

    run = runs.open_run(folder)
    entry = find(run.recipe)
    need(entry)
    before = run.settings(entry.settings())
    settings = runs.altered(run, before, words)
    settings.check()
    recipe = entry.recipe()
    with _writing(run):
        if checkpoints.newest(run) is None:
            print(f"{folder} has no checkpoint yet: it begins again", flush=True)
            task = _begun(entry, settings, run)
        else:
            provenance.check(recipe, settings, run, ("train", "val"), changed_data)
            task = recipe.reopen(settings, run)
        if settings != before and _first():  # only now: what was refused has changed nothing
            if any(flat(before)[key] != value for key, value in flat(settings).items() if _answers(key)):
                _say_aside(run, run.set_aside(keep="val"))  # which is measured again
            runs.write(run.config, to_yaml(settings))  # last: a run that is killed here has no figures of others
        _fit(entry, settings, run, task, resume=True)


def evaluate(folder: Path, split: str, checkpoint: str, changed_data: bool) -> None:
    from .kit import provenance

    run, entry, settings, task = restored(folder, checkpoint)
    settings.check()
    provenance.check(entry.recipe(), settings, run, (split,), changed_data)
    recipe = entry.recipe()
    found = recipe.evaluate(task, settings, split, progress)
    progress("")
    name = split if checkpoint == "best" else f"{split}, last checkpoint"
    if lines := [json.dumps(one, ensure_ascii=False) for one in found.outputs]:
        path = run.outputs(name.replace(", ", "-").replace(" ", "-"))
        durable.folder(path.parent)
        runs.write(path, "\n".join(lines))
    run.add_results(name, found.figures)
    print(f"{folder}, {split if recipe.held_out else TRAINED_ON}, {checkpoint} checkpoint")
    print_figures(found.figures)
    if lines:
        print(f"outputs: {path}")


def turn(folder: Path, split: str, checkpoint: str, changed_data: bool, words: Sequence[str], tolerance: float) -> None:
    """Figures at other values of the mapping's setting, with the weights as they are."""
    from .kit import dial, provenance

    run, entry, settings = opened(folder)
    recipe = entry.recipe()
    settings.check()
    places = dial.settings_of(settings, words_of(words), recipe.dials)
    for _, own in places:
        own.check()
    provenance.check(recipe, settings, run, (split,), changed_data)
    sweep = dial.sweep(recipe, places, split, lambda own: weighted(run, entry, own, checkpoint, turned=True), progress)
    written = dial.write(sweep, split if checkpoint == "best" else f"{split}-{checkpoint}", flat(settings), run.dial)
    print(f"{folder}, {split if recipe.held_out else TRAINED_ON}, {checkpoint} checkpoint")
    print_table(dial.table(sweep))
    for line in (*dial.spoken(sweep, tolerance), *written):
        print(line)
    if not sweep.whole:
        raise KeyboardInterrupt


def predict(folder: Path, checkpoint: str, source: Path | None, form: str | None, given: Namespace) -> int:
    """An answer for each line of a file or of the standard input; the status is 1 if a line has none."""
    from .kit import answers, inputs, options

    run = runs.open_run(folder)
    wanted = options.chosen(find(run.recipe).about.options, given, run.recipe)
    _, entry, settings, task = restored(folder, checkpoint)
    chosen: Any = form or inputs.form_of(source)
    failed = count = 0
    groups = answers.arriving(inputs.lines_of(source) if source else sys.stdin.buffer)
    for answer in answers.answers(entry.recipe(), task, settings, wanted, groups, chosen):
        for note in answer.notes:
            print(f"parsimax: {note}", file=sys.stderr, flush=True)
        for line in answer.lines:
            print(line, flush=True)
        failed, count = failed + answer.failed, count + 1
    if failed:
        print(f"parsimax: {failed} of {count} lines have no answer; each is marked in its place", file=sys.stderr)
    return int(failed > 0)


def report(folder: Path, out: Path | None, checkpoint: str, changed_data: bool) -> None:
    from .kit import provenance

    run, entry, settings, task = restored(folder, checkpoint)
    settings.check()
    provenance.check(entry.recipe(), settings, run, ("val",), changed_data)
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
        values = [cell(config.get(key)) for config in configs]
        if len({*values}) > 1:
            rows.append([key, *values])
    known = [result or {} for result in results]
    for key in dict.fromkeys(key for result in known for key in result):
        rows.append([key, *(cell(result.get(key)) for result in known)])
    print_table(rows)


def _first() -> bool:
    """Whether this is the first or only process of a training."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextlib.contextmanager
def _writing(run: runs.Run) -> Iterator[None]:
    if not _first():
        yield
        return
    with durable.only_writer(run.folder):
        os.environ[SHARED_RUN] = str(run.folder)
        try:
            yield
        finally:
            del os.environ[SHARED_RUN]


def _begun(entry: Entry, settings: Any, run: runs.Run) -> Any:
    from .kit import provenance

    task = entry.recipe().start(settings, run)
    provenance.note(entry.recipe(), settings, run)
    return task


def _weights_of(run: runs.Run) -> str | None:
    from .kit.provenance import digest

    return digest(run.best) if run.best.exists() else None


def _answers(key: str) -> bool:
    """Whether the answers of a trained run depend on a setting, and not only its training or the place of its data."""
    return not key.startswith("train.") and key != "data.root"


def _say_aside(run: runs.Run, gone: Sequence[str]) -> None:
    if gone:
        print(
            f"figures of {', '.join(gone)} are in {run.before} now, the run answers otherwise: "
            f"parsimax eval {run.folder}",
            flush=True,
        )


def _fit(entry: Entry, settings: Any, run: runs.Run, task: Any, resume: bool) -> None:
    from .kit.training import fit, restore

    recipe = entry.recipe()
    before, known = _weights_of(run), {*run.measured()} - {"val"}
    try:
        fit(task, run, resume)
    except KeyboardInterrupt:
        if run.last.exists():
            print(f"\nstopped; go on by: parsimax train --resume {run.folder}", file=sys.stderr)
        if _first() and before not in (None, _weights_of(run)):  # what it gave others is not to be of other weights
            _say_aside(run, sorted(known))
            recipe.export(restore(recipe.reopen(settings, run, data=False), run.best), run)
        raise
    if not _first():
        return
    _say_aside(run, sorted(known - {*run.measured()}))
    best = restore(recipe.reopen(settings, run, data=False), run.best)
    figures = recipe.evaluate(best, settings, "val", progress).figures
    figures |= {**recipe.speed(task, settings), **task.pace()}
    progress("")
    run.add_results("val", figures)
    data = "the validation data" if recipe.held_out else TRAINED_ON
    print(f"{run.folder}: on {data}, with the best checkpoint:")
    print_figures(figures)
    for path in recipe.export(best, run):
        print(f"also: {path}")


def opened(folder: Path) -> tuple[runs.Run, Entry, Any]:
    """A run, its recipe and settings."""
    run = runs.open_run(folder)
    entry = find(run.recipe)
    settings = run.settings(entry.settings())
    need(entry)
    return run, entry, settings


def restored(folder: Path, checkpoint: str) -> tuple[runs.Run, Entry, Any, Any]:
    """A run, its recipe and settings, and its task with the weights of the best or last checkpoint."""
    run, entry, settings = opened(folder)
    return run, entry, settings, weighted(run, entry, settings, checkpoint)


def weighted(run: runs.Run, entry: Entry, settings: Any, checkpoint: str, turned: bool = False) -> Any:
    """The task of these settings with the weights of the run's best or last checkpoint; see ``restore``."""
    path = run.best if checkpoint == "best" else run.last
    if not path.exists():
        raise SettingsError(f"{path} does not exist: the run has not come to its first validation")
    from .kit.training import restore

    task = entry.recipe().reopen(settings, run, data=False)
    try:
        return restore(task, path, turned)
    except SettingsError as error:
        other = run.last if path == run.best else run.best
        hint = f"; --checkpoint {other.stem} may be whole" if other.exists() and "damaged" in str(error) else ""
        raise SettingsError(f"{error}{hint}") from None


def need(entry: Entry) -> None:
    from importlib.util import find_spec

    if missing := [name for name in (*NEEDED, *entry.about.needs) if find_spec(name) is None]:
        raise SettingsError(
            f"the recipe {entry.name} needs {', '.join(missing)}; "
            f"install with: python -m pip install 'parsimax[recipes]'"
        )


def _ends(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if low is None:
        return f" ≤ {high:g}"
    return f" ≥ {low:g}" if high is None else f" {low:g}…{high:g}"
