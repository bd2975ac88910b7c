"""Outputs of a trained model for lines of input: the best, the n best with probabilities, or all that is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...kit.recipe import Answer
from ..codec import BOS, EOS
from ..lengths import in_order
from .evaluate import TOKENS
from .exact import exact
from .examples import padded
from .model import Seq2Seq
from .search import Found, Hypothesis, beam
from .settings import Options, Search
from .task import Seq2SeqTask


def outputs(task: Seq2SeqTask, sources: list[str], search: Search, wanted: Options) -> list[Answer]:
    """The answer for each source, in order."""
    answers = []
    for source, (row, one) in zip(sources, found_for(task, sources, search, wanted), strict=True):
        unseen = dict.fromkeys(task.codec.unseen(source))
        notes = tuple(f"{piece!r} was not seen in training" for piece in unseen)
        answers.append(Answer(tuple(lines(task, row, one, wanted)), notes))
    return answers


def found_for(
    task: Seq2SeqTask, sources: list[str], search: Search, wanted: Options
) -> Iterator[tuple[list[int], Found]]:
    """The numbers of each source and what was found for it, in order; decoded in groups of similar length."""
    rows = [[*task.codec.source(source), EOS] for source in sources]
    width = max(search.beam, wanted.nbest or 1)
    found: dict[int, Found] = {}
    for indices in in_order([len(row) for row in rows], max(1, TOKENS // width)):
        many = beam(task.answering, padded([rows[i] for i in indices]), width, search.longest, search.average)
        found |= zip(indices, many, strict=True)
    for index, row in enumerate(rows):
        sure = wanted.exact
        yield row, surely(task.answering, torch.tensor(row), search, found[index]) if sure else found[index]


def surely(model: Seq2Seq, source: Tensor, search: Search, found: Found) -> Found:
    """The beam's outputs with the best of all in front, if exact search finds it within its budget.

    It was asked for, so a budget of 0, which spares evaluations the search, is not taken as one.
    """
    if found.exact:
        return found
    budget = search.exact_budget or Search().exact_budget
    result = exact(model, source, search.longest, budget, found.best, search.average)
    best = result.best
    if best.attention is None and best.log_prob > -math.inf:  # not the beam's
        best = aligned(model, source, best)
    rest = [one for one in found.hypotheses if one.tokens != best.tokens and one.log_prob > -math.inf]
    return Found([best, *rest], result.exact, found.opened + result.opened)


@torch.no_grad()
def aligned(model: Seq2Seq, source: Tensor, hypothesis: Hypothesis) -> Hypothesis:
    """The hypothesis with its attention."""
    state, seen = model.start(source.unsqueeze(0)), []
    for token in (BOS, *hypothesis.tokens):
        _, state, weights = model.advance(torch.tensor([token], device=source.device), state)
        seen.append(weights[0])
    return replace(hypothesis, attention=torch.stack(seen))


def lines(
    task: Seq2SeqTask, row: list[int], found: Found, wanted: Options, spelled: Callable[[str], str] = str
) -> Iterator[str]:
    """What is printed of one source; ``spelled`` turns the codec's text into one for people."""
    codec, kept = task.codec, found.hypotheses[: wanted.nbest or 1]
    if wanted.json:
        known = {
            "source": codec.tokens(row),
            "proved best": found.exact,
            "outputs": [_known(spelled(codec.text(one.tokens)), codec.tokens((*one.tokens, EOS)), one) for one in kept],
        }
        yield json.dumps(known, ensure_ascii=False)
    elif wanted.nbest:
        for rank, one in enumerate(kept, 1):
            proof = "proved" if rank == 1 and found.exact else "-"
            yield f"{rank}\t{one.probability:.6g}\t{proof}\t{spelled(codec.text(one.tokens))}"
    else:
        yield spelled(codec.text(kept[0].tokens))


def _known(text: str, tokens: list[str], one: Hypothesis) -> dict[str, Any]:
    """Alignment: (place in the output, place in the source, weight) where the weight is not 0."""
    places = [] if one.attention is None else one.attention.nonzero().tolist()
    weights = [] if one.attention is None else one.attention[one.attention != 0].tolist()
    return {
        "text": text,
        "probability": one.probability,
        "tokens": tokens,
        "alignment": [[*place, round(weight, 6)] for place, weight in zip(places, weights, strict=True)],
    }
