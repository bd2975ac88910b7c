"""What reads the text: an LSTM with dropped recurrent weights, or a Transformer with any attention mapping."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ..._attention import MultiheadAttention
from ...heads import Head, make_head
from ..kit.heads import own_settings
from ..kit.output import attention_words
from .settings import Model, Settings

State = tuple[Tensor, Tensor] | None


def head_of(own: Model, size: int, embedding: nn.Embedding) -> Head:
    settings = own_settings(own)
    if own.head == "linear" or own.head.startswith("mixture"):
        settings |= {"mapping": own.output.mapping, **own.output.own()}
    return make_head(own.head, own.embedding, size, tied=embedding if own.tied else None, **settings)


class Lstm(nn.Module):
    """Words (T, B) → hidden states (T, B, width), and the state to go on with."""

    def __init__(self, own: Model) -> None:
        super().__init__()
        self.rnn = nn.LSTM(own.embedding, own.hidden, own.layers, dropout=own.dropout if own.layers > 1 else 0.0)
        self.out = nn.Linear(own.hidden, own.embedding)
        self.weight_drop = own.weight_drop

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if self.weight_drop and self.training:
            names = [name for name, _ in self.rnn.named_parameters() if name.startswith("weight_hh")]
            dropped = {name: F.dropout(getattr(self.rnn, name), self.weight_drop) for name in names}
            hidden, state = functional_call(self.rnn, dropped, (x, state))
        else:
            hidden, state = self.rnn(x, state)
        return self.out(hidden), state


class Block(nn.Module):
    def __init__(self, own: Model) -> None:
        super().__init__()
        words = attention_words(own.attention, own.heads)
        self.norms = nn.ModuleList(nn.LayerNorm(own.embedding) for _ in range(2))
        self.attention = MultiheadAttention(own.embedding, own.heads, batch_first=True, **words)
        self.inner = nn.Sequential(
            nn.Linear(own.embedding, own.hidden), nn.GELU(), nn.Linear(own.hidden, own.embedding)
        )
        self.drop = nn.Dropout(own.dropout)

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.drop(self.attention(y, y, y, attn_mask=later, need_weights=False)[0])
        out: Tensor = x + self.drop(self.inner(self.norms[1](x)))
        return out


class Transformer(nn.Module):
    """Words (T, B) → hidden states (T, B, width); each window of the text is read by itself."""

    def __init__(self, own: Model, window: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.02 * torch.randn(window, 1, own.embedding))
        self.blocks = nn.ModuleList(Block(own) for _ in range(own.layers))
        self.norm = nn.LayerNorm(own.embedding)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        later = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
        x = (x + self.positions[: len(x)]).transpose(0, 1)
        for block in self.blocks:
            x = block(x, later)
        return self.norm(x).transpose(0, 1), None


class LanguageModel(nn.Module):
    """Numbers of words (T, B) → hidden states (T, B, width) for the head."""

    def __init__(self, settings: Settings, size: int) -> None:
        super().__init__()
        own = settings.model
        self.window = settings.train.window if own.kind == "transformer" else None
        self.embedding = nn.Embedding(size, own.embedding)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.network = Lstm(own) if own.kind == "lstm" else Transformer(own, settings.train.window)
        self.drop = nn.Dropout(own.dropout)
        self.head = head_of(own, size, self.embedding)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        hidden, state = self.network(self.drop(self.embedding(x)), state)
        return self.drop(hidden), state
