"""Settings that all sequence-to-sequence recipes have."""

from __future__ import annotations

from dataclasses import dataclass

from ...kit import recipe as kit
from ...kit.settings import setting


@dataclass(frozen=True)
class Search:
    """How outputs are found."""

    beam: int = setting(5, "hypotheses a step; 1 is greedy", low=1, later=True)
    longest: int = setting(100, "tokens of an output at most", low=1)
    average: bool = setting(
        False, "compare outputs by the mean log-probability of their tokens, not by the sum", later=True
    )
    exact_budget: int = setting(
        2000,
        "prefixes that exact search may open for one output; 0 skips it in evaluations, predict --exact opens 2000",
        low=0,
    )


@dataclass(frozen=True)
class Options(kit.Options):
    """What to print of each output."""

    nbest: int = setting(0, "this many outputs: rank, probability, proof, text; 0 for the best text alone", low=0)
    exact: bool = setting(False, "search until the best output is proved, within the budget")
