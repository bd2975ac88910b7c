"""The figures of a trained model: how good its outputs are, how sparse it is, and when its search was exact."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....analysis import Recording, measures, record
from ...kit.recipe import Evaluation
from ..codec import EOS, PAD, Codec
from ..lengths import in_order, spread
from ..scores import edits, scores
from .exact import exact
from .examples import Examples
from .model import Seq2Seq
from .search import Found, beam
from .settings import Search

PROVED = 50  # examples of exact search
RECORDED = 32  # examples whose attention is measured
TOKENS = 8192  # of a batch without gradients


def evaluate(
    model: Seq2Seq,
    codec: Codec,
    examples: Examples,
    search: Search,
    show: Callable[[str], None],
    attention: bool = True,
) -> Evaluation:
    """All figures of a split and its outputs, which are those of a beam; ``show`` gets a line of progress.

    ``attention`` is false for a model that does not read its source as one sequence, whose attention has no such map.
    """
    model.eval()
    began = time.perf_counter()
    found = decode(model, examples, search, show)
    seconds = time.perf_counter() - began
    outputs = [codec.text(one.best.tokens) for one in found]
    wanted = [codec.clean(target) for _, target in examples.texts]
    figures: dict[str, Any] = {
        "examples": len(examples),
        "accuracy": statistics.fmean(one == other for one, other in zip(outputs, wanted, strict=True)),
        "edit distance": statistics.fmean(edits(one, other) for one, other in zip(outputs, wanted, strict=True)),
        **scores(outputs, wanted),
        "beam proved exact": statistics.fmean(one.exact for one in found),
        "empty outputs": statistics.fmean(not text and one.ended for text, one in zip(outputs, found, strict=True)),
        "unfinished outputs": statistics.fmean(not one.ended for one in found),
        "sentences a second": len(examples) / seconds,
    }
    if search.exact_budget:
        figures |= proved(model, examples, search, found, show)
    figures["next tokens a step"] = next_tokens(model, examples)
    figures |= attention_figures(model, codec, examples) if attention else {}
    rows = [
        {"source": source, "wanted": right, "output": text, "probability": one.best.probability, "proved": one.exact}
        | ({} if one.ended else {"unfinished": True})
        for (source, _), right, text, one in zip(examples.texts, wanted, outputs, found, strict=True)
    ]
    return Evaluation(figures, rows)


def decode(model: Seq2Seq, examples: Examples, search: Search, show: Callable[[str], None]) -> list[Found]:
    """The beam's outputs in the order of the examples."""
    found: list[Found | None] = [None] * len(examples)
    done = 0
    for indices in in_order(examples.sizes, max(1, TOKENS // search.beam)):
        source = examples.batch(indices).source
        for index, one in zip(indices, beam(model, source, search.beam, search.longest, search.average), strict=True):
            found[index] = one
        done += len(indices)
        show(f"decoded {done} of {len(examples)}")
    return [one for one in found if one is not None]


def proved(
    model: Seq2Seq, examples: Examples, search: Search, found: Sequence[Found], show: Callable[[str], None]
) -> dict[str, float]:
    """Exact search of some examples: how often it ends in its budget, and how often the beam had the best."""
    sure = []
    chosen = spread(len(examples), PROVED)
    for number, index in enumerate(chosen, 1):
        source = torch.tensor([*examples.source[index], EOS])
        other = found[index]
        one = exact(model, source, search.longest, search.exact_budget, other.best, search.average)
        if one.exact:
            sure.append(other.ended and one.best.tokens == other.best.tokens)
        show(f"searched {number} of {len(chosen)} exactly")
    share = statistics.fmean(sure) if sure else math.nan
    return {"exact search ended": len(sure) / len(chosen), "beam was the best there": share}


@torch.no_grad()
def next_tokens(model: Seq2Seq, examples: Examples) -> float:
    """How many tokens have a probability above 0 at a step of the right output."""
    possible = steps = 0
    places = spread(len(examples), 200)
    for group in in_order([examples.sizes[place] for place in places], TOKENS):
        batch = examples.batch([places[index] for index in group])
        real = batch.wanted != PAD
        possible += int((model.output.probs(model(batch.source, batch.entered)[real]) > 0).sum())
        steps += int(real.sum())
    return possible / steps


def recorded(model: Seq2Seq, codec: Codec, examples: Examples, count: int = RECORDED) -> Recording:
    """The attention of some examples, each with its right output."""
    indices = spread(len(examples), count)
    batch = examples.batch(indices)
    sources = [[*codec.tokens(examples.source[index]), "</s>"] for index in indices]
    targets = [["<s>", *codec.tokens(examples.target[index])] for index in indices]
    model.eval()
    with torch.no_grad(), record(model, sources, targets) as recording:
        model(batch.source, batch.entered)
    return recording


def attention_figures(model: Seq2Seq, codec: Codec, examples: Examples) -> dict[str, Any]:
    """Per kind of attention: attended tokens, density, α and diversity of the heads."""
    heads: dict[str, list[Any]] = defaultdict(list)
    for row in measures(recorded(model, codec, examples)):
        heads[row.kind].append(row)
    figures: dict[str, Any] = {}
    for kind, rows in heads.items():
        figures[f"attended tokens ({kind})"] = statistics.fmean(row.support for row in rows)
        figures[f"density ({kind})"] = statistics.fmean(row.density for row in rows)
        if all(row.alpha is not None for row in rows):
            figures[f"alpha ({kind})"] = [round(row.alpha, 3) for row in rows]
        if all(row.diversity is not None for row in rows):
            figures[f"diversity ({kind})"] = statistics.fmean(row.diversity for row in rows)
    return figures
