"""BERT as encoder and decoder: which parts the decoder copies or shares decides how much it has to learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._attention import KeyValueCache
from ..kit.choice import Choice
from ..kit.output import Output
from ..text.codec import EOS, PAD
from ..text.seq2seq.model import Seq2Seq
from ..text.seq2seq.transformer import reordered
from .conserve import Penalty, Vocabulary
from .layers import Attend, DecoderLayer, EncoderLayer, Projections, Shape, Think
from .settings import Kind

SHARING: dict[Kind, int] = {
    "random": 0,
    "bert": 1,  # self-attention and feed-forward start as BERT's
    "context-from-self": 2,  # and so does the attention to the encoder, as the self-attention's
    "self-tied": 3,  # and self-attention is the encoder's own
    "context-tied": 4,  # and the matrices of the attention to the encoder are those of self-attention
    "feedforward-tied": 5,  # and feed-forward is the encoder's own
}


def segments(source: Tensor) -> tuple[Tensor, Tensor]:
    """Which text each token of <s> source </s> machine output </s> is of (0, 1), and its place in that text."""
    ends = source == EOS
    second = (ends.cumsum(1) - ends.long()) > 0
    place = torch.arange(source.shape[1], device=source.device).expand_as(source)
    place = torch.where(second, place - (~second).sum(1, keepdim=True), place)
    return second.long(), torch.where(source == PAD, 0, place)


@dataclass
class PostState:
    """What the decoder keeps, and what words of neither text pay, if they do."""

    memory: Tensor
    allowed: Tensor
    caches: list[tuple[KeyValueCache, KeyValueCache]]
    penalty: Penalty | None

    def chosen(self, rows: Tensor, same: bool = False) -> PostState:
        caches = [(reordered(own, rows), context if same else reordered(context, rows)) for own, context in self.caches]
        memory, allowed = (self.memory, self.allowed) if same else (self.memory[rows], self.allowed[rows])
        penalty = None if self.penalty is None else self.penalty.chosen(rows)
        return PostState(memory, allowed, caches, penalty)


class PostEditor(Seq2Seq):
    """BERT reads source and machine output; BERT, made causal and attending to that, writes the post-edit.

    Args:
        size: of the vocabulary.
        shape: of the BERT.
        kind: what the decoder takes over, as in ``SHARING``.
        encoder: the mapping of the encoder's self-attention.
        decoder: that of the decoder's self-attention.
        context: that of its attention to the encoder.
        output: that of the output, whose scores are by the embedding.
        conserve: taken off the log-probability of an output for each of its words that is in neither text.
        pieces: what the numbers of the vocabulary are called; only ``conserve`` asks.

    Reference: Correia and Martins, A Simple and Effective Approach to Automatic Post-Editing with Transfer Learning,
    ACL 2019; for ``conserve``, Lopes et al., Unbabel's Submission to the WMT2019 APE Shared Task, WMT 2019.
    """

    def __init__(
        self,
        size: int,
        shape: Shape,
        kind: Kind,
        encoder: Choice,
        decoder: Choice,
        context: Choice,
        output: Choice,
        conserve: float = 0.0,
        pieces: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.shape, self.kind = shape, kind
        self.conserve, self.vocabulary = conserve, Vocabulary(pieces)
        self.words = nn.Embedding(size, shape.width, PAD)
        self.places, self.texts = nn.Embedding(shape.positions, shape.width), nn.Embedding(2, shape.width)
        self.norm, self.dropout = nn.LayerNorm(shape.width, shape.eps), nn.Dropout(shape.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(shape, encoder) for _ in range(shape.layers))
        self.decoder = nn.ModuleList(self._decoder_layer(layer, decoder, context) for layer in self.encoder)
        self.output = Output(shape.width, size, output, self.words)
        self.apply(_start)

    def _decoder_layer(self, twin: nn.Module, decoder: Choice, context: Choice) -> DecoderLayer:
        """A layer that shares with its twin in the encoder what the kind of the model says."""
        assert isinstance(twin, EncoderLayer)
        shape, shared = self.shape, SHARING[self.kind]

        def norm() -> nn.LayerNorm:
            return nn.LayerNorm(shape.width, shape.eps)

        tied = shared >= SHARING["self-tied"]
        own = Attend(
            shape,
            decoder,
            twin.own.projections if tied else Projections(shape.width),
            twin.own.norm if tied else norm(),
        )
        matrices = own.projections if shared >= SHARING["context-tied"] else Projections(shape.width)
        think = twin.think if shared >= SHARING["feedforward-tied"] else Think(shape)
        return DecoderLayer(own, Attend(shape, context, matrices, norm()), think)

    @torch.no_grad()
    def take(self, bert: Any, order: list[int]) -> None:
        """The weights of a ``transformers.BertModel``, as far as the kind of the model takes them over.

        ``order`` has BERT's number of each of ours.
        """
        embeddings = bert.embeddings
        self.words.weight.copy_(embeddings.word_embeddings.weight[order])
        self.places.load_state_dict(embeddings.position_embeddings.state_dict())
        self.texts.load_state_dict(embeddings.token_type_embeddings.state_dict())
        self.norm.load_state_dict(embeddings.LayerNorm.state_dict())
        shared = SHARING[self.kind]
        for theirs, mine, layer in zip(bert.encoder.layer, self.encoder, self.decoder, strict=True):
            assert isinstance(mine, EncoderLayer) and isinstance(layer, DecoderLayer)
            _take_layer(theirs, mine.own, mine.think)
            if shared >= SHARING["bert"]:
                _take_layer(theirs, layer.own, layer.think)
            if shared >= SHARING["context-from-self"]:
                layer.context.projections.load_state_dict(layer.own.projections.state_dict())
                layer.context.norm.load_state_dict(layer.own.norm.state_dict())

    def embed(self, tokens: Tensor, texts: Tensor, places: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.norm(self.words(tokens) + self.texts(texts) + self.places(places)))
        return out

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        allowed = source != PAD
        x = self.embed(source, *segments(source))
        for layer in self.encoder:
            x = layer(x, allowed)
        return x, allowed

    def entered(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Tokens of post-edits (B, T), which are text 1 as machine outputs are, from the place ``first`` on."""
        places = torch.arange(first, first + tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self.embed(tokens, torch.ones_like(tokens), places)

    def start(self, source: Tensor) -> PostState:
        memory, allowed = self.encode(source)
        penalty = Penalty.of(self.vocabulary, self.conserve, source) if self.conserve else None
        caches = [(KeyValueCache(), KeyValueCache(static=True)) for _ in self.decoder]
        return PostState(memory, allowed, caches, penalty)

    def advance(self, tokens: Tensor, state: PostState) -> tuple[Tensor, PostState, Tensor]:
        """The attention is the last layer's, averaged over its heads."""
        x = self.entered(tokens.unsqueeze(1), len(state.caches[0][0]))
        seen = None
        for layer, caches in zip(self.decoder, state.caches, strict=True):
            x, seen = layer(x, state.memory, state.allowed, caches, weights=layer is self.decoder[-1])
        assert seen is not None
        state.penalty = state.penalty and state.penalty.entered(tokens)
        return x[:, 0], state, seen.mean(1)[:, 0]

    def next_logs(self, hidden: Tensor, state: PostState) -> Tensor:
        logs: Tensor = self.output(hidden)
        return logs if state.penalty is None else logs - state.penalty.costs().to(logs)

    def hidden(self, source: Tensor, entered: Tensor) -> Tensor:
        memory, allowed = self.encode(source)
        x = self.entered(entered)
        for layer in self.decoder:
            x, _ = layer(x, memory, allowed)
        return x


def _start(module: nn.Module) -> None:
    """As BERT begins."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _take_layer(theirs: Any, own: Attend, think: Think) -> None:
    attention, output = theirs.attention.self, theirs.attention.output
    pairs = [
        (own.projections.query, attention.query),
        (own.projections.key, attention.key),
        (own.projections.value, attention.value),
        (own.projections.out, output.dense),
        (own.norm, output.LayerNorm),
        (think.inner, theirs.intermediate.dense),
        (think.outer, theirs.output.dense),
        (think.norm, theirs.output.LayerNorm),
    ]
    for mine, other in pairs:
        mine.load_state_dict(other.state_dict())
