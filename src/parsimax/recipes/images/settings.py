"""Settings that recipes with a latent variable share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..kit import recipe as kit
from ..kit.settings import setting

Categorical = Literal["dense", "sparse", "sfe", "sfe+", "nvil", "sum-sample", "gumbel", "st-gumbel"]
Structured = Literal["topk", "sparsemap", "sfe", "sfe+", "nvil", "gumbel", "st-gumbel"]


@dataclass(frozen=True)
class Train(kit.Train):
    """Training on batches of images."""

    batch: int = setting(64, "images of a batch", low=1)


@dataclass(frozen=True)
class Data(kit.Data):
    """Images."""


@dataclass(frozen=True)
class Latent:
    """How the expectation over the latent variable and its gradient are found."""

    entropy: float = setting(1.0, "weight of the entropy of the latent variable", low=0)
    gumbel_decay: float = setting(1e-4, "how fast the Gumbel temperature falls from 1 to 0.5, a step", low=0)
    baseline: int = setting(512, "width of the three hidden layers of the baseline network of nvil", low=1)
