"""Examples in tokens, and the encoder in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ...parameters import set_step
from ..kit.training import Task
from ..text.lengths import Bucketed, in_order
from .data import Example, class_of, number_of
from .encoder import Encoder
from .settings import Settings

TOKENS = 8192  # of a batch without gradients


class Batch(NamedTuple):
    """What the encoder is called with, and what is to be said: a class, or a number (N,)."""

    inputs: dict[str, Tensor]
    wanted: Tensor


class Tokens:
    """Texts in tokens; ``long`` are the numbers of those with more than the encoder is to take, which are cut."""

    def __init__(self, texts: Sequence[tuple[str, ...]], tokenizer: Any, most: int) -> None:
        self.padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        self.rows: list[dict[str, list[int]]] = []
        self.lengths: list[int] = []  # before they were cut
        self.long: list[int] = []
        if not texts:
            return
        options = {"split_special_tokens": True, "verbose": False}  # a text that says [SEP] does not mean it
        found = dict(tokenizer(*map(list, zip(*texts, strict=True)), **options))
        self.rows = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        self.lengths = [len(row["input_ids"]) for row in self.rows]
        self.long = [at for at, length in enumerate(self.lengths) if length > most]
        for at in self.long:
            self.rows[at] = dict(tokenizer(*texts[at], truncation=True, max_length=most, **options))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> list[int]:
        return [len(row["input_ids"]) for row in self.rows]

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        rows = [self.rows[index] for index in indices]
        return {
            name: pad_sequence([torch.tensor(row[name]) for row in rows], True, self.padding.get(name, 0))
            for name in rows[0]
        }


class Examples(Tokens):
    """Texts in tokens, with what is to be said of them."""

    def __init__(self, examples: Sequence[Example], classes: list[str], encoder: Encoder, most: int) -> None:
        super().__init__([one.texts for one in examples], encoder.tokenizer, most)
        self.examples = examples
        said = [class_of(one, classes) for one in examples] if classes else [number_of(one) for one in examples]
        self.wanted = torch.tensor(said, dtype=torch.long if classes else torch.float32)

    def make(self, indices: Sequence[int]) -> Batch:
        return Batch(self.batch(indices), self.wanted[list(indices)])


class FineTuning(Task[Batch]):
    """Trains an encoder on ``train``, which may be empty. No ``classes``: it says a number."""

    unit = "tokens"

    def __init__(
        self, encoder: Encoder, settings: Settings, classes: list[str], train: Examples, val: Examples
    ) -> None:
        super().__init__(settings.train, Bucketed(train.sizes, settings.train.batch_tokens, train.make))
        self.model, self.tokenizer, self.classes = encoder.model, encoder.tokenizer, classes
        self.columns, self.train_examples, self.val = settings.data.text, train, val
        self.monitor, self.mode = ("accuracy", "max") if classes else ("loss", "min")
        self.train()  # what transformers has loaded is not, and Lightning leaves it so

    @property
    def encoder(self) -> Encoder:
        return Encoder(self.model, self.tokenizer)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Scores of the classes (N, C), or numbers (N,)."""
        logits: Tensor = self.model(**inputs).logits
        return logits if self.classes else logits[:, 0]

    def loss(self, batch: Batch) -> Tensor:
        return self.loss_of(self(batch.inputs), batch.wanted)

    def loss_of(self, said: Tensor, wanted: Tensor, reduction: str = "mean") -> Tensor:
        function = F.cross_entropy if self.classes else F.mse_loss
        return function(said, wanted, reduction=reduction)

    def amount(self, batch: Batch) -> int:
        return int(batch.inputs["attention_mask"].sum())

    def on_train_batch_start(self, batch: Batch, index: int) -> None:
        super().on_train_batch_start(batch, index)
        set_step(self.model, self.global_step)

    def at_the_end(self) -> None:
        """Let the mapping have the setting that it is to end with."""
        set_step(self.model, self.train_settings.steps)

    @torch.no_grad()
    def said(self, tokens: Tokens) -> Tensor:
        """Scores or numbers for all of the texts, in their order."""
        parts, order = [], []
        for indices in in_order(tokens.sizes, TOKENS):
            inputs = {name: part.to(self.device) for name, part in tokens.batch(indices).items()}
            parts.append(self(inputs).float().cpu())
            order += indices
        return torch.cat(parts)[torch.tensor(order).argsort()]

    def validate(self) -> dict[str, float]:
        """With the setting of the end, since that is what the weights are to be good for."""
        self.at_the_end()
        said, wanted = self.said(self.val), self.val.wanted
        found = {"loss": self.loss_of(said, wanted).item()}
        return {"accuracy": (said.argmax(-1) == wanted).float().mean().item(), **found} if self.classes else found
