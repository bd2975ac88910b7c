"""The dial: a trained run at other values of its mapping's setting, measured without training again."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from ...parameters import LEARNED
from . import durable
from .choice import Choice
from .pictures import save
from .recipe import Recipe
from .settings import SettingsError, changed, flat, full, shown, unknown

S = TypeVar("S")
DOTS = ("…", "...")
MOST = 1000  # values of a list
ROUNDS, ENOUGH = 3, 60.0  # times that all places are evaluated, and seconds after which no other round begins


def choices(settings: Any, prefix: str = "") -> Iterator[tuple[str, Choice]]:
    """Every choice of a mapping in ``settings``, with what its keys begin with."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        if is_dataclass(value):
            if isinstance(value, Choice):
                yield f"{prefix}{one.name}.", value
            yield from choices(value, f"{prefix}{one.name}.")


def numbers_of_mappings(settings: Any) -> list[str]:
    """The keys of all mappings' settings, those that are learned too: a number takes the place of what was learned."""
    return [f"{prefix}{name}" for prefix, choice in choices(settings) for name in choice.own()]


def listed(text: str) -> list[str]:
    """The values of a list by commas; ``a,b,…,c`` goes on from b in steps of b - a, and ends with c."""
    values: list[str] = []
    parts = [part.strip() for part in text.split(",")]
    for at, part in enumerate(parts):
        if part not in DOTS:
            values.append(part)
            continue
        try:
            first, second, last = Decimal(parts[at - 2]), Decimal(parts[at - 1]), Decimal(parts[at + 1])
            step, more = second - first, last - second
            if at < 2 or not step or more / step < 0:
                raise ValueError
            if more / step > MOST:
                raise SettingsError(f"{text!r} is more than {MOST} values; take larger steps")
        except SettingsError:
            raise
        except (ArithmeticError, IndexError, ValueError):  # no number, or too far apart for Decimal
            raise SettingsError(f"{text!r}: … stands between two numbers and a last one, as in 0,0.1,…,0.9") from None
        steps = math.ceil(more / step)
        values += [f"{(second + number * step).normalize():f}" for number in range(1, steps)]
    if "" in values:
        raise SettingsError(f"{text!r} has an empty value")
    return values


def settings_of(settings: S, words: Mapping[str, str], dials: Any) -> list[tuple[dict[str, str], S]]:
    """The values of each turn, and the settings with them. Lists move together; a single value holds for all.

    ``dials`` gives what may be turned in some settings, as ``Recipe.dials`` does; a mapping may be exchanged for
    another one, too.
    """
    before = flat(settings)
    given: dict[str, list[str]] = {}
    for word, value in words.items():
        if (key := full(word, before)) in given:
            raise SettingsError(f"{key} is given twice, the second time as {word}={value}; leave one out")
        given[key] = listed(value)
    sizes = {len(values) for values in given.values()} - {1}
    if len(sizes) > 1:
        counts = ", ".join(f"{key} has {len(values)}" for key, values in given.items())
        raise SettingsError(f"lists of values move together and must be of one length: {counts}")
    turns = []
    for at in range(max(sizes, default=1)):
        values = {key: many[at % len(many)] for key, many in given.items()}
        if LEARNED in values.values():
            key = next(key for key, value in values.items() if value == LEARNED)
            raise SettingsError(f"{key}={LEARNED} is for training; eval takes a number there")
        made = changed(settings, values)
        allowed = [*dials(made), *(f"{prefix}mapping" for prefix, _ in choices(made))]
        if wrong := [key for key, value in values.items() if not {key, f"{key}={value}"} & {*allowed}]:
            has = ", ".join(dials(made))
            if not {*dials(made)} & {*numbers_of_mappings(made)} and (not has or any(choices(made))):
                has = f"{f'{has} alone' if has else 'none'}: {_no_number(made)}"
            raise SettingsError(f"{wrong[0]} is no number of this run's mapping; eval can turn {has}")
        _check_domains(made)
        turns.append((values, made))
    return turns


def _no_number(settings: Any) -> str:
    prefix = next((prefix for prefix, _ in choices(settings)), None)
    reason = "its mapping has no number that is set"
    return (
        reason if prefix is None else f"{reason}; another one has, as in {prefix}mapping=rsoftmax {prefix}rate=0.1,0.2"
    )


