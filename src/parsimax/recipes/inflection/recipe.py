"""The recipe ``inflection``: lemma and tags → form, one model for all languages."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..kit.inputs import shortened
from ..kit.recipe import DataError, Evaluation
from ..text import files
from ..text.codec import Codec
from ..text.seq2seq.model import Seq2Seq
from ..text.seq2seq.recipe import Pairs, TextRecipe
from ..text.seq2seq.task import Seq2SeqTask
from . import harmony
from .lstm import Lstm
from .settings import Options, Settings
from .symbols import Symbols


@dataclass(frozen=True)
class Word:
    """What a prediction reads."""

    language: str
    lemma: str
    tags: str


class Inflection(TextRecipe[Word, Options]):
    query, codec = Word, Symbols

    def pairs(self, settings: Settings, split: str) -> Pairs:
        if settings.data.root is None:
            return embedded()[split]
        found: Pairs = []
        for path in self.files(settings, split):
            language = path.name.removesuffix(".gz").removesuffix(f"-{part(settings, split)}")
            for lemma, form, tags in files.columns(path, 3, "lemma, form, tags"):
                found.append((f"{language}\t{lemma}\t{tags}", form))
        return found

    def files(self, settings: Settings, split: str) -> list[Path]:
        data = settings.data
        if data.root is None:
            return []
        names = data.languages or languages(data.root, data.size)
        return [files.find(data.root, [f"{language}-{part(settings, split)}"]) for language in names]

    def learn(self, settings: Settings, pairs: Pairs) -> Codec:
        return Symbols.learn(pairs)

    def build(self, settings: Settings, codec: Codec) -> Seq2Seq:
        own = settings.model
        return Lstm(codec.size, own.width, own.layers, own.dropout, own.attention, own.output, own.tied)

    def source(self, query: Word) -> str:
        return f"{query.language}\t{query.lemma}\t{query.tags}"

    def read(self, task: Seq2SeqTask, line: str, options: Options) -> Word:
        """Language, lemma and tags by tabs; the language may be that of ``--language``, or the only one of the run."""
        columns = line.split("\t")
        known: tuple[str, ...] = getattr(task.codec, "languages", ())
        if options.language and len(columns) in (2, 3):
            return Word(options.language, columns[0], columns[-1])
        if len(columns) == 2 and len(known) == 1:
            return Word(known[0], columns[0], columns[1])
        if len(columns) != 3:
            wanted = "language, lemma and tags by tabs, or lemma and tags with --language"
            raise DataError(f"it must be {wanted}, got {shortened(repr(line))}")
        return Word(*columns)

    def check(self, task: Seq2SeqTask, query: Word, options: Options) -> None:
        assert isinstance(task.codec, Symbols)
        for name in ("language", "lemma", "tags"):
            value = getattr(query, name)
            if not value.strip() or "\t" in value:
                raise DataError(f"{name} is empty" if not value.strip() else f"{name} holds a tab")
        if not task.codec.knows(query.language):
            raise DataError(f"the run has not seen the language {query.language!r}")
        super().check(task, query, options)

    def evaluate(self, task: Seq2SeqTask, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        found = super().evaluate(task, settings, split, show)
        right: dict[str, list[bool]] = defaultdict(list)
        for one in found.outputs:
            right[one["source"].partition("\t")[0]].append(one["output"] == one["wanted"])
        figures = {language: statistics.fmean(marks) for language, marks in right.items()}
        return Evaluation({**found.figures, "accuracy by language": figures}, found.outputs)


def part(settings: Settings, split: str) -> str:
    """What the names of a split's files end with."""
    return {"train": f"train-{settings.data.size}", "val": "dev", "test": "test"}[split]


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
