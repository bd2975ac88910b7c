"""Settings of the recipe ``bitvae``."""

from __future__ import annotations

from dataclasses import dataclass

from ..images.settings import Data, Latent, Structured, Train
from ..kit import recipe as kit
from ..kit.settings import SettingsError, group, setting


@dataclass(frozen=True)
class Model:
    """An encoder to bits, and a decoder to a distribution over the levels of each pixel."""

    method: Structured = setting("sparsemap", "how bit vectors are summed or sampled")
    bits: int = setting(32, "bits of the latent variable", low=1)
    budget: int = setting(0, "how many bits may be on; 0 for any number", low=0)
    k: int = setting(10, "structures of topk", low=1)
    width: int = setting(128, "width of the hidden layers", low=1)
    rank: int = setting(5, "numbers a pixel before the levels", low=1)
    temperature: float = setting(3.0, "what the scores of bits are divided by: at 1 the support shrinks to 1", low=1e-3)


@dataclass(frozen=True)
class SomeTrain(Train):
    """Training, and how much of the validation images is looked at; of the test images it is 1000, by 256 samples."""

    judged: int = setting(256, "validation images that are looked at", low=1)
    samples: int = setting(16, "bit vectors drawn for each of them, to estimate its probability", low=1)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    latent: Latent = group(Latent)
    train: SomeTrain = group(SomeTrain, steps=2000, eval_every=200, lr=2e-3, warmup=0, decay="none")

    def check(self) -> None:
        super().check()
        own = self.model
        if own.budget > own.bits:
            raise SettingsError(f"model.budget={own.budget} is above model.bits={own.bits}")
        if own.budget and own.method not in ("topk", "sparsemap"):
            raise SettingsError(f"model.budget is for topk and sparsemap, not for {own.method}")


ABOUT = kit.About(Settings, needs=("sklearn",))