def _check_domains(settings: Any) -> None:
    """SettingsError for a number that its mapping does not take, before anything is measured."""
    for prefix, choice in choices(settings):
        setting = choice.entry.setting
        for name, value in choice.own().items():
            if setting is not None and value != LEARNED and value not in setting.domain:
                raise SettingsError(
                    f"{prefix}{name} of {choice.mapping} must be in {setting.domain}, got {shown(value)}"
                )


@dataclass(frozen=True)
class Turn:
    """What was measured at one place of the dial."""

    values: dict[str, str]
    quality: float
    zeros: float | None  # None where what is turned is no mapping's number
    pace: float
    figures: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Sweep:
    """All places of the dial: ``quality`` and ``pace`` are the names of figures, ``mode`` says which is better."""

    quality: str
    mode: str
    pace: str
    turns: list[Turn]
    whole: bool = True  # not stopped before the last place

    @property
    def best(self) -> Turn:
        known = [turn for turn in self.turns if math.isfinite(turn.quality)]
        if not known:
            raise SettingsError(f"{self.quality} is no number at any of these values")
        return (max if self.mode == "max" else min)(known, key=lambda turn: turn.quality)

    def sparsest(self, tolerance: float) -> Turn:
        """The one with the most zeros within ``tolerance``, a share, of the best quality; of equals the best."""
        best, room = self.best.quality, tolerance * abs(self.best.quality)
        near = [turn for turn in self.turns if abs(turn.quality - best) <= room]
        return max(near, key=lambda turn: (turn.zeros or 0.0, -abs(turn.quality - best)))

    @property
    def counts_zeros(self) -> bool:
        return all(turn.zeros is not None for turn in self.turns)

    def moving(self) -> list[str]:
        return _moving([turn.values for turn in self.turns])

    def named(self, turn: Turn) -> str:
        return ", ".join(f"{key}={turn.values[key]}" for key in self.moving())


