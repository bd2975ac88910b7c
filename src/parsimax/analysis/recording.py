"""What was recorded: layers, and for each example its tokens and its weights in every layer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from .example import SOURCE, TARGET, Example, make_example
from .layers import Layer, guess_kinds
from .weights import SparseWeights

__all__ = ["Example", "Recording", "Tokens"]

Tokens: TypeAlias = Sequence[Sequence[str]] | Sequence[str]


class Recording:
    """Attention weights of a model on some examples, stored without their zeros.

    Made by :func:`record`, :func:`load` or :meth:`from_weights`.

    Args:
        layers: of the model.
        examples: each with one :class:`SparseWeights` per layer.

    Example:
        >>> import torch
        >>> from parsimax.analysis import Recording
        >>> weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])  # (examples, heads, queries, keys)
        >>> recording = Recording.from_weights({"layer.0": weights}, tokens=[["so", "it"]])
        >>> recording
        Recording(1 example, 1 layer, 1 head, density 0.75)
        >>> recording.examples[0].key_tokens["layer.0"]
        ['so', 'it']
    """

    def __init__(self, layers: list[Layer], examples: list[Example]) -> None:
        self.layers, self.examples = layers, examples

    @classmethod
    def from_weights(
        cls,
        weights: Mapping[str, Tensor] | Sequence[Tensor],
        tokens: Tokens | None = None,
        target_tokens: Tokens | None = None,
        *,
        attention_mask: Tensor | None = None,
        mapping: str = "",
        alpha: Mapping[str, Sequence[float]] | None = None,
        causal: bool | None = None,
    ) -> Recording:
        """A recording of weights that are there already, such as what a Hugging Face model gives as ``attentions``.

        Args:
            weights: by the names of layers, tensors (examples, heads, queries, keys); a sequence is named "0", "1", ….
                A layer with "cross" in its name attends from target to source; one with "decoder", beside others
                without, attends within the target.
            tokens: a list of strings for each example, of the encoder or of the only sequence. Fewer tokens than
                queries mean that the rest is padding.
            target_tokens: the same for the decoder.
            attention_mask: (examples, tokens), 0 or False for padding of the source on either side.
            mapping: its name, for the figures.
            alpha: by the names of layers, one for each head.
            causal: whether queries may not see later keys, which then do not count in the density: those of the
                decoder, or of all layers if there is no other sequence. Not given, a layer is taken for causal if none
                of its weights is on a later key, which may be chance where they are few.

        Example:
            >>> import torch
            >>> from parsimax.analysis import Recording
            >>> attentions = [torch.rand(2, 4, 5, 5).softmax(-1) for layer in range(3)]
            >>> Recording.from_weights(attentions, tokens=[["a", "b", "c", "d", "e"], ["f", "g"]], mapping="softmax")
            Recording(2 examples, 3 layers, 12 heads, density 1.00)
        """
        named = dict(weights) if isinstance(weights, Mapping) else {str(i): w for i, w in enumerate(weights)}
        for name, w in named.items():
            if w.dim() != 4:
                raise ValueError(
                    f"Recording.from_weights: {name!r} must be (examples, heads, queries, keys), got {tuple(w.shape)}"
                )
        if len({len(w) for w in named.values()}) > 1:
            sizes = ", ".join(f"{name!r} {len(w)}" for name, w in named.items())
            raise ValueError(f"Recording.from_weights: every layer must have the same examples, got {sizes}")
        kinds, alphas = guess_kinds(named), alpha or {}
        decodes = "decoder" if "decoder" in kinds.values() else "self"
        layers = [
            Layer(
                name,
                kinds[name],
                mapping,
                w.shape[1],
                list(alphas[name]) if name in alphas else None,
                None if causal is None else causal and kinds[name] == decodes,
            )
            for name, w in named.items()
        ]
        count = next((len(w) for w in named.values()), 0)
        examples = []
        for i in range(count):
            mask = {} if attention_mask is None else {SOURCE: attention_mask[i]}
            examples.append(make_example(layers, [SparseWeights.from_dense(w[i]) for w in named.values()], mask))
        recording = cls(layers, examples)
        recording.give(tokens, target_tokens, "Recording.from_weights")
        return recording

    @property
    def tokens(self) -> list[list[str]]:
        """Of the encoder or of the only sequence, a list per example; assign to name them."""
        return [example.tokens for example in self.examples]

    @tokens.setter
    def tokens(self, tokens: Tokens) -> None:
        self.give(tokens, None, "recording.tokens")

    @property
    def target_tokens(self) -> list[list[str]]:
        """Of the decoder, a list per example; assign to name them."""
        return [example.target_tokens for example in self.examples]

    @target_tokens.setter
    def target_tokens(self, tokens: Tokens) -> None:
        self.give(None, tokens, "recording.target_tokens")

    def give(self, tokens: Tokens | None, target_tokens: Tokens | None, where: str) -> None:
        """Name the tokens of all examples; what has none is padding and is cut off."""
        for side, given in ((SOURCE, tokens), (TARGET, target_tokens)):
            if given is None:
                continue
            check_tokens(given, where)
            lists: Sequence[Sequence[str]] = [given] if _flat(given) else given  # type: ignore[list-item]
            if len(lists) != len(self.examples):
                raise ValueError(
                    f"{where}: tokens of {len(lists)} examples were given, but {len(self.examples)} were recorded"
                )
            for i, (example, own) in enumerate(zip(self.examples, lists, strict=True)):
                example.set_tokens(side, own, f"{where}: {side} of example {i}")

    def index(self, layer: int | str) -> int:
        """The number of a layer, from its name or its number."""
        names = [each.name for each in self.layers]
        if isinstance(layer, str):
            if layer not in names:
                raise KeyError(f"no layer {layer!r} in this recording; its layers are {', '.join(names)}")
            return names.index(layer)
        if not -len(names) <= layer < len(names):
            raise IndexError(f"layer must be between 0 and {len(names) - 1}, got {layer}")
        return layer % len(names)

    def causal(self, layer: int | str) -> bool:
        """Whether the queries of this layer may not see later tokens.

        False for cross-attention and for examples of one token only. Where only weights were given and nobody said so,
        it is whether no head ever looks at a later token.
        """
        i = self.index(layer)
        if self.layers[i].kind == "cross":
            return False
        told = self.layers[i].causal
        if told is not None:
            return told
        long = [example.weights[i] for example in self.examples if example.weights[i].shape[1] > 1]
        return bool(long) and not any(_looks_ahead(weights) for weights in long)

    @property
    def nbytes(self) -> int:
        """The memory of all weights."""
        return sum(w.nbytes for example in self.examples for w in example.weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which :func:`load` reads."""
        from .storage import save

        save(self, path)

    def __repr__(self) -> str:
        heads = sum(layer.heads for layer in self.layers)
        sizes = [(w.values.numel(), _cells(w)) for e in self.examples for w in e.weights]
        density = sum(n for n, _ in sizes) / max(sum(size for _, size in sizes), 1)
        counts = ((len(self.examples), "example"), (len(self.layers), "layer"), (heads, "head"))
        words = ", ".join(f"{n} {word}" if n == 1 else f"{n} {word}s" for n, word in counts)
        return f"Recording({words}, density {density:.2f})"


