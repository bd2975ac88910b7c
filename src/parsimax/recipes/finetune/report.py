"""Pictures of a run, and two pages on which its attention can be looked at: before training and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...analysis import Recording, compare, figures, load, measures, write_report
from ..kit.pictures import curves, learned, save
from ..kit.runs import Run
from ..kit.show import cell
from .encoder import BEFORE, KEPT


def report(now: Recording, names: tuple[str, ...], captions: list[str], run: Run, folder: Path) -> list[Path]:
    """Curves, density and α as pictures, ``attention.html``, and ``attention-before.html``."""
    before = load(run.folder / KEPT / BEFORE)
    drawn: dict[str, Any] = {
        "training": curves(run, *names),
        "density": figures.density(now),
        "learned": learned(run),
    }
    if any(head.alpha is not None for head in measures(now)):
        drawn["alpha"] = figures.alpha(now)
    pictures = save(drawn, folder)
    facts = {
        f"{name} ({split})": cell(value)
        for split, values in run.read_results().items()
        for name, value in values.items()
    }
    facts |= changed(before, now)
    title = f"{run.recipe}: {run.folder}"
    page = write_report(
        now,
        folder / "attention.html",
        title=title,
        captions=captions,
        facts=facts,
        pictures={path.stem: content for path, content in pictures.items()},
        overwrite=True,
    )
    first = write_report(before, folder / "attention-before.html", title=f"{title}, before training", overwrite=True)
    return [*pictures, page, first]


def changed(before: Recording, now: Recording) -> dict[str, str]:
    """Density before and after, and how far training has moved each layer's heads (Jensen–Shannon, 0 to 1)."""
    then, today = (_mean_density(one) for one in (before, now))
    found = {"density before → after training": f"{then:.3g} → {today:.3g}"}
    if [example.tokens for example in before.examples] != [example.tokens for example in now.examples]:
        return found  # the data have changed: heads cannot be compared query by query
    distance = compare(before, now)
    for layer in now.layers:
        moved = distance.between(layer.name, layer.name).diagonal().mean().item()
        found[f"heads moved by training, {layer.name}"] = f"{moved:.3g}"
    return found


def _mean_density(recording: Recording) -> float:
    heads = [head.density for head in measures(recording)]
    return sum(heads) / len(heads)
