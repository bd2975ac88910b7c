"""Batches of similar lengths: little padding, and a budget of tokens instead of a number of examples."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..kit.batches import Batches

B = TypeVar("B")


class Bucketed(Batches[B]):
    """Batches of at most ``budget`` tokens, of examples whose tokens ``sizes`` says."""

    def __init__(self, sizes: Sequence[int], budget: int, make: Callable[[list[int]], B]) -> None:
        self.sizes, self.budget, self._make = sizes, budget, make

    def __len__(self) -> int:
        return len(self.sizes)

    def plan(self, seed: int) -> list[list[int]]:
        return bucketed(self.sizes, self.budget, seed)

    def make(self, indices: list[int]) -> B:
        return self._make(indices)


def bucketed(sizes: Sequence[int], budget: int, seed: int, pool: int = 64) -> list[list[int]]:
    """All examples in batches of at most ``budget`` tokens (longest × number), similar lengths together.

    Examples are shuffled, sorted by size in pools of about ``pool`` batches, cut, and the batches shuffled. An example
    larger than the budget is a batch of its own.
    """
    order = list(range(len(sizes)))
    chance = random.Random(seed)
    chance.shuffle(order)
    mean = max(1, sum(sizes) // max(1, len(sizes)))
    width = max(1, pool * budget // mean)
    batches: list[list[int]] = []
    for start in range(0, len(order), width):
        batch: list[int] = []
        for index in sorted(order[start : start + width], key=lambda i: sizes[i]):
            if batch and sizes[index] * (len(batch) + 1) > budget:
                batches.append(batch)
                batch = []
            batch.append(index)
        if batch:
            batches.append(batch)
    chance.shuffle(batches)
    return batches


def in_order(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """All examples by size, for evaluation."""
    batches: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda i: (sizes[i], i)):
        if not batches or sizes[index] * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(index)
    return batches


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` places over all examples: data may be sorted, say by language."""
    return list(range(0, count, max(1, math.ceil(count / most))))
