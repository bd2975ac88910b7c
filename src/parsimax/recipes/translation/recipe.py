"""The recipe ``translation``: parallel text, byte-pair pieces, a Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..text import files, numbers
from ..text.codec import Codec, Pieces
from ..text.seq2seq.model import Seq2Seq
from ..text.seq2seq.recipe import Pairs, TextRecipe
from ..text.seq2seq.settings import Options
from ..text.seq2seq.task import Seq2SeqTask
from ..text.seq2seq.transformer import Shape, Transformer
from .settings import Settings

FILES = {
    "train": ["train"],
    "val": ["val", "valid", "dev"],
    "test": ["test", "test_2016_flickr", "test2016", "newstest"],
}


@dataclass(frozen=True)
class Sentence:
    """What a prediction reads."""

    source: str


class Translation(TextRecipe[Sentence, Options]):
    query, codec = Sentence, Pieces
    monitor = "loss"  # few long sentences are exactly right

    def pairs(self, settings: Settings, split: str) -> Pairs:
        data = settings.data
        if data.root is None:
            return embedded()[split]
        return files.parallel(*self.files(settings, split))

    def files(self, settings: Settings, split: str) -> list[Path]:
        data = settings.data
        if data.root is None:
            return []
        names = ([f"{name}.{language}" for name in FILES[split]] for language in (data.source, data.target))
        return [files.find(data.root, some) for some in names]

    def source(self, query: Sentence) -> str:
        return query.source

    def learn(self, settings: Settings, pairs: Pairs) -> Codec:
        return Pieces.learn(pairs, settings.data.vocabulary, settings.data.lowercase)

    def quality(self, task: Seq2SeqTask) -> tuple[str, str]:
        return "chrF", "max"

    def longest(self, settings: Settings) -> int | None:
        return settings.data.longest

    def build(self, settings: Settings, codec: Codec) -> Seq2Seq:
        own = settings.model
        shape = Shape(own.width, own.heads, own.layers, own.inner, own.dropout, own.attention_dropout)
        return Transformer(codec.size, shape, own.encoder, own.decoder, own.context, own.output, own.tied)


@lru_cache(1)
def embedded() -> dict[str, Pairs]:
    """Number words, English → German."""
    return numbers.splits()


RECIPE = Translation()
