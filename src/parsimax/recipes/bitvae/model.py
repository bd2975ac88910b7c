"""The bit-vector VAE of Correia et al. (2020)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...latent import Best, Expected, expected_loss
from ...losses import linear_entmax_loss
from ...structured import Bits
from ..images.data import Images
from ..images.methods import at_step, judge_of, method_of, mlp
from ..images.recipe import ImageTask
from ..kit.batches import Shuffled
from .settings import Settings

SHOWN, SAMPLES, CHUNK = 1000, 256, 64
DRAWN = 16  # vectors of an image for its distortion, where they cannot be summed
KEPT = 0.95  # of a bit's probability in an estimate; the rest is a coin


class BitVAE(ImageTask):
    """x → scores of bits → z → the levels of every pixel. The prior is uniform over the vectors that are allowed."""

    monitor, mode, unit = "loss", "min", "images"

    def __init__(self, settings: Settings, train: Images, val: Images) -> None:
        own = settings.model
        self.size, self.brightest = train.levels.shape[1], train.brightest

        def make(some: list[int]) -> Tensor:
            return train.levels[some]

        super().__init__(settings.train, Shuffled(len(train), settings.train.batch, make))
        self.settings, self.val = settings, val
        self.encoder = mlp(self.size, own.width, own.bits)
        self.decoder = mlp(own.bits, own.width, self.size * own.rank)
        self.to_levels = nn.Linear(own.rank, self.brightest + 1)
        self.method = method_of(own.method, settings.latent, self.size, own.k)
        self.structure = Bits(at_most=own.budget or None)
        allowed = sum(math.comb(own.bits, k) for k in range((own.budget or own.bits) + 1))
        self.log_prior = -math.log(allowed)

    def scores(self, levels: Tensor) -> Tensor:
        scores: Tensor = self.encoder(levels.float() / self.brightest) / self.settings.model.temperature
        return scores

    def level_scores(self, z: Tensor) -> Tensor:
        """(pairs, pixels, levels)."""
        scores: Tensor = self.to_levels(self.decoder(z).unflatten(-1, (self.size, -1)))
        return scores

    def distortion(self, levels: Tensor, z: Tensor) -> Tensor:
        """−log p(x | z)."""
        hidden, last = self.decoder(z).view(len(z) * self.size, -1), self.to_levels
        losses = linear_entmax_loss(
            hidden, last.weight, levels.long().flatten(), alpha=1.0, bias=last.bias, reduction="none"
        )  # softmax without the scores of all levels of all pixels at once
        return losses.view(len(z), -1).sum(-1)

    def expected(self, levels: Tensor, method: nn.Module, chunk: int | None = None) -> Expected:
        return expected_loss(
            self.scores(levels),
            lambda example, z: self.distortion(levels[example], z),
            method,  # type: ignore[arg-type]
            structure=self.structure,
            context=levels.float() / self.brightest,
            chunk=chunk,
        )

    def loss(self, batch: Tensor) -> Tensor:
        own = self.settings.latent
        at_step(self.method, self.global_step, own)
        out = self.expected(batch, self.method)
        self.log("train/calls", out.calls.float().mean())
        self.log("train/support 1", (out.calls == 1).float().mean())
        rate = -own.entropy * out.entropy - self.log_prior
        bound = (out.loss + rate).mean() / (self.size * math.log(2))
        return bound + out.baseline_loss / self.size**2

    def amount(self, batch: Tensor) -> int:
        return len(batch)

    @torch.no_grad()
    def figures(self, images: Images, shown: int = SHOWN, samples: int = SAMPLES) -> dict[str, float]:
        """Bits a pixel by a bound on log p(x), rate and distortion in nats, of the first images.

        Rate and distortion are those of bits that are 0 or 1, whatever the method trained with.
        """
        torch.manual_seed(0)
        totals: dict[str, float] = {}
        some = images.levels[:shown].to(self.device)
        for levels in some.split(CHUNK):
            for name, value in self.measured(levels, samples).items():
                totals[name] = totals.get(name, 0.0) + value.sum().item() / len(some)
        return totals

    def measured(self, levels: Tensor, samples: int) -> dict[str, Tensor]:
        judge = judge_of(self.method, DRAWN)
        out = self.expected(levels, judge)
        own = out if judge is self.method else self.expected(levels, self.method)
        return {
            "loss": -self.log_likelihood(levels, out, samples) / (self.size * math.log(2)),
            "rate": -out.entropy - self.log_prior,
            "distortion": out.loss,
            "calls": own.calls.float(),
            "support 1": (own.calls == 1).float(),
            "best distortion": self.expected(levels, Best()).loss,
        }

    def log_likelihood(self, levels: Tensor, out: Expected, samples: int) -> Tensor:
        """A lower bound on log p(x), by the same question to every method: importance-weighted samples.

        Bits are drawn one by one with the probabilities that the method gives them, off 0 and 1 so that nothing is
        ruled out; vectors over the budget have no prior, and weigh nothing. The coin of a small budget is on as rarely
        as that allows, or no vector would keep it.
        """
        if out.certificate is None:
            on = torch.sigmoid(self.scores(levels))
        else:
            shares = out.weights[:, None] * out.z
            on = shares.new_zeros(levels.shape[0], shares.shape[1]).index_add(0, out.example, shares)
        most = self.settings.model.budget or on.shape[1]
        on = KEPT * on + (1 - KEPT) * min(1 / 2, most / on.shape[1])
        weights = []
        for _ in range(samples):
            z = torch.bernoulli(on)
            chosen = -F.binary_cross_entropy(on, z, reduction="none").sum(-1)
            weight = self.log_prior - self.distortion(levels, z) - chosen
            weights.append(weight.masked_fill(z.sum(-1) > most, -math.inf))
        return torch.stack(weights, -1).logsumexp(-1) - math.log(samples)

    def validate(self) -> dict[str, float]:
        own = self.settings.train
        return self.figures(self.val, own.judged, own.samples)

    def describe(self, pixels: Tensor) -> list[dict[str, Any]]:
        bits = (self.expected((pixels * self.brightest).round(), Best()).z > 0).int()
        return [{"bits": "".join(map(str, row))} for row in bits.tolist()]

    @torch.no_grad()
    def drawn(self, z: Tensor) -> Tensor:
        """The expected image of each vector, from 0 to 1."""
        p = torch.softmax(self.level_scores(z), -1)
        return (p * torch.arange(self.brightest + 1)).sum(-1) / self.brightest

    @torch.no_grad()
    def switches(
        self, images: Images, rows: int = 5, columns: int = 8
    ) -> tuple[list[str], list[tuple[str, list[Tensor]]]]:
        """Titles; and a row an image: itself, what its bits draw, and what each bit that is switched on changes.

        The bits are those that change most in all rows.
        """
        best = self.expected(images.levels[:rows], Best()).z
        one = torch.eye(best.shape[1])
        change = torch.stack([self.drawn(z * (1 - one) + one) - self.drawn(z * (1 - one)) for z in best])
        most = change.abs().sum((0, 2)).argsort(descending=True)[:columns]
        found = [
            (f"class {label}", [image, self.drawn(z[None])[0], *each[most]])
            for label, image, z, each in zip(
                images.labels.tolist(), images.pixels(slice(rows)), best, change, strict=False
            )
        ]
        return ["image", "drawn", *(f"bit {bit}" for bit in most.tolist())], found

    @torch.no_grad()
    def samples(self, count: int) -> list[Tensor]:
        """From the prior; under a budget, vectors with that many bits on."""
        torch.manual_seed(0)
        order = torch.rand(count, self.settings.model.bits).argsort(-1)
        on = order < self.settings.model.budget if self.settings.model.budget else torch.rand(order.shape) < 0.5
        return [*self.drawn(on.float())]
