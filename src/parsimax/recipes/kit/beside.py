"""What a training step costs beside that of another model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import TypeVar

from torch import Tensor, nn

B = TypeVar("B")
STEPS = 16


def step_ratio(
    own: nn.Module,
    other: nn.Module,
    loss: Callable[[nn.Module, B], Tensor],
    batches: Sequence[list[int]],
    make: Callable[[list[int]], B],
) -> float:
    """Forward and backward pass of two models in turns on the same batches: the median ratio of their times.

    Few batches are gone through again and again.
    """
    ratios = []
    for number, indices in enumerate(islice(cycle(batches), STEPS + 1)):
        batch, seconds = make(indices), {}
        for model in (own, other) if number % 2 else (other, own):  # who goes first changes
            model.train()
            model.zero_grad(set_to_none=True)
            began = time.perf_counter()
            loss(model, batch).backward()
            seconds[model] = time.perf_counter() - began
        ratios.append(seconds[own] / seconds[other])
    own.zero_grad(set_to_none=True)
    return statistics.median(ratios[1:])  # the first warms up
