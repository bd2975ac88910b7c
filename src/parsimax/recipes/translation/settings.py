"""Settings of the recipe ``translation``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..kit import recipe as kit
from ..kit.choice import Choice
from ..kit.settings import group, setting
from ..text.seq2seq.settings import Options, Search
from ..text.settings import Train


@dataclass(frozen=True)
class Data(kit.Data):
    """Parallel text: ``train.SOURCE``, ``train.TARGET`` and the same of ``val`` and ``test*``, plain or gzipped."""

    of_files: ClassVar[tuple[str, ...]] = ("source", "target")

    source: str = setting("en", "language of the source files")
    target: str = setting("de", "language of the target files")
    lowercase: bool = setting(True, "make all text lower case")
    vocabulary: int = setting(200, "byte-pair pieces of both languages together", low=50)
    longest: int = setting(64, "leave out training pairs with more tokens", low=1)


@dataclass(frozen=True)
class Model:
    """The Transformer."""

    width: int = setting(128, "of hidden states", low=2)
    heads: int = setting(4, "of each attention layer; they divide the width", low=1)
    layers: int = setting(2, "of encoder and of decoder", low=1)
    inner: int = setting(256, "width inside the feed-forward layers", low=1)
    dropout: float = setting(0.1, "of embeddings and layers", low=0, high=0.9)
    attention_dropout: float = setting(0.0, "of attention weights", low=0, high=0.9)
    tied: bool = setting(True, "score the output with the embedding")
    smoothing: float = setting(0.0, "label smoothing", low=0, high=0.5)
    encoder: Choice = group(Choice, alpha="learned")
    decoder: Choice = group(Choice, alpha="learned")
    context: Choice = group(Choice, alpha="learned")
    output: Choice = group(Choice)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    search: Search = group(Search)
    train: Train = group(Train, steps=1500, eval_every=250, batch_tokens=2048, lr=2e-3, warmup=200)


ABOUT = kit.About(Settings, Options, needs=("tokenizers", "sacrebleu", "rapidfuzz"))
