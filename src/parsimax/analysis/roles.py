"""What heads do: look at a neighbour, at the first token, at the rest of a word, at some kind of token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from .example import Example
from .measures import chunks, mean_over_examples
from .recording import Recording
from .tables import Table
from .tokens import is_punctuation, is_question_mark, is_question_word, is_separator, words

Predicate: TypeAlias = Callable[[str], bool]
POSITIONS = {"previous": -1, "self": 0, "next": 1}
OWN = (*POSITIONS, "first", "subword")
PREDICATES: dict[str, Predicate | tuple[Predicate, Predicate]] = {
    "separator": is_separator,
    "punctuation": is_punctuation,
    "question": (is_question_word, is_question_mark),
}


@dataclass(frozen=True)
class HeadRoles:
    """One head: its strongest role above the threshold, or None, with its strength, and all strengths."""

    layer: str
    kind: str
    head: int
    label: str | None
    strength: float | None
    strengths: dict[str, float]


class Role(NamedTuple):
    """A role in one example: which weights count, (queries, keys) by their numbers, and which queries, (queries,)."""

    counts: Callable[[Tensor, Tensor], Tensor]
    queries: Tensor


def roles(
    recording: Recording,
    predicates: Mapping[str, Predicate | tuple[Predicate, Predicate]] | None = None,
    threshold: float = 0.5,
) -> Table[HeadRoles]:
    """What each head looks at, and how strongly: a mean weight between 0 and 1.

    - **previous**, **self**, **next**: the weight on the token at that place; **first**: on the first token, the first
      query not counted. Self-attention only, except that "first" is for all layers.
    - **subword**: the weight on the other pieces of the query's own word, over the queries whose word has several. The
      words are found by the marks of WordPiece (##), SentencePiece (▁) and BPE (Ġ, @@, </w>).
    - for each predicate, the weight on all keys that fulfil it, over the queries that may see such a key: by default
      **separator**, **punctuation** and **question**, from an interrogative (English) to a question mark.

    A strength is averaged over the queries of an example, then over the examples that have such queries; it is NaN if
    none has.

    Args:
        recording: with its tokens, which all but the first four roles need.
        predicates: by name, a function of a token that says whether it is meant; or a pair of them, for the queries and
            for the keys. They take the place of ``analysis.PREDICATES``.
        threshold: the weakest strength that labels a head, from 0 to 1.

    Returns:
        A table with a row for each head.

    Example:
        >>> import torch
        >>> from parsimax import analysis
        >>> back = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> end = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
        >>> recording = analysis.Recording.from_weights([torch.stack([back, end])[None]], tokens=["so", "what", "?"])
        >>> [(row.label, round(row.strength, 3)) for row in analysis.roles(recording)]
        [('previous', 1.0), ('punctuation', 0.833)]
        >>> table = analysis.roles(recording, {"what": lambda token: token == "what"})
        >>> table[1].strengths["what"]
        0.16666666666666666

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019 (section 5.2). There the score
    of a subword-merging head is the largest weight that any piece gives to the rest of its word; the mean over the
    pieces tells such a head from one that looks at the previous token.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"roles: threshold must be in [0, 1], got {threshold:g}")
    chosen = PREDICATES if predicates is None else dict(predicates)
    if taken := [name for name in chosen if name in OWN]:
        raise ValueError(f"roles: {taken[0]!r} is a role already; give your predicate another name")
    names = [*OWN, *chosen]
    rows = []
    for i, layer in enumerate(recording.layers):
        causal = recording.causal(i)
        seen = [_strengths(example, i, causal, chosen) for example in recording.examples if example.weights[i].shape[1]]
        for head, values in enumerate(mean_over_examples(seen, (layer.heads, len(names))).tolist()):
            strengths = dict(zip(names, values, strict=True))
            best = max(names, key=lambda name: -1 if math.isnan(strengths[name]) else strengths[name])
            labelled = strengths[best] >= threshold
            label, strength = (best, strengths[best]) if labelled else (None, None)
            rows.append(HeadRoles(layer.name, layer.kind, head, label, strength, strengths))
    return Table(rows)


def _strengths(
    example: Example, layer: int, causal: bool, predicates: Mapping[str, Predicate | tuple[Predicate, Predicate]]
) -> tuple[Tensor, Tensor]:
    """(heads, roles), and which of these the example has."""
    weights = example.weights[layer]
    heads, queries, _ = weights.shape
    all_roles = [
        *_places(example, layer),
        *(_by_predicate(example, layer, causal, each) for each in predicates.values()),
    ]
    mass = torch.zeros(len(all_roles), heads * queries, dtype=torch.float64)
    for _, _, (head, query, key, value) in chunks(weights, heads):
        for own, role in zip(mass, all_roles, strict=True):
            counts = role.counts(query, key)
            own.index_add_(0, (head * queries + query)[counts], value[counts].double())
    rows = torch.stack([role.queries for role in all_roles])[:, None] & (weights.counts > 0)
    strengths = torch.where(rows, mass.view(-1, heads, queries), 0).sum(-1) / rows.sum(-1)
    return strengths.T, rows.any(-1).T


def _places(example: Example, layer: int) -> list[Role]:
    """The roles of ``OWN``, in its order."""
    name, kind = example.layers[layer].name, example.layers[layer].kind
    _, queries, keys = example.weights[layer].shape
    inside = torch.full((queries,), kind != "cross")
    past = keys - queries if kind != "cross" else 0  # keys of a cache before the first query
    place = torch.arange(queries) + past
    found = [
        Role(lambda q, k, step=step: k == q + past + step, inside & (place + step >= 0) & (place + step < keys))  # type: ignore[misc]
        for step in POSITIONS.values()
    ]
    found.append(Role(lambda q, k: k == 0, (place > 0) | ~inside))
    word = torch.tensor(words(example.key_tokens[name]), dtype=torch.int64)
    if kind == "cross":
        found.append(Role(lambda q, k: k < 0, inside))
        return found
    pieces = word[word >= 0].bincount(minlength=1)
    several = (word >= 0) & (pieces[word.clamp_min(0)] > 1)
    found.append(Role(lambda q, k: (word[k] == word[q + past]) & (k != q + past), several[past:]))
    return found


def _by_predicate(
    example: Example, layer: int, causal: bool, predicate: Predicate | tuple[Predicate, Predicate]
) -> Role:
    name = example.layers[layer].name
    of_query, of_key = predicate if isinstance(predicate, tuple) else (None, predicate)
    key_tokens, query_tokens = example.key_tokens[name], example.query_tokens[name]
    meant = torch.tensor([bool(of_key(token)) for token in key_tokens], dtype=torch.bool)
    visible = meant.long().cumsum(0)[len(key_tokens) - len(query_tokens) :] > 0 if causal else meant.any()
    asked = torch.tensor([of_query is None or bool(of_query(token)) for token in query_tokens], dtype=torch.bool)
    return Role(lambda q, k: meant[k], asked & visible)
