"""The curves of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import durable
from .runs import Run


def save(figures: Mapping[str, Any], folder: Path) -> dict[Path, bytes]:
    """Write each figure that is not None as ``NAME.png`` into ``folder``; what was written, and its content."""
    durable.folder(folder)
    written = {}
    for name, figure in figures.items():
        if figure is not None:
            memory = io.BytesIO()
            figure.savefig(memory, dpi=150, format="png")
            path = folder / f"{name}.png"
            durable.replace(path, memory.getvalue())
            written[path] = memory.getvalue()
    return written


def drawable(text: str) -> str:
    """A user's text with a box for each letter that the fonts do not have, of which matplotlib would warn.

    Draw it with ``parse_math=False``: what stands between two dollars is no formula.
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [findfont(FontProperties(family=[family])) for family in FontProperties().get_family()]
    known = {code for font in fonts for code in get_font(font).get_charmap()}
    return "".join(letter if ord(letter) in known else "□" for letter in text)


def curves(run: Run, *names: str) -> Any:
    """A figure of ``val/`` and ``train/`` values of each name over the steps; None before the first validation."""
    from matplotlib.figure import Figure

    rows = run.rows()
    series = {
        key: [(int(row["step"]), float(row[key])) for row in rows if row.get(key)]
        for name in names
        for key in (f"train/{name}", f"val/{name}")
    }
    drawn = [name for name in names if series[f"val/{name}"]]
    if not drawn:
        return None
    figure = Figure((4 * len(drawn), 3.2), layout="constrained")
    for name, axes in zip(drawn, figure.subplots(1, len(drawn), squeeze=False)[0], strict=True):
        for key in (f"train/{name}", f"val/{name}"):
            if series[key]:
                axes.plot(*zip(*series[key], strict=True), label=key, marker="." if len(series[key]) < 20 else None)
        axes.set(xlabel="step", ylabel=name)
        axes.legend()
    return figure


def learned(run: Run) -> Any:
    """A figure of what mappings learned, such as α of each head, over the steps, a plot a module; None if nothing."""
    from matplotlib.figure import Figure

    rows = run.rows()
    columns = [key for key in (rows[0] if rows else {}) if key.startswith("learned/")]
    parts: dict[str, list[str]] = {}
    for column in columns:
        path, last = column.removeprefix("learned/").rsplit(".", 1)
        parts.setdefault(path if last.isdigit() else f"{path}.{last}", []).append(column)
    if not parts:
        return None
    across = min(3, len(parts))
    down = -(-len(parts) // across)
    figure = Figure((4 * across, 2.4 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(parts) :]:
        axes.set_axis_off()
    for (path, names), axes in zip(parts.items(), grid.flat, strict=False):
        for name in names:
            points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
            axes.plot(*zip(*points, strict=True), label=name.rsplit(".", 1)[1])
        axes.set_title(path, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("step")
    return figure
