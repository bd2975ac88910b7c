"""Beam search that knows when it is exact: zeros are never followed, and what it drops is remembered as a bound."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..codec import BOS, EOS, PAD, UNK
from .model import Seq2Seq

NEVER = [PAD, BOS, UNK]  # no output has these


@dataclass(frozen=True)
class Hypothesis:
    """An output: its tokens without </s>, its log-probability with </s>, and its attention, one row per token.

    If the model lowers the log-probabilities of some tokens (:meth:`Seq2Seq.next_logs`), they count as lowered here.
    """

    tokens: tuple[int, ...]
    log_prob: float
    attention: Tensor | None = None  # (tokens + 1, S)

    @property
    def probability(self) -> float:
        return math.exp(self.log_prob)


@dataclass(frozen=True)
class Found:
    """The outputs of one source, best first; ``exact`` says that the first is provably the most probable of all."""

    hypotheses: list[Hypothesis]
    exact: bool
    opened: int = 0  # how many prefixes were continued
    begun: tuple[int, ...] = ()  # of a beam: the tokens of the first prefix that was still open at the end

    @property
    def best(self) -> Hypothesis:
        return self.hypotheses[0]

    @property
    def ended(self) -> bool:
        """Whether there is an output at all: none may have ended within the longest length."""
        return self.best.log_prob > -math.inf


@dataclass(frozen=True)
class Rule:
    """What makes an output the best: its log-probability, or the mean of that over its tokens, </s> among them."""

    longest: int  # tokens of an output at most
    average: bool = False

    def score(self, one: Hypothesis) -> float:
        return one.log_prob / (len(one.tokens) + 1) if self.average else one.log_prob

    def bound(self, log_prob: float) -> float:
        """No output that begins with a prefix of this log-probability scores more: no longer one can be averaged."""
        return log_prob / (self.longest + 1) if self.average else log_prob

    def least(self, best: Hypothesis) -> float:
        """The log-probability above which a prefix may begin something better."""
        return self.score(best) * (self.longest + 1) if self.average else best.log_prob


@torch.no_grad()
def beam(model: Seq2Seq, source: Tensor, width: int, longest: int, average: bool = False) -> list[Found]:
    """The best outputs of sources (B, S), at most ``longest`` tokens each; ``width`` = 1 is greedy search.

    A prefix is at least as probable as any output that it begins. So the best output found is the best of all if it is
    at least as probable as every prefix that was dropped or is still open; sparse outputs, whose other continuations
    have probability 0, often reach that. With ``average`` outputs are compared by the mean over their tokens, and the
    proof asks for more, as a dropped prefix might have gone on with certainty up to the longest length.
    """
    rule = Rule(longest, average)
    batch, device = len(source), source.device
    state = model.start(source)
    rows = torch.arange(batch, device=device)  # of which source each live hypothesis is
    logs = torch.zeros(batch, device=device, dtype=torch.float64)
    last = torch.full((batch,), BOS, device=device)
    history: list[tuple[list[int], list[Tensor]]] = [([], []) for _ in range(batch)]
    done: list[list[Hypothesis]] = [[] for _ in range(batch)]
    dropped = [-math.inf] * batch  # the best log-probability of what was given up
    opened = [0] * batch
    begun: list[list[int]] = [[] for _ in range(batch)]
    for step in range(longest + 1):
        hidden, state, seen = model.advance(last, state)
        step_logs = forbidden(model.next_logs(hidden, state))
        size = step_logs.shape[1]
        # Each hypothesis may end, and as many others go on: of a source no more count than these of each hypothesis.
        top = step_logs.topk(min(2 * width + 1, size))
        totals, places = (logs[:, None] + top.values.double()).tolist(), top.indices.tolist()
        kept_rows, kept_tokens, kept_logs = [], [], []
        for one, group in itertools.groupby(range(len(rows)), rows.tolist().__getitem__):  # in the order of the sources
            mine = [*group]
            opened[one] += len(mine)
            begun[one] = history[mine[0]][0]
            every = [(value, row, token) for row in mine for value, token in zip(totals[row], places[row], strict=True)]
            best = sorted(every, key=lambda each: -each[0])[: 2 * width + 1]
            live = 0
            if len(best) < len(mine) * size:  # the last stands for all that are not among them
                dropped[one] = max(dropped[one], best[-1][0])
            for value, row, token in best:
                if value == -math.inf:
                    break
                if token == EOS:
                    tokens, attention = history[row]
                    done[one].append(Hypothesis(tuple(tokens), value, torch.stack([*attention, seen[row]])))
                elif live < width and step < longest:
                    live += 1
                    kept_rows.append(row)
                    kept_tokens.append(token)
                    kept_logs.append(value)
                else:
                    dropped[one] = max(dropped[one], value)
            done[one].sort(key=lambda hypothesis: -rule.score(hypothesis))
            del done[one][width:]
        keep = [
            index
            for index, row in enumerate(kept_rows)
            if not _settled(done[int(rows[row])], rule, kept_logs[index], width)
        ]
        if not keep:
            break
        chosen = torch.tensor([kept_rows[index] for index in keep], device=device)
        last = torch.tensor([kept_tokens[index] for index in keep], device=device)
        logs = torch.tensor([kept_logs[index] for index in keep], device=device, dtype=torch.float64)
        history = [
            ([*history[row][0], token], [*history[row][1], seen[row]])
            for row, token in zip(chosen.tolist(), last.tolist(), strict=True)
        ]
        before, rows = rows, rows[chosen]
        state = state.chosen(chosen, same=torch.equal(before, rows))
    return [
        Found(
            found or [Hypothesis((), -math.inf)],
            bool(found) and rule.score(found[0]) >= rule.bound(left),
            count,
            tuple(tokens),
        )
        for found, left, count, tokens in zip(done, dropped, opened, begun, strict=True)
    ]


def forbidden(logs: Tensor) -> Tensor:
    """Padding, <s> and <unk> are no outputs: their log-probabilities are -inf."""
    logs[..., NEVER] = -math.inf
    return logs


def _settled(done: list[Hypothesis], rule: Rule, open_log: float, width: int) -> bool:
    """Whether a prefix cannot get among the ``width`` best outputs any more."""
    return len(done) == width and rule.score(done[-1]) >= rule.bound(open_log)
