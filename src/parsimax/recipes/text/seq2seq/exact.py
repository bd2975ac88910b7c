"""Exact search: the most probable output of all, with a proof, which zeros make finite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..codec import BOS, EOS
from .model import Seq2Seq
from .search import Found, Hypothesis, beam, forbidden

TOGETHER = 64  # prefixes that go through the model at once


@dataclass(frozen=True)
class Open:
    """Prefixes of the same length that may begin a better output, the most probable first."""

    state: Any  # of the model after the tokens before the last
    rows: Tensor  # where in that state each of them was
    last: Tensor  # their last tokens
    logs: Tensor
    before: list[tuple[int, ...]]  # the tokens before the last, by the rows of the state

    def above(self, bound: float, most: int) -> tuple[Open, float]:
        """Those that are still more probable than the best output, at most so many; and the best that is left out."""
        keep = int((self.logs > bound).sum())
        left = self.logs[most].item() if keep > most else -math.inf
        first = slice(min(keep, most))
        return Open(self.state, self.rows[first], self.last[first], self.logs[first], self.before), left

    def tokens(self) -> list[tuple[int, ...]]:
        pairs = zip(self.rows.tolist(), self.last.tolist(), strict=True)
        return [(*self.before[row], token) if token != BOS else () for row, token in pairs]


@torch.no_grad()
def exact(model: Seq2Seq, source: Tensor, longest: int, budget: int, start: Hypothesis | None = None) -> Found:
    """Branch and bound on one source (S,): ``exact`` is true if the first output is proved to be the best.

    A prefix is at least as probable as all that it begins, so those below the best output that is known are not
    continued, and when none is open that output is the best of all. Whatever the order, every prefix above the best
    output has to be continued; depth first, in groups, each is one step of the model from the state of its parent. The
    proof fails, and the result says so, if the budget runs out, or if a prefix of ``longest`` tokens that might go on
    is more probable.

    Args:
        model: in evaluation mode.
        source: one source, without padding.
        longest: tokens of an output at most.
        budget: prefixes that may be continued.
        start: an output that is known, say from a beam; greedy search finds one if it is not given.
    """
    best = start if start is not None and start.log_prob > -math.inf else beam(model, source[None], 1, longest)[0].best
    first = torch.zeros(1, dtype=torch.long, device=source.device)
    waiting = [Open(model.start(source[None]), first, first + BOS, first.double(), [()])]
    opened, cut = 0, -math.inf  # the best prefix that was not continued
    while waiting and opened < budget:
        group, left = waiting.pop().above(best.log_prob, budget - opened)
        cut = max(cut, left)
        if not len(group.rows):
            continue
        opened += len(group.rows)
        tokens = group.tokens()
        hidden, state, _ = model.advance(group.last, group.state.chosen(group.rows))
        logs = group.logs[:, None] + forbidden(model.output(hidden).double())
        value, row = logs[:, EOS].max(0)
        if value > best.log_prob:
            best = Hypothesis(tokens[row], value.item())
        logs[:, EOS] = -math.inf
        places = (logs.flatten() > best.log_prob).nonzero().flatten()
        values, order = logs.flatten()[places].sort(descending=True, stable=True)
        if len(tokens[0]) == longest:
            cut = max([cut, *values[:1].tolist()])
            continue
        rows, last = places[order] // logs.shape[1], places[order] % logs.shape[1]
        for at in reversed(range(0, len(places), TOGETHER)):  # so that the most probable are next
            part = slice(at, at + TOGETHER)
            waiting.append(Open(state, rows[part], last[part], values[part], tokens))
    cut = max([cut, *(one.logs[0].item() for one in waiting if len(one.logs))])
    return Found([best], best.log_prob > -math.inf and best.log_prob >= cut, opened)
