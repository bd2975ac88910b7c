"""Sender and receiver of Lazaridou et al. (2017), as Correia et al. (2020) train them."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...latent import Best, Expected, expected_loss
from ..images.data import Images
from ..images.methods import as_vector, at_step, judge_of, method_of, mlp
from ..images.recipe import ImageTask
from ..kit.batches import Shuffled
from ..kit.recipe import DataError
from .settings import Settings

SHOWN = 1000  # images of an evaluation
MANY = 4  # messages an image


def judged(images: Images) -> int:
    return min(SHOWN, len(images))


def unit(pixels: Tensor) -> Tensor:
    return F.normalize(pixels, dim=-1)


class Looking(nn.Module):
    """The same small net for each number, as a 1 × 1 filter."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(1, hidden), nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        looked: Tensor = self.narrow(torch.sigmoid(self.wide(x.unsqueeze(-1)))).squeeze(-1)
        return looked.sigmoid()


def sender(kind: str, size: int, width: int, hidden: int, messages: int) -> nn.Sequential:
    """An image → scores of the messages."""
    if kind == "mlp":
        return mlp(size, width, messages)
    return nn.Sequential(nn.Linear(size, width, bias=False), Looking(hidden), nn.Linear(width, messages))


class Game(ImageTask):
    """The receiver's loss is its surprise at the right image, in expectation over the message.

    Or, with ``reward=right``, its chance to choose another: the 0/1 loss, in expectation over its choice too.
    """

    monitor, mode, unit = "accuracy", "max", "images"

    def __init__(self, settings: Settings, train: Images, val: Images) -> None:
        own = settings.model
        for images in (train, val):
            if len(images) < own.candidates:
                raise DataError(f"model.candidates={own.candidates} are more than the {len(images)} images of a split")
        self.size, self.brightest = train.levels.shape[1], train.brightest
        super().__init__(
            settings.train,
            Shuffled(len(train), settings.train.batch, lambda some: self.round(train, some)),
        )
        self.settings, self.val = settings, val
        self.sender = sender(own.sender, self.size, own.width, own.hidden, own.messages)
        self.look = nn.Linear(self.size, own.width, bias=False)
        self.listen = nn.Linear(own.messages, own.width, bias=False)
        nn.init.normal_(self.listen.weight)  # a word vector for each message
        self.method = method_of(own.method, settings.latent, self.size)

    def round(self, images: Images, some: list[int]) -> tuple[Tensor, Tensor]:
        """The right images (N, size), and all candidates (N, candidates, size), the right one first, of length 1."""
        chance = random.Random(repr(some))
        others = [chance.sample(range(len(images)), self.settings.model.candidates) for _ in some]
        shown = [
            [right, *[o for o in other if o != right]][: len(other)] for right, other in zip(some, others, strict=True)
        ]
        return unit(images.pixels(some)), unit(images.pixels(torch.tensor(shown)))

    def scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.sender(x) / self.settings.model.temperature
        return scores

    def play(self, x: Tensor, candidates: Tensor, method: nn.Module) -> Expected:
        seen = self.look(candidates)

        def surprise(example: Tensor, z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            if not z.is_floating_point() and len(z) > MANY * len(x):  # one product costs less than a copy for each pair
                scores = (seen @ self.listen.weight)[example, :, z]
            else:
                heard = self.listen(as_vector(z, self.settings.model.messages))
                scores = torch.einsum("pcw,pw->pc", seen.index_select(0, example), heard)
            right = (scores[:, :1] > scores[:, 1:]).all(-1)
            log_p = torch.log_softmax(scores, -1)[:, 0]
            wrong = -log_p if self.settings.model.reward == "log" else -log_p.expm1()
            return wrong, {"right": right.float(), "surprise": -log_p}

        return expected_loss(self.scores(x), surprise, method, context=x)  # type: ignore[arg-type]

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        own = self.settings.latent
        at_step(self.method, self.global_step, own)
        out = self.play(*batch, self.method)
        self.log("train/calls", out.calls.float().mean())
        return (out.loss - own.entropy * out.entropy).mean() + out.baseline_loss

    def amount(self, batch: tuple[Tensor, Tensor]) -> int:
        return len(batch[0])

    @torch.no_grad()
    def figures(self, images: Images) -> dict[str, float]:
        """Every method by its most probable message, and in expectation over the messages that its sender may say."""
        torch.manual_seed(0)
        x, candidates = (part.to(self.device) for part in self.round(images, [*range(judged(images))]))
        best, own, every = (self.play(x, candidates, how) for how in (Best(), self.method, judge_of(self.method)))
        return {
            "accuracy": best.metrics["right"].mean().item(),
            "expected accuracy": every.metrics["right"].mean().item(),
            "calls": own.calls.float().mean().item(),
            "messages": float(best.z.unique().numel()),
            "loss": best.metrics["surprise"].mean().item(),
        }

    def validate(self) -> dict[str, float]:
        return self.figures(self.val)

    def describe(self, pixels: Tensor) -> list[dict[str, Any]]:
        return [{"message": message} for message in self.scores(unit(pixels)).argmax(-1).tolist()]

    @torch.no_grad()
    def shared(self, images: Images, rows: int = 10, columns: int = 10) -> list[tuple[str, list[Tensor]]]:
        """The messages that most images share, each with some of them."""
        message = self.scores(unit(images.pixels())).argmax(-1)
        found, counts = message.unique(return_counts=True)
        kept = found[counts.argsort(descending=True, stable=True)][:rows].tolist()
        return [(f"message {m}", [*images.pixels((message == m).nonzero()[:columns, 0])]) for m in kept]
