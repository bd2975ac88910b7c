"""What search and training know of a model: it encodes a source, and continues a target one token at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from torch import Tensor, nn

from ...kit.output import Output
from ..codec import PAD
from .examples import Batch


class State(Protocol):
    """What a decoder keeps between steps, one row per hypothesis."""

    def chosen(self, rows: Tensor, same: bool = False) -> Any:
        """The state of these rows, in this order; a row may repeat.

        ``same``: row by row they are of the sources that there were, so that what belongs to a source can stay.
        """


class Seq2Seq(nn.Module, ABC):
    """An encoder and a decoder with an output."""

    output: Output

    @abstractmethod
    def start(self, source: Tensor) -> State:
        """The state before the first token, for sources (B, S) that end with </s>."""

    @abstractmethod
    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any, Tensor]:
        """Enter the last token (B,): the hidden state (B, width), the new state, the attention to the source (B, S)."""

    @abstractmethod
    def hidden(self, source: Tensor, entered: Tensor) -> Tensor:
        """The hidden states (B, T, width) of whole targets."""

    def next_logs(self, hidden: Tensor, state: Any) -> Tensor:
        """The log-probabilities (B, size) that search adds up; a model may lower some, and must raise none.

        Search writes to the tensor, so it is a new one at each call.
        """
        logs: Tensor = self.output(hidden)
        return logs

    def forward(self, source: Tensor, entered: Tensor) -> Tensor:
        """The same, by which ``analysis.record`` knows where a batch begins and ends."""
        return self.hidden(source, entered)

    def loss(self, batch: Batch, smoothing: float = 0.0) -> Tensor:
        hidden = self(batch.source, batch.entered)
        return self.output.loss(hidden, batch.wanted, ignore_index=PAD, label_smoothing=smoothing)
