"""Examples as padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..codec import BOS, EOS, PAD, Codec


class Batch(NamedTuple):
    """Padded numbers: ``source`` ends with </s>; ``entered`` starts with <s>, ``wanted`` ends with </s>."""

    source: Tensor  # (B, S)
    entered: Tensor  # (B, T)
    wanted: Tensor  # (B, T)


@dataclass(frozen=True)
class Examples:
    """Texts of a split and their numbers."""

    texts: list[tuple[str, str]]
    source: list[list[int]]
    target: list[list[int]]

    @classmethod
    def of(cls, texts: list[tuple[str, str]], codec: Codec) -> Examples:
        return cls(texts, [codec.source(one) for one, _ in texts], [codec.target(other) for _, other in texts])

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def sizes(self) -> list[int]:
        """Tokens of each example: the longer of its sides, with the end."""
        return [max(len(one), len(other)) + 1 for one, other in zip(self.source, self.target, strict=True)]

    def batch(self, indices: Sequence[int]) -> Batch:
        target = [self.target[index] for index in indices]
        return Batch(
            padded([[*self.source[index], EOS] for index in indices]),
            padded([[BOS, *one] for one in target]),
            padded([[*one, EOS] for one in target]),
        )

    def some(self, indices: Sequence[int]) -> Examples:
        texts, source, target = self.texts, self.source, self.target
        return Examples([texts[i] for i in indices], [source[i] for i in indices], [target[i] for i in indices])

    def within(self, longest: int) -> Examples:
        """Those of at most ``longest`` tokens."""
        return self.some([index for index, size in enumerate(self.sizes) if size <= longest])


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
