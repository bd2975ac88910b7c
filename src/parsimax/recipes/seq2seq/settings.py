"""Settings that both sequence-to-sequence recipes have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..kit.settings import setting

Name = Literal["softmax", "entmax", "sparsemax", "rsoftmax"]


@dataclass(frozen=True)
class Choice:
    """Which mapping turns scores into probabilities."""

    mapping: Name = setting("entmax", "softmax, entmax with its alpha, sparsemax, or rsoftmax with its rate")
    alpha: float | Literal["learned"] = setting(
        1.5, "of entmax: 1 is softmax, 2 sparsemax; learned: one per head of attention, from a random start", low=1
    )
    rate: float = setting(0.8, "of rsoftmax: the share of zeros", low=0, high=1)


@dataclass(frozen=True)
class Search:
    """How outputs are found."""

    beam: int = setting(5, "hypotheses a step; 1 is greedy", low=1)
    longest: int = setting(100, "tokens of an output at most", low=1)
    exact_budget: int = setting(2000, "prefixes that exact search may open for one output; 0 skips it", low=0)
