"""A Transformer encoder–decoder whose attention layers each have a mapping, and each head its own α if learned."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...._attention import KeyValueCache, MultiheadAttention
from ...kit.choice import Choice
from ...kit.output import Output, attention_words
from ..codec import PAD
from .model import Seq2Seq


@dataclass(frozen=True)
class Shape:
    """Sizes of a Transformer."""

    width: int
    heads: int
    layers: int
    inner: int
    dropout: float
    attention_dropout: float = 0.0


class Attend(nn.Module):
    """Normalise, attend, add: one residual attention block."""

    def __init__(self, shape: Shape, choice: Choice) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.attention = MultiheadAttention(
            shape.width,
            shape.heads,
            dropout=shape.attention_dropout,
            batch_first=True,
            **attention_words(choice, shape.heads),
        )
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        padding: Tensor | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        query = self.norm(x)
        keys = query if memory is None else memory
        out, seen = self.attention(
            query, keys, keys, key_padding_mask=padding, is_causal=causal, need_weights=weights, cache=cache
        )
        return x + self.dropout(out), seen


class Think(nn.Module):
    """Normalise, two linear layers, add."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.inner, self.outer = nn.Linear(shape.width, shape.inner), nn.Linear(shape.inner, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        grown = self.dropout(torch.relu(self.inner(self.norm(x))))
        out: Tensor = x + self.dropout(self.outer(grown))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, shape: Shape, choice: Choice) -> None:
        super().__init__()
        self.own, self.think = Attend(shape, choice), Think(shape)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        out: Tensor = self.think(self.own(x, padding=padding)[0])
        return out


class DecoderLayer(nn.Module):
    def __init__(self, shape: Shape, decoder: Choice, context: Choice) -> None:
        super().__init__()
        self.own, self.context, self.think = Attend(shape, decoder), Attend(shape, context), Think(shape)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        padding: Tensor,
        caches: tuple[KeyValueCache, KeyValueCache] | tuple[None, None] = (None, None),
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        x, _ = self.own(x, causal=True, cache=caches[0])
        x, seen = self.context(x, memory, padding, cache=caches[1], weights=weights)
        return self.think(x), seen


@dataclass
class TransformerState:
    """The caches of every layer; ``advance`` appends to them."""

    memory: Tensor
    padding: Tensor
    caches: list[tuple[KeyValueCache, KeyValueCache]]

    def chosen(self, rows: Tensor, same: bool = False) -> TransformerState:
        caches = [(reordered(own, rows), context if same else reordered(context, rows)) for own, context in self.caches]
        memory, padding = (self.memory, self.padding) if same else (self.memory[rows], self.padding[rows])
        return TransformerState(memory, padding, caches)


def reordered(cache: KeyValueCache, rows: Tensor) -> KeyValueCache:
    """Another cache with these rows; this one stays, as a search may come back to it."""
    other = copy(cache)
    other.reorder(rows)
    return other


class Transformer(Seq2Seq):
    """Pre-norm Transformer with one embedding for source, target and, if tied, the output.

    Args:
        size: of the vocabulary.
        shape: widths and depths.
        encoder: the mapping of the encoder's self-attention.
        decoder: that of the decoder's self-attention.
        context: that of its attention to the source.
        output: that of the output.
        tied: score the output with the embedding.

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019.
    """

    def __init__(
        self, size: int, shape: Shape, encoder: Choice, decoder: Choice, context: Choice, output: Choice, tied: bool
    ) -> None:
        super().__init__()
        self.width = shape.width
        self.embedding = nn.Embedding(size, shape.width, PAD)
        nn.init.normal_(self.embedding.weight, std=shape.width**-0.5)
        self.dropout = nn.Dropout(shape.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(shape, encoder) for _ in range(shape.layers))
        self.decoder = nn.ModuleList(DecoderLayer(shape, decoder, context) for _ in range(shape.layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.output = Output(shape.width, size, output, self.embedding if tied else None)

    def embed(self, tokens: Tensor, first: int = 0) -> Tensor:
        embedded = self.embedding(tokens) * math.sqrt(self.width) + positions(
            first, tokens.shape[1], self.width, tokens.device
        )
        out: Tensor = self.dropout(embedded)
        return out

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        padding = source == PAD
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, padding)
        return self.encoder_norm(x), padding

    def start(self, source: Tensor) -> TransformerState:
        memory, padding = self.encode(source)
        return TransformerState(memory, padding, [(KeyValueCache(), KeyValueCache(static=True)) for _ in self.decoder])

    def advance(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState, Tensor]:
        """The attention is the last layer's, averaged over its heads."""
        x = self.embed(tokens.unsqueeze(1), len(state.caches[0][0]))
        seen = None
        for layer, caches in zip(self.decoder, state.caches, strict=True):
            x, seen = layer(x, state.memory, state.padding, caches, weights=layer is self.decoder[-1])
        assert seen is not None
        return self.decoder_norm(x[:, 0]), state, seen[:, 0]

    def hidden(self, source: Tensor, entered: Tensor) -> Tensor:
        memory, padding = self.encode(source)
        x = self.embed(entered)
        for layer in self.decoder:
            x, _ = layer(x, memory, padding)
        out: Tensor = self.decoder_norm(x)
        return out


def positions(first: int, count: int, width: int, device: torch.device) -> Tensor:
    """Sines and cosines of the positions from ``first`` on (count, width)."""
    place = torch.arange(first, first + count, device=device, dtype=torch.float32).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float32) * (-math.log(10000.0) / width))
    return torch.stack([(place * rate).sin(), (place * rate).cos()], -1).flatten(1)[:, :width]
