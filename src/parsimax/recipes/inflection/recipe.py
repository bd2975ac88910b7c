"""The recipe ``inflection``: lemma and tags → form, one model for all languages."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..kit.recipe import DataError
from ..text import files
from ..text.codec import Codec, Symbols
from ..text.seq2seq.model import Seq2Seq
from ..text.seq2seq.recipe import Pairs, TextRecipe
from . import harmony
from .lstm import Lstm
from .settings import Settings


class Inflection(TextRecipe):
    name = "inflection"

    def pairs(self, settings: Settings, split: str) -> Pairs:
        data = settings.data
        if data.root is None:
            return embedded()[split]
        part = {"train": f"train-{data.size}", "val": "dev", "test": "test"}[split]
        found: Pairs = []
        for language in data.languages or languages(data.root, data.size):
            path = files.find(data.root, [f"{language}-{part}"])
            for lemma, form, tags in files.columns(path, 3, "lemma, form, tags"):
                found.append((f"{language}\t{lemma}\t{tags}", form))
        return found

    def learn(self, settings: Settings, pairs: Pairs) -> Codec:
        return Symbols.learn(pairs)

    def build(self, settings: Settings, codec: Codec) -> Seq2Seq:
        own = settings.model
        return Lstm(codec.size, own.width, own.layers, own.dropout, own.attention, own.output, own.tied)

    def read(self, line: str, codec: Codec) -> str:
        """``language TAB lemma TAB tags``; with two columns the language is the embedded one, if the run has it."""
        assert isinstance(codec, Symbols)
        columns = line.split("\t")
        if len(columns) == 2 and f"<{EMBEDDED}>" in codec.index:
            columns = [EMBEDDED, *columns]
        if len(columns) != 3 or not all(columns):
            raise DataError(f"it must be language, lemma and tags by tabs, got {line!r}")
        if f"<{columns[0]}>" not in codec.index:
            raise DataError(f"the run has not seen the language {columns[0]!r}")
        return "\t".join(columns)


EMBEDDED = "harmony"


@lru_cache(1)
def embedded() -> dict[str, Pairs]:
    """A small language with vowel harmony."""
    return {
        split: [(f"{EMBEDDED}\t{lemma}\t{tags}", form) for lemma, form, tags in triples]
        for split, triples in harmony.splits().items()
    }


def languages(root: Path, size: str) -> list[str]:
    """Those with training files in ``root``."""
    ending = f"-train-{size}"
    names = {path.name.removesuffix(".gz") for path in root.glob(f"*{ending}*")} if root.is_dir() else set()
    found = sorted(name.removesuffix(ending) for name in names if name.endswith(ending))
    if not found:
        raise DataError(f"data.root: {root} has no file LANGUAGE{ending} or LANGUAGE{ending}.gz")
    return found


RECIPE = Inflection()
