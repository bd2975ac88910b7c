"""Settings of the recipe ``inflection``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..kit import recipe as kit
from ..kit.choice import Choice
from ..kit.settings import group, setting
from ..text.seq2seq import settings as seq2seq
from ..text.seq2seq.settings import Search
from ..text.settings import Train


@dataclass(frozen=True)
class Data(kit.Data):
    """SIGMORPHON files: ``LANGUAGE-train-SIZE``, ``LANGUAGE-dev``, ``LANGUAGE-test``; lemma, form and tags by tabs."""

    of_files: ClassVar[tuple[str, ...]] = ("languages", "size")

    languages: tuple[str, ...] = setting((), "languages of one shared model, by commas; all there are if empty")
    size: Literal["low", "medium", "high"] = setting("medium", "which training files")


@dataclass(frozen=True)
class Model:
    """The LSTM."""

    width: int = setting(128, "of hidden states and embeddings, even", low=2)
    layers: int = setting(2, "of encoder and of decoder", low=1)
    dropout: float = setting(0.3, "of embeddings and between layers", low=0, high=0.9)
    tied: bool = setting(False, "score the output with the embedding")
    smoothing: float = setting(0.0, "label smoothing", low=0, high=0.5)
    attention: Choice = group(Choice)
    output: Choice = group(Choice)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    search: Search = group(Search, longest=60)
    train: Train = group(Train, steps=1500, eval_every=250, batch_tokens=1024, lr=2e-3, warmup=100)


@dataclass(frozen=True)
class Options(seq2seq.Options):
    """How lines are read, and what is printed."""

    language: str = setting(
        "", "language of lines with lemma and tags, or lemma, form and tags, as SIGMORPHON has them"
    )


ABOUT = kit.About(Settings, Options, needs=("sacrebleu", "rapidfuzz"))
