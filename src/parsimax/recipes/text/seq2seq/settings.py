"""Settings that all sequence-to-sequence recipes have."""

from __future__ import annotations

from dataclasses import dataclass

from ...kit.settings import setting


@dataclass(frozen=True)
class Search:
    """How outputs are found."""

    beam: int = setting(5, "hypotheses a step; 1 is greedy", low=1)
    longest: int = setting(100, "tokens of an output at most", low=1)
    exact_budget: int = setting(2000, "prefixes that exact search may open for one output; 0 skips it", low=0)
