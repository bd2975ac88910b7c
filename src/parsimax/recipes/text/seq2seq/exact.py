"""Exact search: the most probable output of all, with a proof, which zeros make finite."""

from __future__ import annotations

import heapq
import math

import torch
from torch import Tensor

from ..codec import BOS, EOS
from .examples import padded
from .model import Seq2Seq
from .search import Found, Hypothesis, forbidden


@torch.no_grad()
def exact(model: Seq2Seq, source: Tensor, longest: int, budget: int, start: Hypothesis | None = None) -> Found:
    """Best-first search of one source (S,): ``exact`` is true if the first output is proved to be the best.

    The most probable open prefixes are continued until a whole output is at least as probable as all that are open. A
    prefix is at least as probable as all that it begins, so this output is the best. The proof fails, and the result
    says so, if the budget runs out, or if a prefix of ``longest`` tokens that might go on is more probable.

    Args:
        model: in evaluation mode.
        source: one source, without padding.
        longest: tokens of an output at most.
        budget: prefixes that may be continued.
        start: an output that is known, say from a beam: prefixes below it are not kept.
    """
    best = start if start is not None and start.log_prob > -math.inf else None
    bound = best.log_prob if best else -math.inf
    cut = -math.inf  # the best prefix that was too long to go on
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    opened = 0
    while heap and -heap[0][0] > bound:
        if opened >= budget:
            return Found([best or Hypothesis((), -math.inf)], False, opened)
        group = [heapq.heappop(heap) for _ in range(min(32, len(heap), budget - opened))]
        opened += len(group)
        entered = padded([[BOS, *tokens] for _, tokens in group]).to(source.device)
        hidden = model.hidden(source.expand(len(group), -1), entered)
        ends = torch.tensor([len(tokens) for _, tokens in group], device=source.device)
        logs = forbidden(model.output.log_probs(hidden[torch.arange(len(group)), ends]).double())
        for (negative, tokens), row in zip(group, logs, strict=True):
            for token in (row > bound + negative).nonzero().flatten().tolist():
                value = row[token].item() - negative
                if token == EOS:
                    if value > bound:
                        best, bound = Hypothesis(tokens, value), value
                elif len(tokens) < longest:
                    heapq.heappush(heap, (-value, (*tokens, token)))
                else:
                    cut = max(cut, value)
    return Found([best or Hypothesis((), -math.inf)], best is not None and bound >= cut, opened)
