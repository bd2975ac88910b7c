"""Settings of the recipe ``digits``."""

from __future__ import annotations

from dataclasses import dataclass

from ..kit import recipe as kit
from ..kit.choice import Choice
from ..kit.settings import group, setting


@dataclass(frozen=True)
class Train(kit.Train):
    """Training on batches of images."""

    batch: int = setting(64, "images of a batch", low=1)


@dataclass(frozen=True)
class Model:
    """Two linear layers."""

    width: int = setting(64, "width of the hidden layer", low=1)
    dropout: float = setting(0.1, "dropout of the hidden layer", low=0, high=0.9)
    output: Choice = group(Choice)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    model: Model = group(Model)
    train: Train = group(Train, steps=600, eval_every=100, lr=3e-3, warmup=50)


@dataclass(frozen=True)
class Options(kit.Options):
    """What to print of each image."""

    probabilities: bool = setting(False, "all digits that are possible, each with its probability")


ABOUT = kit.About(Settings, Options, needs=("sklearn",))
