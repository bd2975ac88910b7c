"""Settings of the recipe ``bottleneck``."""

from __future__ import annotations

from dataclasses import dataclass

from ..kit import recipe as kit
from ..kit.heads import Kind, check_head
from ..kit.settings import group, setting


@dataclass(frozen=True)
class Data:
    """Distributions drawn from a Dirichlet, one a context."""

    contexts: int = setting(
        4000, "distributions to fit; the paper has 100 000, and with few of them all heads fit better", low=2
    )
    classes: int = setting(100, "words of each distribution: M in the paper", low=2)
    concentration: float = setting(0.1, "of the Dirichlet; small makes few words likely", low=1e-3)
    seed: int = setting(0, "of the distributions", low=0, high=2**31 - 1)


@dataclass(frozen=True)
class Model:
    """A free vector for each context, shared word vectors, and a head."""

    width: int = setting(10, "of contexts and word vectors: D in the paper", low=1)
    head: Kind = setting("linear", "how their products become probabilities: see docs/heads.md")
    components: int = setting(5, "softmaxes of a mixture", low=1)
    tanh: bool = setting(True, "whether the contexts of a mixture go through a tanh")
    units: int = setting(100, "sigmoids of a monotonic net", low=1)
    knots: int = setting(2000, "pieces of PLIF, an even number", low=2)


@dataclass(frozen=True)
class Train(kit.Train):
    """Training on all contexts at once."""

    batch: int = setting(0, "contexts of a batch; 0 for all of them", low=0)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    train: Train = group(Train, steps=1000, eval_every=200, lr=0.05, warmup=50, clip=0.0)

    def check(self) -> None:
        super().check()
        check_head(self)


ABOUT = kit.About(Settings)
