"""The network and its training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kit.batches import Shuffled
from ..kit.output import Output
from ..kit.training import Task
from .images import CLASSES, SIDE, Images
from .settings import Settings


class Digits(Task[Images]):
    """Pixels → a hidden layer → probabilities of the digits."""

    monitor, mode, unit = "accuracy", "max", "images"

    def __init__(self, settings: Settings, train: Images, val: Images) -> None:
        super().__init__(
            settings.train,
            Shuffled(
                len(train.digits), settings.train.batch, lambda some: Images(train.pixels[some], train.digits[some])
            ),
        )
        own = settings.model
        self.hidden = nn.Sequential(nn.Linear(SIDE * SIDE, own.width), nn.ReLU(), nn.Dropout(own.dropout))
        self.output = Output(own.width, CLASSES, own.output)
        self.val = val

    def forward(self, pixels: Tensor) -> Tensor:
        return self.output.probs(self.hidden(pixels))

    def loss(self, batch: Images) -> Tensor:
        return self.output.loss(self.hidden(batch.pixels), batch.digits)

    def amount(self, batch: Images) -> int:
        return len(batch.digits)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        val = Images(*(part.to(self.device) for part in self.val))
        right = self(val.pixels).argmax(-1) == val.digits
        return {"accuracy": right.float().mean().item(), "loss": self.loss(val).item()}
