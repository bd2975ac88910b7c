"""The recipe ``ape``: triplets, BERT's word pieces, and a BERT that post-edits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only

from ..kit.pictures import curves, learned, save
from ..kit.recipe import Answer, DataError, Evaluation
from ..kit.runs import Run, write
from ..kit.show import progress
from ..text.bert import folder_of, tiny
from ..text.codec import EOS, Codec
from ..text.seq2seq.evaluate import evaluate
from ..text.seq2seq.examples import Examples
from ..text.seq2seq.model import Seq2Seq
from ..text.seq2seq.outputs import found_for
from ..text.seq2seq.recipe import Pairs, TextRecipe
from ..text.seq2seq.report import report as attention_report
from ..text.seq2seq.transformer import Shape as PlainShape
from . import bert, mistakes, triplets
from .answers import answer, unread
from .dual import DualSource, densities
from .figures import changes, nearness, quality
from .layers import Shape
from .model import PostEditor
from .pieces import WordPieces
from .report import report
from .settings import Options, Settings
from .task import PostEditing


@dataclass(frozen=True)
class Query:
    """What a prediction reads."""

    source: str
    machine: str


class Ape(TextRecipe[Query, Options]):
    query, codec = Query, WordPieces

    def triplets(self, settings: Settings, split: str) -> list[triplets.Triplet]:
        return embedded()[split] if settings.data.root is None else triplets.read(settings.data, split)

    def pairs(self, settings: Settings, split: str) -> Pairs:
        return [(f"{one.source}\t{one.machine}", one.edited) for one in self.triplets(settings, split)]

    def files(self, settings: Settings, split: str) -> list[Path]:
        return [] if settings.data.root is None else triplets.paths(settings.data, split)

    def source(self, query: Query) -> str:
        return f"{' '.join(query.source.split())}\t{' '.join(query.machine.split())}"

    def learn(self, settings: Settings, pairs: Pairs) -> WordPieces:
        if settings.model.bert != "tiny":
            folder = folder_of(settings.model.bert, bert.KEY)
            known = WordPieces.of_folder(folder, bert.config_of(folder))
            bert.check_vocabulary(known, folder)
            return known
        texts = (text for source, edited in pairs for text in (*source.split("\t"), edited))
        codec = WordPieces.learn(texts, settings.data.vocabulary, settings.data.lowercase, {})
        codec.bert = bert.tiny_config(settings, codec.size)
        return codec

    def build(self, settings: Settings, codec: Codec) -> Seq2Seq:
        assert isinstance(codec, WordPieces)
        own, conserve = settings.model, settings.search.conserve
        last = (own.encoder, own.decoder, own.context, own.output, conserve, codec.tokens(range(codec.size)))
        if own.kind == "dual-source":
            plain = PlainShape(own.width, own.heads, own.layers, own.inner, own.dropout, own.attention_dropout)
            return DualSource(codec.size, plain, *last)
        shape = Shape.of(codec.bert, own.dropout, own.attention_dropout)
        if settings.search.longest >= shape.positions:
            raise DataError(
                f"search.longest={settings.search.longest} tokens: the BERT has {shape.positions} positions, one of "
                f"which is that of <s>; give at most search.longest={shape.positions - 1}"
            )
        return PostEditor(codec.size, shape, own.kind, *last)

    def start(self, settings: Settings, run: Run) -> PostEditing:
        train, val = self.pairs(settings, "train"), self.pairs(settings, "val")
        triplets.check_test(settings.data)
        codec = self.learn(settings, train)
        codec.save(run.folder)
        task = self._task(settings, codec, train, val, self._weights(settings, codec, train))
        self._count(settings, run, {"train": (len(train), len(task.batches)), "val": (len(val), len(task.val))})
        return task

    def _count(self, settings: Settings, run: Run, counts: dict[str, tuple[int, int]]) -> None:
        """Say how many triplets are too long to be used, and keep it in the run."""
        known = {split: {"triplets": all_, "too long": all_ - used} for split, (all_, used) in counts.items()}
        write(run.folder / COUNTS, json.dumps(known, indent=1))
        said = "; ".join(f"{one['triplets']} of {split}, {one['too long']} too long" for split, one in known.items())
        limits = (
            f"data.longest_source={settings.data.longest_source} and data.longest={settings.data.longest} for train"
        )
        rank_zero_only(print)(f"triplets: {said}, which are left out ({limits}, positions for both)", flush=True)

    def _weights(self, settings: Settings, codec: WordPieces, train: Pairs) -> Any:
        """The BERT that the model starts from; none for a model from scratch."""
        own = settings.model
        if own.kind == "dual-source":
            return None
        if own.bert != "tiny":
            return bert.pretrained(folder_of(own.bert, bert.KEY))
        texts = [text for source, edited in train for text in (*source.split("\t"), edited) if text]
        return tiny(codec.tokenizer, codec.bert, texts, own.pretrain, settings.train.seed, progress)

    def reopen(self, settings: Settings, run: Run, data: bool = True) -> PostEditing:
        train, val = (self.pairs(settings, split) if data else [] for split in ("train", "val"))
        return self._task(settings, WordPieces.load(run.folder), train, val, None)

    def _task(self, settings: Settings, codec: Codec, train: Pairs, val: Pairs, weights: Any = None) -> PostEditing:
        torch.manual_seed(settings.train.seed)
        model = self.build(settings, codec)
        if weights is not None:
            assert isinstance(model, PostEditor) and isinstance(codec, WordPieces)
            model.take(weights, codec.order)
        data, most = settings.data, _most(model)
        examples = Examples.of(train, codec)
        fitting = [
            index
            for index, (source, target) in enumerate(zip(examples.source, examples.target, strict=True))
            if len(source) <= data.longest_source and len(target) <= data.longest and _fits(source, target, most)
        ]
        if train and not fitting:
            raise DataError(
                f"all {len(train)} training triplets have more tokens than data.longest_source={data.longest_source} "
                f"or data.longest={data.longest}"
            )
        judged = [index for index, pair in enumerate(val) if _fits(codec.source(pair[0]), codec.target(pair[1]), most)]
        if val and not judged:
            raise DataError(f"all {len(val)} validation triplets have a text of more than {most or LONGEST} tokens")
        return PostEditing(
            model,
            codec,
            examples.some(fitting),
            Examples.of([val[index] for index in judged], codec),
            settings.train,
            settings.model.smoothing,
            settings.search.longest,
        )

    def evaluate(self, task: Any, settings: Settings, split: str, show: Callable[[str], None]) -> Evaluation:
        """Figures over all triplets; one that the model cannot read is left as the machine wrote it."""
        task.answering.conserve = settings.search.conserve
        codec, most = task.codec, _most(task.answering)
        pairs = self.pairs(settings, split)
        read = [_fits(codec.source(source), codec.target(target), most) for source, target in pairs]
        examples = Examples.of([pair for pair, fits in zip(pairs, read, strict=True) if fits], codec)
        found = self._evaluated(task, examples, settings, show)
        answered = iter(found.outputs)
        rows = [
            next(answered) if fits else {"source": source, "wanted": codec.clean(target), "unread": True}
            for (source, target), fits in zip(pairs, read, strict=True)
        ]
        for row in rows:
            row["source"], _, machine = row["source"].partition("\t")
            row["machine"] = codec.clean(machine)
            if row.keys() & {"unread", "unfinished"}:  # as predict leaves it
                row["output"] = row["machine"]
        machine, outputs, wanted = ([row[name] for row in rows] for name in ("machine", "output", "wanted"))
        nothing = {f"{name} doing nothing": value for name, value in quality(machine, wanted).items()}
        figures = {**quality(outputs, wanted), **nothing, **changes(machine, outputs, wanted)}
        figures |= nearness(outputs, wanted)
        rest = {name: value for name, value in found.figures.items() if name not in (*figures, "BLEU")}
        return Evaluation({"triplets": len(rows), "not read": read.count(False), **figures, **rest}, rows)

    def _evaluated(self, task: Any, examples: Examples, settings: Settings, show: Callable[[str], None]) -> Evaluation:
        """Figures and outputs of what the model can read, if there is anything."""
        if not len(examples):
            return Evaluation({}, [])
        at_once = isinstance(task.answering, PostEditor)
        found = evaluate(task.answering, task.codec, examples, settings.search, show, attention=at_once)
        if isinstance(task.answering, DualSource):
            found.figures.update(densities(task.answering, examples))
        return found

    def quality(self, task: Any) -> tuple[str, str]:
        return "TER", "min"

    def dials(self, settings: Settings) -> list[str]:
        return [*super().dials(settings), "search.conserve"]

    def zeros(self, task: Any, figures: Mapping[str, Any], key: str) -> float | None:
        """None where the model could not read a single triplet."""
        return None if figures["not read"] == figures["triplets"] else super().zeros(task, figures, key)

    def report(self, task: Any, settings: Settings, run: Run, folder: Path) -> list[Path]:
        """Of the triplets that the model can read."""
        folder.mkdir(parents=True, exist_ok=True)
        model, codec, most = task.answering, task.codec, _most(task.answering)
        pairs = [
            (source, target)
            for source, target in self.pairs(settings, "val")
            if _fits(codec.source(source), codec.target(target), most)
        ]
        followed = ("loss", task.monitor)
        if isinstance(model, PostEditor):
            examples = Examples.of(pairs, codec)
            whole = attention_report(model, codec, examples, settings.search, run, folder, followed)
        else:
            whole = [*save({"training": curves(run, *followed), "learned": learned(run)}, folder)]
        return [*whole, *report(model, codec, pairs, settings.search, run, folder)]

    def record(self, task: Any, record: Mapping[str, Any], options: Options) -> Query:
        """By the names of a query, or by those of the columns of triplets."""
        other = {"src": "source", "mt": "machine"}
        return super().record(task, {other.get(name, name): record[name] for name in record} | {**record}, options)

    def check(self, task: Any, query: Query, options: Options) -> None:
        if not query.source.strip() and not query.machine.strip():
            raise DataError("source and machine output are both empty")

    def predict(self, task: Any, settings: Settings, queries: Sequence[Query], options: Options) -> list[Answer]:
        """The post-edits, in the letters of the machine output where they keep its words."""
        task.answering.conserve = settings.search.conserve
        codec, most = task.codec, _most(task.answering)
        readable = [_fits(codec.source(self.source(query)), [], most) for query in queries]
        sources = [self.source(query) for query, fits in zip(queries, readable, strict=True) if fits]
        found = iter(found_for(task, sources, settings.search, options))
        longest = settings.search.longest
        return [
            answer(task, query.machine, *next(found), longest, options)
            if fits
            else unread(query.machine, most or LONGEST, options)
            for query, fits in zip(queries, readable, strict=True)
        ]


def _most(model: Seq2Seq) -> int | None:
    """Tokens of a text that the model has positions for; none for all."""
    return model.shape.positions if isinstance(model, PostEditor) else None


def _fits(source: list[int], target: list[int], most: int | None) -> bool:
    """Whether <s> source </s>, machine output </s> and post-edit each have enough positions."""
    if most is None:
        return len(source) <= LONGEST
    first = source.index(EOS) + 1
    return max(first, len(source) - first + 1, len(target) + 1) <= most


COUNTS = "triplets.json"  # in a run: triplets read, and left out
LONGEST = 2048  # tokens that a model without positions of its own reads; memory grows with the square


@lru_cache(1)
def embedded() -> dict[str, list[triplets.Triplet]]:
    """Number words, German → English, with the mistakes of a machine."""
    return {split: [triplets.Triplet(*one) for one in rows] for split, rows in mistakes.triplets().items()}


RECIPE = Ape()
