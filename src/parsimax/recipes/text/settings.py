"""Settings that recipes on text share."""

from __future__ import annotations

from dataclasses import dataclass

from ..kit import recipe as kit
from ..kit.settings import setting


@dataclass(frozen=True)
class Train(kit.Train):
    """Training on batches of a number of tokens."""

    batch_tokens: int = setting(2048, "tokens of a batch: examples × the longest of them", low=1)
