"""Settings of the recipe ``emergent``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..images.settings import Categorical, Data, Latent, Train
from ..kit import recipe as kit
from ..kit.settings import group, setting


@dataclass(frozen=True)
class Model:
    """A sender and a receiver."""

    method: Categorical = setting("sparse", "how messages are summed or sampled")
    reward: Literal["log", "right"] = setting(
        "log", "for the logarithm of the probability of the right image, or for that probability: the paper's 0/1"
    )
    messages: int = setting(256, "how many there are", low=2)
    candidates: int = setting(16, "images among which the receiver looks", low=2)
    width: int = setting(256, "width of the images' embeddings", low=1)
    sender: Literal["mlp", "paper"] = setting(
        "mlp", "mlp: one hidden layer; paper: each number of an embedding is looked at by itself, as by a 1 × 1 filter"
    )
    hidden: int = setting(128, "units that the paper's sender looks at each number with", low=1)
    temperature: float = setting(1.0, "what the sender's scores are divided by", low=1e-3)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    latent: Latent = group(Latent, entropy=0.1)
    train: Train = group(Train, steps=2000, eval_every=200, lr=5e-3, warmup=0, decay="none")


ABOUT = kit.About(Settings, needs=("sklearn",))
