"""A bidirectional LSTM encoder and an attention LSTM decoder with input feeding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._attention import AttentionCore
from ..kit.choice import Choice
from ..kit.output import Output, attention_words
from ..text.codec import PAD
from ..text.seq2seq.model import Seq2Seq


@dataclass(frozen=True)
class LstmState:
    memory: Tensor  # (B, S, width), the encoded source
    real: Tensor  # (B, S), where it is not padding
    cells: tuple[Tensor, Tensor]  # (layers, B, width) each
    feed: Tensor  # (B, width), what the last step saw

    def chosen(self, rows: Tensor, same: bool = False) -> LstmState:
        return LstmState(
            self.memory if same else self.memory[rows],
            self.real if same else self.real[rows],
            (self.cells[0][:, rows], self.cells[1][:, rows]),
            self.feed[rows],
        )


class Lstm(Seq2Seq):
    """Reads characters and tags in both directions, and writes characters, looking back at each step.

    Args:
        size: of the vocabulary, which source and target share.
        width: of hidden states and embeddings, even.
        layers: of encoder and decoder.
        dropout: on embeddings and between layers.
        attention: the mapping of the attention.
        output: that of the output.
        tied: score the output with the embedding.

    Reference: Luong, Pham and Manning, Effective Approaches to Attention-based NMT, 2015; Peters, Niculae and Martins,
    Sparse Sequence-to-Sequence Models, ACL 2019.
    """

    def __init__(
        self, size: int, width: int, layers: int, dropout: float, attention: Choice, output: Choice, tied: bool
    ) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"Lstm: width must be even, for two directions, got {width}")
        self.embedding = nn.Embedding(size, width, PAD)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        between = dropout if layers > 1 else 0.0
        self.encoder = nn.LSTM(width, width // 2, layers, batch_first=True, dropout=between, bidirectional=True)
        self.decoder = nn.LSTM(2 * width, width, layers, batch_first=True, dropout=between)
        self.bridge = nn.Linear(width, width)
        self.look = nn.Linear(width, width, bias=False)
        self.context = AttentionCore(1, **attention_words(attention, 1))
        self.mix = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.output = Output(width, size, output, self.embedding if tied else None)

    def start(self, source: Tensor) -> LstmState:
        real = source != PAD
        embedded = self.dropout(self.embedding(source))
        packed = nn.utils.rnn.pack_padded_sequence(embedded, real.sum(1).cpu(), True, enforce_sorted=False)
        states, (last, _) = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(states, True, total_length=source.shape[1])
        layers = self.decoder.num_layers
        both = last.view(layers, 2, len(source), -1).transpose(1, 2).flatten(2)  # (layers, B, width)
        begin = torch.tanh(self.bridge(both))
        return LstmState(memory, real, (begin, torch.zeros_like(begin)), memory.new_zeros(memory.shape[::2]))

    def advance(self, tokens: Tensor, state: LstmState) -> tuple[Tensor, LstmState, Tensor]:
        keys = self.look(state.memory).unsqueeze(1)
        layers = self._layers()
        ahead = self._ahead(self.dropout(self.embedding(tokens)))
        hidden, state, weights = self._step(ahead, layers, keys, state, weights=True)
        assert weights is not None
        return hidden, state, weights

    def hidden(self, source: Tensor, entered: Tensor) -> Tensor:
        state = self.start(source)
        keys = self.look(state.memory).unsqueeze(1)
        layers = self._layers()
        seen = []
        for ahead in self._ahead(self.dropout(self.embedding(entered))).unbind(1):
            hidden, state, _ = self._step(ahead, layers, keys, state)
            seen.append(hidden)
        return torch.stack(seen, 1)

    def _ahead(self, embedded: Tensor) -> Tensor:
        """What the embedded tokens (…, width) add to the gates of the first layer, which is known before any step."""
        first: Any = self.decoder
        return F.linear(embedded, first.weight_ih_l0[:, : embedded.shape[-1]], first.bias_ih_l0 + first.bias_hh_l0)

    def _layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias from a layer's input and hidden state to its gates; of the first what ``_ahead`` leaves."""
        layers: list[tuple[Tensor, Tensor | None]] = []
        for number in range(self.decoder.num_layers):
            inner, outer, one, other = (
                getattr(self.decoder, f"{name}_l{number}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            weight = inner if number else inner[:, inner.shape[1] // 2 :]
            layers.append((torch.cat([weight, outer], 1).t(), one + other if number else None))
        return layers

    def _decode(
        self, ahead: Tensor, layers: list[tuple[Tensor, Tensor | None]], state: LstmState
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step of the decoder's LSTM: its output (B, width) and cells.

        As ``self.decoder`` computes it; with one matrix product a layer, training is faster than by a call a step.
        """
        out, hidden, memory = state.feed, [], []
        for number, (weight, bias) in enumerate(layers):
            before, cell = state.cells[0][number], state.cells[1][number]
            if number:
                out = F.dropout(out, self.decoder.dropout, self.training)
            gates = torch.addmm(ahead if bias is None else bias, torch.cat([out, before], -1), weight)
            enter, keep, new, show = gates.chunk(4, -1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(new)
            out = torch.sigmoid(show) * torch.tanh(cell)
            hidden.append(out)
            memory.append(cell)
        return out, (torch.stack(hidden), torch.stack(memory))

    def _step(
        self,
        ahead: Tensor,
        layers: list[tuple[Tensor, Tensor | None]],
        keys: Tensor,
        state: LstmState,
        weights: bool = False,
    ) -> tuple[Tensor, LstmState, Tensor | None]:
        out, cells = self._decode(ahead, layers, state)
        query, values, allowed = out[:, None, None], state.memory.unsqueeze(1), state.real[:, None, None]
        if weights:
            context, seen = self.context(query, keys, values, attn_mask=allowed, return_weights=True)
        else:  # the kernel does not make them
            context, seen = self.context(query, keys, values, attn_mask=allowed), None
        feed = torch.tanh(self.mix(torch.cat([out, context[:, 0, 0]], -1)))
        after = LstmState(state.memory, state.real, cells, feed)
        return self.dropout(feed), after, None if seen is None else seen[:, 0, 0]
