"""One example of a recording: its tokens and its weights in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .layers import Layer
from .weights import SparseWeights

SOURCE, TARGET = "source", "target"
QUERIES = {"self": SOURCE, "decoder": TARGET, "cross": TARGET}
KEYS = {"self": SOURCE, "decoder": TARGET, "cross": SOURCE}


@dataclass
class Side:
    """One of the (at most two) sequences of an example: its tokens, and which part of what the model saw they are."""

    tokens: list[str]
    start: int  # of what is left without padding
    full: int  # length with padding
    named: bool = False  # False: the tokens are only numbers


@dataclass(eq=False)
class Example:
    """One example: its tokens, and its weights in each layer.

    Args:
        sides: its sequences, "source" and "target".
        weights: aligned with ``layers``.
        layers: those of the recording.
        generated: step by step, so that the last token given for it was never a query.

    ``tokens`` are those of the encoder or of the only sequence, ``target_tokens`` those of the decoder. Where no tokens
    were given these are "0", "1", ….
    """

    sides: dict[str, Side]
    weights: list[SparseWeights]
    layers: list[Layer] = field(repr=False)
    generated: bool = False

    @property
    def tokens(self) -> list[str]:
        return self.sides[SOURCE].tokens

    @property
    def target_tokens(self) -> list[str]:
        return self.sides[TARGET].tokens

    @property
    def query_tokens(self) -> dict[str, list[str]]:
        """The tokens that attend, for each layer by its name."""
        pairs = zip(self.layers, self.weights, strict=True)
        return {layer.name: _fit(self.sides[QUERIES[layer.kind]], w.shape[1]) for layer, w in pairs}

    @property
    def key_tokens(self) -> dict[str, list[str]]:
        """The tokens that are attended to, for each layer by its name."""
        pairs = zip(self.layers, self.weights, strict=True)
        return {layer.name: _fit(self.sides[KEYS[layer.kind]], w.shape[2]) for layer, w in pairs}

    def cut(self, side: str, start: int, stop: int) -> None:
        """Leave only this part of one sequence, in tokens and weights alike."""
        self.weights = [
            self._cut(layer, w, side, start, stop) for layer, w in zip(self.layers, self.weights, strict=True)
        ]
        own = self.sides[side]
        own.tokens = own.tokens[start:stop] if own.named else [str(i) for i in range(stop - start)]
        own.start += start

    def _cut(self, layer: Layer, weights: SparseWeights, side: str, start: int, stop: int) -> SparseWeights:
        length = len(self.sides[side].tokens)
        _, rows, width = weights.shape
        queries, keys = (0, rows), (0, width)
        if QUERIES[layer.kind] == side and rows == length:
            queries = (start, stop)
        if KEYS[layer.kind] == side and layer.kind != "cross" and rows == length and width >= rows:
            past = width - rows  # keys of a cache that came before the first query
            keys = (0 if past else start, past + stop)
        elif KEYS[layer.kind] == side and width == length:
            keys = (start, stop)
        return weights.trim(queries, keys)

    def set_tokens(self, side: str, tokens: Sequence[str], where: str) -> None:
        own = self.sides[side]
        seen, full = len(own.tokens), own.full
        given, stop = list(tokens), own.start + seen
        if self.generated and len(given) in (full + 1, seen + 1):  # the last token was generated, but never a query
            given = given[:-1]
        if len(given) == full:
            given = given[own.start : stop]
        elif len(given) < seen == full:
            self.cut(side, 0, len(given))
        elif len(given) != seen:
            padded = f" ({full} with padding)" if full != seen else ""
            raise ValueError(f"{where}: {len(given)} tokens were given where the model saw {seen}{padded}")
        own.tokens, own.named, own.start, own.full = given, True, 0, len(given)


def make_example(
    layers: list[Layer], weights: list[SparseWeights], masks: Mapping[str, Tensor], generated: bool = False
) -> Example:
    """An example with numbers for tokens, and without what the masks (1 = a token) say is padding."""
    weights = [_without_room(layer, w) for layer, w in zip(layers, weights, strict=True)]
    sides = {}
    for side in (SOURCE, TARGET):
        length = _length(side, layers, weights)
        sides[side] = Side([str(i) for i in range(length)], 0, length)
    example = Example(sides, weights, layers, generated)
    for side, mask in masks.items():
        if generated and mask.numel() < sides[side].full:  # of the prompt alone; what was generated is no padding
            mask = torch.cat([mask.flatten(), mask.new_ones(sides[side].full - mask.numel())])
        if mask.numel() == sides[side].full:
            at = mask.flatten().nonzero()
            example.cut(side, int(at.min()) if len(at) else 0, int(at.max()) + 1 if len(at) else 0)
    return example


def _length(side: str, layers: list[Layer], weights: list[SparseWeights]) -> int:
    """Of one sequence: the queries of a layer inside it, else what cross-attention has there."""
    own = [
        w.shape[1] for layer, w in zip(layers, weights, strict=True) if QUERIES[layer.kind] == KEYS[layer.kind] == side
    ]
    axis = 2 if side == SOURCE else 1
    cross = [w.shape[axis] for layer, w in zip(layers, weights, strict=True) if layer.kind == "cross"]
    return max(own, default=0) or max(cross, default=0)


def _without_room(layer: Layer, weights: SparseWeights) -> SparseWeights:
    """A cache of fixed size has room for later keys, which nobody looks at."""
    _, rows, width = weights.shape
    if layer.kind == "cross" or rows >= width or (weights.keys >= rows).any():
        return weights
    return weights.trim((0, rows), (0, rows))


def _fit(side: Side, length: int) -> list[str]:
    """The tokens for so many places: those of a cache before the first token are only numbered."""
    missing = length - len(side.tokens)
    if missing >= 0 and side.tokens:
        return [f"‹{i}›" for i in range(missing)] + side.tokens
    return [str(i) for i in range(length)]
