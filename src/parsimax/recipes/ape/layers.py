"""The parts of a BERT layer, each of which encoder and decoder may share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..._attention import AttentionCore, KeyValueCache
from ..kit.choice import Choice
from ..kit.output import attention_words


@dataclass(frozen=True)
class Shape:
    """Sizes of a BERT, as its config has them, and the dropout of fine-tuning."""

    width: int
    heads: int
    layers: int
    inner: int
    positions: int
    eps: float
    activation: str
    dropout: float
    attention_dropout: float

    @classmethod
    def of(cls, config: dict[str, Any], dropout: float, attention_dropout: float) -> Shape:
        return cls(
            config["hidden_size"],
            config["num_attention_heads"],
            config["num_hidden_layers"],
            config["intermediate_size"],
            config["max_position_embeddings"],
            config["layer_norm_eps"],
            config["hidden_act"],
            dropout,
            attention_dropout,
        )


class Projections(nn.Module):
    """The four matrices of an attention layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))


class Attend(nn.Module):
    """Attend, add, normalise. The mapping and its α are this layer's own, whoever shares its matrices."""

    def __init__(self, shape: Shape, choice: Choice, projections: Projections, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.projections, self.norm = projections, norm
        self.core = AttentionCore(shape.heads, **attention_words(choice, shape.heads))
        self.dropout, self.attention_dropout = nn.Dropout(shape.dropout), shape.attention_dropout

    def split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.core.num_heads, -1)).transpose(1, 2)
        return heads

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        allowed: Tensor | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The new states of ``x`` (B, T, width), and the weights (B, heads, T, S) if wanted.

        ``allowed`` (B, S) says which keys are no padding. With a cache, ``x`` is one token.
        """
        seen = x if memory is None else memory
        if cache is None or not (cache.static and cache.filled):
            key, value = self.split(self.projections.key(seen)), self.split(self.projections.value(seen))
            if cache is not None:
                cache.append(key, value)
        if cache is not None:
            key, value = cache.key, cache.value
        mask = None if allowed is None else allowed[:, None, None, :]
        found = self.core(
            self.split(self.projections.query(x)),
            key,
            value,
            mask,
            self.attention_dropout if self.training else 0.0,
            causal and cache is None,
            return_weights=weights,
        )
        context, given = found if weights else (found, None)
        out = self.projections.out(context.transpose(1, 2).flatten(-2))
        return self.norm(x + self.dropout(out)), given


class Think(nn.Module):
    """Two linear layers, add, normalise."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        from transformers.activations import ACT2FN

        self.inner, self.outer = nn.Linear(shape.width, shape.inner), nn.Linear(shape.inner, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.eps)
        self.activation, self.dropout = ACT2FN[shape.activation], nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x + self.dropout(self.outer(self.activation(self.inner(x)))))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, shape: Shape, choice: Choice) -> None:
        super().__init__()
        self.own = Attend(shape, choice, Projections(shape.width), nn.LayerNorm(shape.width, shape.eps))
        self.think = Think(shape)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        out: Tensor = self.think(self.own(x, allowed=allowed)[0])
        return out


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder with a normalisation of its own, feed-forward."""

    def __init__(self, own: Attend, context: Attend, think: Think) -> None:
        super().__init__()
        self.own, self.context, self.think = own, context, think

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        allowed: Tensor,
        caches: tuple[KeyValueCache, KeyValueCache] | tuple[None, None] = (None, None),
        weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        x, _ = self.own(x, causal=True, cache=caches[0])
        x, seen = self.context(x, memory, allowed, cache=caches[1], weights=weights)
        return self.think(x), seen