def check_tokens(tokens: Tokens, where: str) -> None:
    """Refuse what are not the strings of tokens."""
    for own in tokens:
        given = own if _iterable(own) and not isinstance(own, str) else [own]
        wrong = [token for token in given if not isinstance(token, str)]
        if wrong:
            raise TypeError(
                f"{where}: tokens must be strings, a list of them for each example, got {wrong[0]!r}; turn the numbers "
                "of tokens into strings by tokenizer.convert_ids_to_tokens(ids)"
            )


def _iterable(given: object) -> bool:
    return given.dim() > 0 if isinstance(given, Tensor) else isinstance(given, Iterable)


def _cells(weights: SparseWeights) -> int:
    """How many weights might be non-zero."""
    heads, rows, width = weights.shape
    if weights.visible is None:
        return heads * rows * width
    return int(weights.visible.sum()) * heads // weights.visible.shape[0]


def _looks_ahead(weights: SparseWeights) -> bool:
    """Whether a query may see a later key; where that is not known, whether one does."""
    _, rows, width = weights.shape
    own = torch.arange(rows) + width - rows
    if weights.visible is not None and (weights.visible > own + 1).any():
        return True
    return bool((weights.keys > own.repeat(weights.shape[0]).repeat_interleave(weights.counts.flatten().long())).any())


def _flat(tokens: Tokens) -> bool:
    return len(tokens) > 0 and all(isinstance(token, str) for token in tokens)
