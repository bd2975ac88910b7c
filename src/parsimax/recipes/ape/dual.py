"""The baseline: a Transformer from scratch that reads source and machine output by an encoder each."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..._attention import AttentionCore, KeyValueCache, Observation
from ..kit.choice import Choice
from ..kit.output import Output
from ..text.codec import PAD
from ..text.lengths import spread
from ..text.seq2seq.evaluate import RECORDED
from ..text.seq2seq.examples import Examples
from ..text.seq2seq.model import Seq2Seq
from ..text.seq2seq.transformer import Attend, EncoderLayer, Shape, Think, positions, reordered
from .conserve import Penalty, Vocabulary
from .model import segments

ENCODERS = ("encoder_source", "encoder_machine")
Caches = tuple[KeyValueCache, KeyValueCache, KeyValueCache]


class DualLayer(nn.Module):
    """Self-attention, attention to the source, attention to the machine output, feed-forward."""

    def __init__(self, shape: Shape, decoder: Choice, context: Choice) -> None:
        super().__init__()
        self.own, self.think = Attend(shape, decoder), Think(shape)
        self.context_source, self.context_machine = Attend(shape, context), Attend(shape, context)

    def forward(
        self,
        x: Tensor,
        read: Read,
        caches: Caches | tuple[None, None, None] = (None, None, None),
        weights: bool = False,
    ) -> tuple[Tensor, list[Tensor | None]]:
        x, _ = self.own(x, causal=True, cache=caches[0])
        x, one = self.context_source(x, read.memories[0], read.paddings[0], cache=caches[1], weights=weights)
        x, other = self.context_machine(x, read.memories[1], read.paddings[1], cache=caches[2], weights=weights)
        return self.think(x), [one, other]


@dataclass
class Read:
    """The whole sequence as each encoder left its own text in it; what is not of that text counts as padding."""

    memories: tuple[Tensor, Tensor]
    paddings: tuple[Tensor, Tensor]

    def chosen(self, rows: Tensor) -> Read:
        memories, paddings = ((pair[0][rows], pair[1][rows]) for pair in (self.memories, self.paddings))
        return Read(memories, paddings)


@dataclass
class DualState:
    read: Read
    caches: list[Caches]
    penalty: Penalty | None

    def chosen(self, rows: Tensor, same: bool = False) -> DualState:
        caches = [
            (reordered(own, rows), *((one, other) if same else (reordered(one, rows), reordered(other, rows))))
            for own, one, other in self.caches
        ]
        penalty = None if self.penalty is None else self.penalty.chosen(rows)
        return DualState(self.read if same else self.read.chosen(rows), caches, penalty)


class DualSource(Seq2Seq):
    """Two encoders and a decoder, pre-norm, one embedding for all.

    Args:
        size: of the vocabulary.
        shape: widths and depths.
        encoder: the mapping of the encoders' self-attention.
        decoder: that of the decoder's self-attention.
        context: that of its attention to each encoder.
        output: that of the output.
        conserve: taken off the log-probability of an output for each of its words that is in neither text.
        pieces: what the numbers of the vocabulary are called; only ``conserve`` asks.
    """

    def __init__(
        self,
        size: int,
        shape: Shape,
        encoder: Choice,
        decoder: Choice,
        context: Choice,
        output: Choice,
        conserve: float = 0.0,
        pieces: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.width, self.conserve, self.vocabulary = shape.width, conserve, Vocabulary(pieces)
        self.words = nn.Embedding(size, shape.width, PAD)
        nn.init.normal_(self.words.weight, std=shape.width**-0.5)
        self.dropout = nn.Dropout(shape.dropout)
        for name in ENCODERS:
            self.add_module(name, nn.ModuleList(EncoderLayer(shape, encoder) for _ in range(shape.layers)))
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(2))
        self.decoder = nn.ModuleList(DualLayer(shape, decoder, context) for _ in range(shape.layers))
        self.decoder_norm = nn.LayerNorm(shape.width)
        self.output = Output(shape.width, size, output, self.words)

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        table = positions(0, int(places.max()) + 1, self.width, tokens.device)
        out: Tensor = self.dropout(self.words(tokens) * math.sqrt(self.width) + table[places])
        return out

    def encode(self, source: Tensor) -> Read:
        second, places = segments(source)
        memories, paddings = [], []
        for number, name in enumerate(ENCODERS):
            x, padding = self.embed(source, places), (second != number) | (source == PAD)
            for layer in self.get_submodule(name).children():
                x = layer(x, padding)
            memories.append(self.norms[number](x))
            paddings.append(padding)
        return Read((memories[0], memories[1]), (paddings[0], paddings[1]))

    def start(self, source: Tensor) -> DualState:
        caches = [(KeyValueCache(), KeyValueCache(static=True), KeyValueCache(static=True)) for _ in self.decoder]
        penalty = Penalty.of(self.vocabulary, self.conserve, source) if self.conserve else None
        return DualState(self.encode(source), caches, penalty)

    def advance(self, tokens: Tensor, state: DualState) -> tuple[Tensor, DualState, Tensor]:
        """The attention is the last layer's, half of it to each text."""
        step = torch.full((len(tokens), 1), len(state.caches[0][0]), device=tokens.device)
        x = self.embed(tokens.unsqueeze(1), step)
        seen: list[Tensor | None] = []
        for layer, caches in zip(self.decoder, state.caches, strict=True):
            x, seen = layer(x, state.read, caches, weights=layer is self.decoder[-1])
        one, other = seen
        assert one is not None and other is not None
        state.penalty = state.penalty and state.penalty.entered(tokens)
        return self.decoder_norm(x[:, 0]), state, (one + other)[:, 0] / 2

    def next_logs(self, hidden: Tensor, state: DualState) -> Tensor:
        logs: Tensor = self.output(hidden)
        return logs if state.penalty is None else logs - state.penalty.costs().to(logs)

    def hidden(self, source: Tensor, entered: Tensor) -> Tensor:
        read = self.encode(source)
        x = self.embed(entered, torch.arange(entered.shape[1], device=entered.device).expand_as(entered))
        for layer in self.decoder:
            x, _ = layer(x, read)
        out: Tensor = self.decoder_norm(x)
        return out


