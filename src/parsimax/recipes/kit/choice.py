"""Which mapping a model uses somewhere, as settings: nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .settings import setting

Name = Literal["softmax", "entmax", "sparsemax", "rsoftmax"]


@dataclass(frozen=True)
class Choice:
    """Which mapping turns scores into probabilities."""

    mapping: Name = setting("entmax", "softmax, entmax with its alpha, sparsemax, or rsoftmax with its rate")
    alpha: float | Literal["learned"] = setting(
        1.5, "of entmax: 1 is softmax, 2 sparsemax; learned: one per head of attention, from a random start", low=1
    )
    rate: float = setting(0.8, "of rsoftmax: the share of zeros", low=0, high=1)
