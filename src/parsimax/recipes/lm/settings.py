"""Settings of the recipe ``lm``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..kit import recipe as kit
from ..kit.choice import Choice, check_choice
from ..kit.heads import Kind, check_head
from ..kit.settings import SettingsError, group, refuse_unread, setting

UNREAD = {"lstm": ("model.heads", "model.attention"), "transformer": ("model.weight_drop",)}


@dataclass(frozen=True)
class Data(kit.Data):
    """Words between blanks: ``train.txt``, ``valid.txt``, ``test.txt``, or the names that PTB and WikiText have."""

    vocabulary: int = setting(10_000, "words that are known, the most frequent ones; the others are <unk>", low=2)
    lowercase: bool = setting(False, "make all text lower case")


@dataclass(frozen=True)
class Model:
    """The network under the head."""

    kind: Literal["lstm", "transformer"] = setting("lstm", "what reads the text")
    embedding: int = setting(64, "width of word vectors, and of what the head reads", low=1)
    hidden: int = setting(128, "width of the LSTM, or inside the feed-forward layers", low=1)
    layers: int = setting(1, "of the network", low=1)
    heads: int = setting(4, "of each attention layer; they divide the width", low=1)
    dropout: float = setting(0.1, "of word vectors and of what the head reads", low=0, high=0.9)
    weight_drop: float = setting(
        0.0, "share of the recurrent weights of the LSTM that a step leaves out", low=0, high=0.9
    )
    tied: bool = setting(True, "score the words with their embedding")
    head: Kind = setting("linear", "how hidden states become probabilities: see docs/heads.md")
    components: int = setting(5, "softmaxes of a mixture", low=1)
    tanh: bool = setting(True, "whether the contexts of a mixture go through a tanh, which holds the scores small")
    units: int = setting(100, "sigmoids of a monotonic net", low=1)
    knots: int = setting(100_000, "pieces of PLIF, an even number", low=2)
    output: Choice = group(Choice, mapping="softmax")
    attention: Choice = group(Choice)


@dataclass(frozen=True)
class Train(kit.Train):
    """Training on windows of a text that is cut into columns."""

    columns: int = setting(16, "places of the text that are read at the same time", low=1)
    window: int = setting(32, "words that the gradient goes back", low=1)
    epsilon: float = setting(1e-4, "added to every probability in the ε-perplexity", low=1e-12, high=1)
    eval_words: int = setting(20_000, "words of the validation text that are looked at; 0 for all", low=0)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    train: Train = group(Train, steps=1000, eval_every=200, lr=5e-3, warmup=100, clip=0.5)

    def check(self) -> None:
        super().check()
        own = self.model
        if self.train.devices > 1:
            raise SettingsError("train.devices: one process reads the text in its order; got more than one")
        if own.kind == "transformer" and own.embedding % own.heads:
            raise SettingsError(f"model.heads must divide model.embedding, got {own.heads} and {own.embedding}")
        refuse_unread(self, UNREAD[own.kind], f"model.kind={own.kind}")
        check_head(self)
        if own.head != "linear" and own.output.mapping != "softmax" and not own.head.startswith("mixture"):
            raise SettingsError(f"model.output.mapping={own.output.mapping} goes with model.head=linear or a mixture")

    def check_new(self) -> None:
        own = self.model
        if own.head == "linear" or own.head.startswith("mixture"):
            check_choice(self, "model.output", loss=own.head == "linear")
        else:
            refuse_unread(self, ("model.output",), f"model.head={own.head}")
        if own.kind == "transformer":
            check_choice(self, "model.attention")
        if self.data.root is None:
            refuse_unread(self, ("data.lowercase",), "the embedded text, which is lower case,")


@dataclass(frozen=True)
class Options(kit.Options):
    """How a text goes on."""

    words: int = setting(40, "words to write", low=1, high=10_000)
    samples: int = setting(1, "texts for each beginning", low=1, high=1000)
    seed: int = setting(0, "of the sampling", low=0, high=2**31 - 1)


ABOUT = kit.About(Settings, Options)