@torch.no_grad()
def densities(model: DualSource, examples: Examples) -> dict[str, float]:
    """The share of weights above 0 of what a query may see, by kind of attention, over some examples.

    ``analysis.record`` takes one mask for all that is read; here each encoder and each context has its own.
    """
    batch = examples.batch(spread(len(examples), RECORDED))
    second, _ = segments(batch.source)
    real = batch.wanted != PAD
    texts = [(second == number) & (batch.source != PAD) for number in range(2)]
    found: dict[str, list[float]] = {"self": [], "decoder": [], "cross": []}

    def watch(layer: nn.Module, part: str, kind: str, rows: Tensor) -> None:
        """Keep the density of queries that stand for a token and have something to see."""

        def observe(seen: Observation) -> None:
            above = torch.cat([(weights > 0).sum(-1) for _, weights in seen.blocks()], -1)  # (B, heads, queries)
            count = seen.visible().expand_as(above)
            chosen = rows[:, None, :] & (count > 0)
            found[kind].append((above[chosen] / count[chosen]).mean().item())

        core = layer.get_submodule(f"{part}.attention.core")
        assert isinstance(core, AttentionCore)
        core.observers.append(observe)

    watched = copy.deepcopy(model).eval()  # a copy, so that nothing goes on watching the model
    for number, name in enumerate(ENCODERS):
        for layer in watched.get_submodule(name).children():
            watch(layer, "own", "self", texts[number])
    for layer in watched.decoder:
        for part, kind in (("own", "decoder"), ("context_source", "cross"), ("context_machine", "cross")):
            watch(layer, part, kind, real)
    watched(batch.source, batch.entered)
    return {f"density ({kind})": statistics.fmean(values) for kind, values in found.items()}
