"""Pictures of a run, and the page on which its attention can be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....analysis import figures, measures, write_report
from ...kit.pictures import curves, learned, save
from ...kit.runs import Run
from ...kit.show import cell
from ..codec import Codec
from ..lengths import spread
from .evaluate import decode, recorded
from .examples import Examples
from .model import Seq2Seq
from .settings import Search

SHOWN = 12  # examples on the page


def report(
    model: Seq2Seq,
    codec: Codec,
    examples: Examples,
    search: Search,
    run: Run,
    folder: Path,
    followed: Sequence[str] = ("loss", "accuracy"),
) -> list[Path]:
    """The curves of training, density and α per head, diversity of heads, and ``attention.html`` with all of them.

    ``followed`` are the figures of validations that are drawn as curves.
    """
    pictures = save(drawn(model, codec, examples, run, followed), folder)
    shown, captions = both(model, codec, examples, search)
    page = folder / "attention.html"
    write_report(
        recorded(model, codec, shown, len(shown)),
        page,
        title=f"{run.recipe}: {run.folder}",
        captions=captions,
        facts=known(run),
        pictures={path.stem: content for path, content in pictures.items()},
        overwrite=True,
    )
    return [*pictures, page]


def drawn(model: Seq2Seq, codec: Codec, examples: Examples, run: Run, followed: Sequence[str]) -> dict[str, Any]:
    """The figures that have something to show."""
    recording = recorded(model, codec, examples)
    heads = measures(recording)
    found = {"training": curves(run, *followed), "density": figures.density(recording)}
    if any(head.alpha is not None for head in heads):
        found["alpha"] = figures.alpha(recording)
    found["learned"] = learned(run)
    if any(head.diversity is not None and head.diversity == head.diversity for head in heads):
        found["diversity"] = figures.diversity(recording)
    return found


def both(model: Seq2Seq, codec: Codec, examples: Examples, search: Search) -> tuple[Examples, list[str]]:
    """Some examples with the reference as their target and with the model's own output, and what each of them is."""
    some = examples.some(spread(len(examples), SHOWN))
    texts, sources, targets, captions = [], [], [], []
    for index, found in enumerate(decode(model, some, search, lambda text: None)):
        own, right = list(found.best.tokens), some.target[index]
        kinds = {"The reference is the target, and the model's own output is the same": right}
        if own != right:
            said = codec.text(own) or "nothing"
            kinds = {
                "The reference is the target; the model's own output is the next example": right,
                f"The model's own output is the target: {said}": own,
            }
        for caption, target in kinds.items():
            texts.append(some.texts[index])
            sources.append(some.source[index])
            targets.append(target)
            captions.append(caption)
    return Examples(texts, sources, targets), captions


def known(run: Run) -> dict[str, str]:
    """What was measured of the run, by split."""
    return {
        f"{name} ({split})": cell(value)
        for split, values in run.read_results().items()
        for name, value in values.items()
    }
