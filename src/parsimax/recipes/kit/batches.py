"""Batches as a function of the step: whatever happened before, step 700 of seed 1 sees the same examples.

That is what makes a run that was killed and resumed end with the weights of one that was left alone.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from torch.utils.data import IterableDataset

B = TypeVar("B")


class Batches(ABC, Generic[B]):
    """How a recipe cuts its training data: a plan of one pass in numbers of examples, and batches made of them.

    What a number means (an image, a sentence, a window of a long text) and what a batch is, only the recipe knows.
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many examples there are."""

    @abstractmethod
    def plan(self, seed: int) -> list[list[int]]:
        """The batches of one pass through the data, a function of the seed alone."""

    @abstractmethod
    def make(self, indices: list[int]) -> B:
        """The batch of these examples."""


class Shuffled(Batches[B]):
    """Batches of ``size`` examples in random order; ``make`` turns their numbers into a batch."""

    def __init__(self, count: int, size: int, make: Callable[[list[int]], B]) -> None:
        self.count, self.size, self._make = count, size, make

    def __len__(self) -> int:
        return self.count

    def plan(self, seed: int) -> list[list[int]]:
        order = list(range(self.count))
        random.Random(seed).shuffle(order)
        return [order[start : start + self.size] for start in range(0, self.count, self.size)]

    def make(self, indices: list[int]) -> B:
        return self._make(indices)


class Endless(IterableDataset[B], Generic[B]):
    """Batches for ever, from the step that ``position`` names when iteration starts.

    Args:
        batches: the recipe's.
        seed: of the order; every pass through the data has another one.
        position: the number of batches that are already done.
        share: (rank, world): of each batch this process takes every world-th example.
    """

    def __init__(
        self,
        batches: Batches[B],
        seed: int,
        position: Callable[[], int] = lambda: 0,
        share: Callable[[], tuple[int, int]] = lambda: (0, 1),
    ) -> None:
        if not len(batches):
            raise ValueError("Endless: there are no examples")
        self.batches, self.seed, self.position, self.share = batches, seed, position, share

    def passes(self, skip: int) -> Iterator[list[int]]:
        """The plan's batches after the first ``skip``."""
        number = 0
        while True:
            plan = self.batches.plan(self.seed * 1_000_003 + number)
            yield from plan[skip:]
            skip = max(0, skip - len(plan))
            number += 1

    def __iter__(self) -> Iterator[B]:
        rank, world = self.share()
        for batch in self.passes(self.position()):
            yield self.batches.make(batch[rank::world] or batch[:1])
