"""Settings of the recipe ``ssvae``."""

from __future__ import annotations

from dataclasses import dataclass

from ..images.settings import Categorical, Data, Latent, Train
from ..kit import recipe as kit
from ..kit.settings import SettingsError, group, setting


@dataclass(frozen=True)
class Model:
    """A classifier, and a VAE that knows the class."""

    method: Categorical = setting("sparse", "how the unknown class is summed or sampled")
    classifier: int = setting(256, "width of the three hidden layers of the classifier", low=1)
    width: int = setting(128, "width of the two hidden layers of encoder and decoder", low=1)
    style: int = setting(8, "numbers beside the class that the decoder sees", low=1)


@dataclass(frozen=True)
class SomeTrain(Train):
    """Training on labelled and unlabelled images side by side."""

    labelled: int = setting(100, "images whose labels are used", low=1)
    supervised: int = setting(300, "steps on labelled images alone at the start, which decide everything", low=0)
    supervised_lr: float = setting(1e-3, "learning rate of these steps, the same for every method", low=0, high=10)
    label_weight: float = setting(
        1.0, "weight of the labels' loss beside the bound a pixel; 1 over the number of pixels is the paper's", low=0
    )
    unlabelled: float = setting(1.0, "weight of the loss of unlabelled images", low=0)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    latent: Latent = group(Latent)
    train: SomeTrain = group(SomeTrain, steps=1500, eval_every=150, lr=1e-3, warmup=0, decay="none")

    def check(self) -> None:
        super().check()
        if self.train.supervised and not self.train.lr:
            raise SettingsError("train.lr is above 0 where train.supervised steps come first, got 0")
        if self.train.supervised >= self.train.steps:
            raise SettingsError(
                f"train.supervised={self.train.supervised} leaves no step of train.steps={self.train.steps} for the "
                "unlabelled images"
            )


ABOUT = kit.About(Settings, needs=("sklearn",))
