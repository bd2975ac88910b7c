"""Batches as a function of the step: whatever happened before, step 700 of seed 1 sees the same examples.

That is what makes a run that was killed and resumed end with the weights of one that was left alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from torch.utils.data import IterableDataset

B = TypeVar("B")


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


class Endless(IterableDataset[B], Generic[B]):
    """Batches for ever, from the step that ``position`` names when iteration starts.

    Args:
        sizes: tokens of each example.
        budget: tokens of a batch.
        seed: of the order; every pass through the data has another one.
        make: indices → batch.
        position: the number of batches that are already done.
        share: (rank, world): of each batch this process takes every world-th example.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        budget: int,
        seed: int,
        make: Callable[[list[int]], B],
        position: Callable[[], int] = lambda: 0,
        share: Callable[[], tuple[int, int]] = lambda: (0, 1),
    ) -> None:
        if not sizes:
            raise ValueError("Endless: there are no examples")
        self.sizes, self.budget, self.seed, self.make = sizes, budget, seed, make
        self.position, self.share = position, share

    def passes(self, skip: int) -> Iterator[list[int]]:
        """The batches after the first ``skip``."""
        number = 0
        while True:
            batches = bucketed(self.sizes, self.budget, self.seed * 1_000_003 + number)
            yield from batches[skip:]
            skip = max(0, skip - len(batches))
            number += 1

    def __iter__(self) -> Iterator[B]:
        rank, world = self.share()
        for batch in self.passes(self.position()):
            yield self.make(batch[rank::world] or batch[:1])
