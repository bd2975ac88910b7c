"""The 1 797 images of scikit-learn's digits, 8 × 8 pixels from 0 to 16, in three parts."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

SIDE, BRIGHTEST, CLASSES = 8, 16, 10
HELD_OUT = 300  # images of val and of test


class Images(NamedTuple):
    """Pixels from 0 to 1 (N, 64), and the digits (N,)."""

    pixels: Tensor
    digits: Tensor


@lru_cache(1)
def splits() -> dict[str, Images]:
    from sklearn.datasets import load_digits

    found = load_digits()
    every = Images(torch.tensor(found.data, dtype=torch.float32) / BRIGHTEST, torch.tensor(found.target))
    order = list(range(len(every.digits)))
    random.Random(0).shuffle(order)
    parts = {"test": order[:HELD_OUT], "val": order[HELD_OUT : 2 * HELD_OUT], "train": order[2 * HELD_OUT :]}
    return {name: Images(every.pixels[part], every.digits[part]) for name, part in parts.items()}
