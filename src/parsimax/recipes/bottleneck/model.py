"""Contexts that are free vectors, and what a head makes of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...heads import Head, make_head
from ..kit.batches import Shuffled
from ..kit.heads import own_settings
from ..kit.training import Task
from .settings import Data, Model, Settings


class Rows(NamedTuple):
    """Numbers of contexts (n,), and the distribution of each (n, classes)."""

    contexts: Tensor
    wanted: Tensor


def distributions(data: Data) -> Tensor:
    """(contexts, classes), drawn in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(data.seed)
        weights = torch.full((data.classes,), data.concentration, dtype=torch.float64)
        p: Tensor = torch.distributions.Dirichlet(weights).sample((data.contexts,))
    return p.float()


def head_of(model: Model, classes: int) -> Head:
    return make_head(model.head, model.width, classes, bias=False, **own_settings(model))


class Bottleneck(Task[Rows]):
    """Fits every distribution; there is nothing held out, since each context has a vector of its own."""

    monitor, unit = "KL", "contexts"

    def __init__(self, settings: Settings) -> None:
        data = settings.data
        self.wanted = distributions(data)
        batch = settings.train.batch or data.contexts
        super().__init__(settings.train, Shuffled(data.contexts, batch, self.rows))
        self.vectors = nn.Parameter(torch.randn(data.contexts, settings.model.width) * settings.model.width**-0.5)
        self.head = head_of(settings.model, data.classes)
        with torch.no_grad():
            self.head.weight.normal_()
        self.entropy = -torch.special.xlogy(self.wanted.double(), self.wanted.double()).sum(-1).mean().item()

    def rows(self, indices: list[int]) -> Rows:
        some = torch.tensor(sorted(indices))
        return Rows(some, self.wanted[some])

    def loss(self, batch: Rows) -> Tensor:
        return self.head.loss(self.vectors[batch.contexts], batch.wanted)

    def amount(self, batch: Rows) -> int:
        return len(batch.contexts)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The share of contexts whose likeliest word is right, and KL(P‖Q)."""
        right, total = 0, 0.0
        for part in torch.arange(len(self.wanted)).split(1024):
            wanted, logs = self.wanted[part].to(self.device), self.head(self.vectors[part])
            right += int((logs.argmax(-1) == wanted.argmax(-1)).sum())
            total -= torch.where(wanted > 0, wanted * logs, 0).sum(dtype=torch.float64).item()
        count = len(self.wanted)
        return {"mode match": right / count, "KL": total / count - self.entropy, "loss": total / count}