def _moving(turns: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that have more than one value, or all."""
    keys = [*turns[0]]
    return [key for key in keys if len({values[key] for values in turns}) > 1] or keys


def measured(figures: Mapping[str, Any], name: str) -> float:
    if name not in figures:
        raise SettingsError(unknown(name, [*figures], "figure"))
    value = figures[name]
    return math.nan if value is None else float(value)


def pace_of(figures: Mapping[str, Any], seconds: float) -> tuple[str, float]:
    """Examples a second, if a figure says so; else evaluations, of which one took ``seconds``."""
    name = next((name for name in figures if name.endswith(" a second")), None)
    return (name, float(figures[name])) if name else ("evaluations a second", 1 / seconds)


def sweep(
    recipe: Recipe[Any, Any, Any, Any],
    places: Sequence[tuple[dict[str, str], Any]],
    split: str,
    weighted: Callable[[Any], Any],
    show: Callable[[str], None],
) -> Sweep:
    """Evaluate every place; ``weighted`` makes the task of some settings with the weights of the run.

    Quick evaluations go round several times, and the best pace counts: what else runs on the machine comes and goes.
    What was measured before Ctrl-C is kept.
    """
    turns: dict[int, Turn] = {}
    keys = _moving([values for values, _ in places])
    pace, quality = "", ("", "")
    try:
        for at in _rounds(len(places)):
            values, settings = places[at]
            show(f"{', '.join(f'{key}={value}' for key, value in values.items())}: {at + 1} of {len(places)}")
            task, since = weighted(settings), time.perf_counter()
            figures = recipe.evaluate(task, settings, split, lambda text: None).figures
            pace, each = pace_of(figures, time.perf_counter() - since)
            each = max(each, turns[at].pace if at in turns else 0.0)
            found = (recipe.zeros(task, figures, key) for key in keys)
            zeros = next((share for share in found if share is not None), None)
            quality = recipe.quality(task)
            turns[at] = Turn(values, measured(figures, quality[0]), zeros, each, {**figures, pace: each})
    except KeyboardInterrupt:
        if not turns:
            raise
    show("")
    return Sweep(*quality, pace, [*turns.values()], len(turns) == len(places))


def _rounds(places: int) -> Iterator[int]:
    """Which place is next."""
    began = time.perf_counter()
    for number in range(ROUNDS):
        if number and time.perf_counter() - began > ENOUGH:
            return
        yield from range(places)


def table(sweep: Sweep) -> list[list[str]]:
    zeros = ["zeros"] if sweep.counts_zeros else []
    head = [*sweep.turns[0].values, sweep.quality, *zeros, sweep.pace]
    rows = [
        [*turn.values.values(), *map(_cell, (turn.quality, *([turn.zeros] if zeros else []), turn.pace))]
        for turn in sweep.turns
    ]
    return [head, *rows]


def _cell(value: float | None) -> str:
    return f"{value:.4g}" if value is not None and math.isfinite(value) else "–"


def write(sweep: Sweep, split: str, trained: Mapping[str, Any], folder: Path) -> list[Path]:
    """``SPLIT-KEY.csv`` with all figures and ``SPLIT-KEY.png`` in a folder.

    Keys with one value stand in the name with it; other values of the same keys get the next number.
    """
    durable.folder(folder)
    keys, figures = [*sweep.turns[0].values], [*dict.fromkeys(key for turn in sweep.turns for key in turn.figures)]
    name = _name(sweep, split, folder)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*keys, "zeros of the mapping", *figures])
    for turn in sweep.turns:
        cells = [_plain(turn.figures.get(key, "")) for key in figures]
        zeros = "" if turn.zeros is None else turn.zeros
        writer.writerow([*(turn.values[key] for key in keys), zeros, *cells])
    path = folder / f"{name}.csv"
    durable.replace(path, text.getvalue().encode())
    return [path, *save({name: picture(sweep, trained)}, folder)]


def _name(sweep: Sweep, split: str, folder: Path) -> str:
    moving = sweep.moving()
    fixed = [f"-{key}={value}" for key, value in sweep.turns[0].values.items() if key not in moving]
    first = f"{split}-{'+'.join(moving)}{''.join(fixed)}"
    names = (first if number == 1 else f"{first}-{number}" for number in count(1))
    return next(name for name in names if _same(folder / f"{name}.csv", [turn.values for turn in sweep.turns]))


def _same(path: Path, values: list[dict[str, str]]) -> bool:
    """Whether a file is of these values, or is yet to be written."""
    if not path.exists():
        return True
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: row.get(key) for key in values[0]} for row in csv.DictReader(file)] == values


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={one}" for key, one in value.items())
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def picture(sweep: Sweep, trained: Mapping[str, Any]) -> Any:
    """Quality and pace over the measured share of zeros, or over the value where that is not a mapping's; each point
    has its value, that of the training is ringed.
    """
    from matplotlib.figure import Figure

    figure = Figure((9, 3.6), layout="constrained")
    keys = sweep.moving()
    own = [turn for turn in sweep.turns if all(_equal(value, trained[key]) for key, value in turn.values.items())]
    quality = [turn.quality for turn in sweep.turns]
    pace = [turn.pace for turn in sweep.turns]
    for axes, name, values in zip(figure.subplots(1, 2), (sweep.quality, sweep.pace), (quality, pace), strict=True):
        points: dict[tuple[float, float], list[Turn]] = {}
        for turn, value in zip(sweep.turns, values, strict=True):
            if math.isfinite(value):
                points.setdefault((_place(turn, keys), value), []).append(turn)
        axes.plot(*zip(*sorted(points, key=lambda point: point[0]), strict=True), marker="o", markersize=4)
        for point, turns in points.items():
            said = "; ".join(", ".join(dict.fromkeys(turn.values[key] for key in keys)) for turn in turns)
            axes.annotate(said, point, textcoords="offset points", xytext=(3, 5), fontsize=7)
            if any(turn in own for turn in turns):
                axes.plot(*point, "o", markersize=11, fillstyle="none", color="tab:red")
        axes.set(xlabel="share of exact zeros, measured" if sweep.counts_zeros else keys[0], ylabel=name)
    figure.suptitle(f"{', '.join(keys)} at the points{'; ringed: as trained' if own else ''}", fontsize=9)
    return figure


def _equal(given: str, trained: Any) -> bool:
    try:
        return float(given) == float(trained)
    except ValueError:
        return given == shown(trained)


def _place(turn: Turn, keys: list[str]) -> float:
    return float(turn.values[keys[0]]) if turn.zeros is None else turn.zeros


def spoken(sweep: Sweep, tolerance: float) -> Sequence[str]:
    """The sentences that say where to leave the dial."""
    best, chosen = sweep.best, sweep.sparsest(tolerance)
    first = f"best {sweep.quality}: {_cell(best.quality)} at {sweep.named(best)}"
    if not sweep.whole:
        first = f"stopped: these are the first {len(sweep.turns)} values; {first}"
    if not sweep.counts_zeros:
        return [first]
    return [
        first,
        f"sparsest within {100 * tolerance:g} % of it: {sweep.named(chosen)}, {sweep.quality} {_cell(chosen.quality)}, "
        f"{_cell(chosen.zeros)} of the weights are exactly 0",
    ]
