"""The model of Kingma et al. (2014) as Correia et al. (2020) train it: −ELBO of class and style."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...latent import Best, Expected, Method, expected_loss
from ...losses import sparsemax_loss
from ...mappings import softmax, sparsemax
from ..images.data import CLASSES, Images
from ..images.methods import as_vector, at_step, method_of, mlp
from ..images.recipe import ImageTask
from ..kit.batches import Shuffled
from ..kit.recipe import DataError
from .settings import Settings

BY_CLASS = "calls by class"
CHUNK = 2000  # images at a time; so many are looked at during training


class SSVAE(ImageTask):
    """x → class z; (x, z) → style; (style, z) → x."""

    monitor, mode, unit = "accuracy", "max", "images"

    def __init__(self, settings: Settings, train: Images, val: Images) -> None:
        own = settings.model
        self.size, self.brightest = train.levels.shape[1], train.brightest
        known = settings.train.labelled
        if known > len(train):
            raise DataError(f"train.labelled={known} are more than the {len(train)} images to train on")

        def make(some: list[int]) -> tuple[Tensor, Tensor, Tensor]:
            """Unlabelled pixels; and as many labelled ones, with their labels."""
            given = [index % known for index in some]
            return train.pixels(some), train.pixels(given), train.labels[given]

        super().__init__(settings.train, Shuffled(len(train), settings.train.batch, make))
        self.settings, self.val = settings, val
        self.classifier = mlp(self.size, *[own.classifier] * 3, CLASSES)
        self.encoder = mlp(self.size + CLASSES, own.width, own.width, 2 * own.style)
        self.decoder = mlp(own.style + CLASSES, own.width, own.width, self.size)
        self.method = method_of(own.method, settings.latent, self.size)
        self.sparse = own.method == "sparse"

    def negative_elbo(self, x: Tensor, z: Tensor) -> Tensor:
        """−log p(x | z, style) + KL of the style, one sample of it; the prior of the class is left to the caller."""
        mean, log_scale = self.encoder(torch.cat([x, z], -1)).chunk(2, -1)
        style = mean + torch.randn_like(mean) * log_scale.exp()
        logits = self.decoder(torch.cat([style, z], -1))
        distortion = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
        divergence = (mean.square() + (2 * log_scale).exp() - 1 - 2 * log_scale).sum(-1) / 2
        total: Tensor = distortion + divergence
        return total

    def supervised(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.classifier(x)
        wrong = sparsemax_loss(scores, labels) if self.sparse else F.cross_entropy(scores, labels)
        bound = self.negative_elbo(x, as_vector(labels, CLASSES)).mean() + math.log(CLASSES)
        return self.settings.train.label_weight * wrong + bound / self.size

    def unsupervised(self, x: Tensor, method: Method) -> Expected:
        return expected_loss(
            self.classifier(x),
            lambda example, z: self.negative_elbo(x[example], as_vector(z, CLASSES)),
            method,
            context=x,
        )

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        unlabelled, labelled, labels = batch
        own, step = self.settings, self.global_step
        total = self.supervised(torch.bernoulli(labelled), labels)
        if step < own.train.supervised:
            return total
        at_step(self.method, step, own.latent)
        out = self.unsupervised(torch.bernoulli(unlabelled), self.method)
        self.log("train/calls", out.calls.float().mean())
        bound = (out.loss - own.latent.entropy * out.entropy).mean() + math.log(CLASSES)
        return total + own.train.unlabelled * bound / self.size + out.baseline_loss / self.size**2

    def rate(self, step: int) -> float:
        own = self.settings.train
        return own.supervised_lr / own.lr if step < own.supervised else super().rate(step)

    def amount(self, batch: tuple[Tensor, Tensor, Tensor]) -> int:
        return len(batch[0])

    @torch.no_grad()
    def figures(self, images: Images) -> dict[str, Any]:
        """The same questions of every method: the most probable class, and the bound with it.

        The class is that of the image as it is, as in predictions; bound and calls are those of black and white images
        drawn from it, as in training.
        """
        torch.manual_seed(0)
        parts = [
            self.measured(images.pixels(some), images.labels[some]) for some in torch.arange(len(images)).split(CHUNK)
        ]
        found = {name: torch.cat([part[name].cpu() for part in parts]) for name in parts[0]}
        figures: dict[str, Any] = {name: values.mean().item() for name, values in found.items()}
        classes = images.labels.unique().tolist()
        figures[BY_CLASS] = {str(one): found["calls"][images.labels == one].mean().item() for one in classes}
        return figures

    def measured(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        pixels, labels = pixels.to(self.device), labels.to(self.device)
        x = torch.bernoulli(pixels)
        best = self.unsupervised(x, Best())
        return {
            "accuracy": (self.classifier(pixels).argmax(-1) == labels).float(),
            "calls": self.unsupervised(x, self.method).calls.float(),
            "loss": (best.loss + math.log(CLASSES)) / self.size,
        }

    def validate(self) -> dict[str, float]:
        figures = self.figures(self.val.part(slice(CHUNK)))
        for label, value in figures.pop(BY_CLASS).items():  # for the report; ten more would make the line too long
            self.log(f"{BY_CLASS}/{label}", value, batch_size=1)
        return figures

    def describe(self, pixels: Tensor) -> list[dict[str, Any]]:
        p = (sparsemax if self.sparse else softmax)(self.classifier(pixels))
        return [
            {
                "class": int(row.argmax()),
                "possible": {str(i): round(row[i].item(), 6) for i in row.nonzero()[:, 0].tolist()},
            }
            for row in p
        ]

    @torch.no_grad()
    def samples(self, columns: int) -> list[tuple[str, list[Tensor]]]:
        """A row a class, a column a style."""
        torch.manual_seed(0)
        style = torch.randn(columns, self.settings.model.style)
        rows = []
        for label in range(CLASSES):
            z = F.one_hot(torch.full((columns,), label), CLASSES).float()
            rows.append((f"class {label}", [*torch.sigmoid(self.decoder(torch.cat([style, z], -1)))]))
        return rows
