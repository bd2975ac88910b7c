"""The network and its training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kit.batches import Shuffled
from ..kit.training import Task
from .data import Rows
from .layers import LabelLayer
from .settings import Settings

Batch = tuple[Tensor, Tensor]
FAR = 1e30  # deviations: the sums over a layer of what is further away may have no value in float32


class Scaled(nn.Module):
    """Numbers less their mean, by their deviation, as the training rows have them; part of the weights of a run."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("deviation", torch.ones(columns))

    def learn(self, numbers: Tensor) -> None:
        exact = numbers.double()
        self.mean.copy_(exact.mean(0))
        self.deviation.copy_(exact.std(0, correction=0))
        constant = ~self(numbers).isfinite().all(0)  # or so small a deviation that float32 has 0 in its place
        self.deviation[constant] = 1.0

    def forward(self, numbers: Tensor) -> Tensor:
        return (numbers - self.mean) / self.deviation


def network(settings: Settings, columns: int) -> nn.Sequential:
    """Numbers (N, columns) → hidden states (N, width)."""
    own = settings.model
    end = [nn.ReLU(), nn.Dropout(own.dropout)]
    if own.net == "mlp":
        return nn.Sequential(Scaled(columns), nn.Linear(columns, own.width), *end)
    channels, height, width = settings.data.shape
    half = (-(-height // 2), -(-width // 2))
    return nn.Sequential(
        Scaled(columns),
        nn.Unflatten(1, (channels, height, width)),
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * half[0] * half[1], own.width),
        *end,
    )


class Labels(Task[Batch]):
    """Numbers → a hidden layer → probabilities of labels. ``train`` and ``val`` may have no rows."""

    monitor, mode, unit = "micro F1", "max", "rows"

    def __init__(self, settings: Settings, train: Rows, val: Rows) -> None:
        size = settings.train.batch
        super().__init__(
            settings.train, Shuffled(len(train.numbers), size, lambda some: (train.numbers[some], train.labels[some]))
        )
        self.columns, self.names, self.val = train.columns, train.names, val
        self.hidden = network(settings, len(train.columns))
        self.layer = LabelLayer(settings.model, settings.model.width, len(train.names))
        if len(train.numbers):
            self.hidden[0].learn(train.numbers)  # type: ignore[operator]

    def too_far(self, numbers: Tensor) -> str | None:
        """The first column of rows (N, columns) with a number more than ``FAR`` deviations from the mean, if one is."""
        wrong = (~(self.hidden[0](numbers.to(self.device)).abs() <= FAR)).any(0)
        return self.columns[int(wrong.int().argmax())] if wrong.any() else None

    def forward(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.layer(self.hidden(numbers))
        return found

    def loss(self, batch: Batch) -> Tensor:
        return self.layer.loss(self.hidden(batch[0]), batch[1])

    def amount(self, batch: Batch) -> int:
        return len(batch[0])

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        numbers, wanted = self.val.numbers.to(self.device), self.val.labels.to(self.device)
        p, _ = self(numbers)
        self.layer.tune(p, wanted)
        given = p > self.layer.threshold
        right = 2 * int((given & wanted).sum())
        most = int(given.sum() + wanted.sum())
        return {"micro F1": right / most if most else 0.0, "loss": self.loss((numbers, wanted)).item()}
