"""Settings of the recipe ``multilabel``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...mappings import REGISTRY
from ...parameters import LEARNED, Setting
from ..kit import recipe as kit
from ..kit.settings import SettingsError, group, refuse_unread, setting, shown

Layer = Literal[
    "sigmoid",
    "softmax",
    "sparsemax",
    "sparsemax-hinge",
    "sparsehourglass",
    "entmax",
    "rsoftmax",
    "rsoftmax-predicted",
]

EMBEDDED = ("data.classes", "data.average", "data.rows")  # what is of the embedded data alone
OWN = {  # what each layer reads of the settings that not all of them do
    "rsoftmax": ("rate", "train_rate"),
    "rsoftmax-predicted": ("train_rate", "count_weight"),
    "entmax": ("alpha",),
    "sparsehourglass": ("q",),
}


@dataclass(frozen=True)
class Data(kit.Data):
    """``NAME-train``, ``NAME-test`` and perhaps ``NAME-val``: Mulan's ARFF with its XML, CSV, or Parquet."""

    of_files: ClassVar[tuple[str, ...]] = ("labels",)

    labels: tuple[str, ...] = setting((), "names of the label columns, by commas; ARFF has them in its XML file")
    held_out: float = setting(
        0.2, "share of the training rows to validate on where there is no file", low=0.01, high=0.9
    )
    shape: tuple[int, ...] = setting((), "channels, height, width of the numbers of a row, if they are an image")
    classes: int = setting(10, "labels of the embedded data", low=2, high=1000)
    average: int = setting(3, "mean number of labels of its rows", low=1)
    rows: int = setting(3000, "rows of it", low=50)


@dataclass(frozen=True)
class Model:
    """A network of the numbers, and the layer on it."""

    layer: Layer = setting("rsoftmax-predicted", "the last layer with its loss: see docs/multilabel.md")
    net: Literal["mlp", "conv"] = setting("mlp", "two linear layers, or convolutions of an image of data.shape")
    width: int = setting(128, "of the hidden layer", low=1)
    dropout: float = setting(0.2, "dropout of the hidden layer", low=0, high=0.9)
    rate: float = setting(0.7, "of rsoftmax: the share of zeros", low=0, high=1)
    train_rate: float = setting(
        0.0,
        "of rsoftmax: training has this share of the rate; at 1 a label that is cut off never comes back",
        low=0,
        high=1,
    )
    alpha: float | Literal["learned"] = setting(LEARNED, "of entmax: 1 is softmax, 2 sparsemax", low=0)
    q: float = setting(10.0, "of sparsehourglass: small is nearly scale invariant, large is sparsemax", low=1e-6)
    count_weight: float = setting(1.0, "of rsoftmax-predicted: weight of the loss of the label count", low=0, high=1e6)

    @property
    def number(self) -> Setting | None:
        """The number of the layer's mapping, if it has one and does not predict it."""
        return REGISTRY[self.layer].setting if self.layer in REGISTRY else None

    def check_number(self, *, loss: bool) -> None:
        """SettingsError for a number that the mapping does not take, or ``loss``, by which it is trained, does not."""
        if (number := self.number) is None or (given := getattr(self, number.name)) == LEARNED:
            return
        whose = f"the loss of {self.layer}" if loss else self.layer
        allowed = (REGISTRY[self.layer].loss_setting if loss else None) or number
        if given not in allowed.domain:
            raise SettingsError(f"model.{number.name} of {whose} must be in {allowed.domain}, got {shown(given)}")


@dataclass(frozen=True)
class Train(kit.Train):
    """Training on batches of rows."""

    batch: int = setting(64, "rows of a batch", low=1)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    train: Train = group(Train, steps=1000, eval_every=100, lr=2e-3, warmup=50)

    def check(self) -> None:
        super().check()
        data, model = self.data, self.model
        if len({*data.labels}) < len(data.labels):
            raise SettingsError(f"data.labels names a column twice: {','.join(data.labels)}")
        if data.shape and (len(data.shape) != 3 or min(data.shape) < 1):
            raise SettingsError(f"data.shape is channels,height,width, got {','.join(map(str, data.shape))}")
        if model.net == "conv" and len(data.shape) != 3:
            raise SettingsError("model.net=conv needs data.shape=CHANNELS,HEIGHT,WIDTH")
        model.check_number(loss=False)
        if data.root is None and data.average > data.classes:
            raise SettingsError(f"data.average={data.average} labels a row of data.classes={data.classes}")

    def check_new(self) -> None:
        layer = self.model.layer
        others = {name for names in OWN.values() for name in names} - {*OWN.get(layer, ())}
        refuse_unread(self, sorted(f"model.{name}" for name in others), f"model.layer={layer}")
        self.model.check_number(loss=True)
        if self.model.net == "mlp":
            refuse_unread(self, ("data.shape",), "model.net=mlp")
        if self.data.root is None:
            refuse_unread(self, ("data.held_out",), "the embedded data, whose parts are fixed,")
        else:
            refuse_unread(self, EMBEDDED, "data.root")

    def check_size(self, columns: int) -> None:
        """SettingsError unless the numbers of a row are an image of ``data.shape``, where one is wanted."""
        if self.data.shape and math.prod(self.data.shape) != columns:
            shape = "×".join(map(str, self.data.shape))
            raise SettingsError(f"data.shape={shape} is {math.prod(self.data.shape)} numbers, a row has {columns}")


@dataclass(frozen=True)
class Options(kit.Options):
    """What to print of each row."""

    probabilities: bool = setting(False, "all labels whose probability is not 0, each with it")


ABOUT = kit.About(Settings, Options, needs=("sklearn", "arff"))
