"""The papers' methods by their names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...latent import Gumbel, Marginal, Method, ScoreFunction, SparseMAP, SumAndSample, TopK
from .settings import Latent

EVERY = 1000  # steps between two Gumbel temperatures


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def method_of(name: str, own: Latent, context: int, k: int = 10) -> Method:
    """``context`` is how many numbers the baseline of nvil reads."""
    width = own.baseline
    made: dict[str, Callable[[], Method]] = {
        "dense": lambda: Marginal("softmax"),
        "sparse": lambda: Marginal("sparsemax"),
        "topk": lambda: TopK(k),
        "sparsemap": lambda: SparseMAP(),
        "sfe": lambda: ScoreFunction("mean"),
        "sfe+": lambda: ScoreFunction("second-sample"),
        "nvil": lambda: ScoreFunction(mlp(context, width, width, width, 1)),
        "sum-sample": lambda: SumAndSample(1),
        "gumbel": lambda: Gumbel(),
        "st-gumbel": lambda: Gumbel(hard=True),
    }
    return made[name]()


def judge_of(method: Method, samples: int | None = None) -> Method:
    """What asks every method the same at evaluation: the expectation under its distribution over discrete z.

    A method that sums is its own judge. One that samples, relaxed or not, has a softmax over z: all of them are summed,
    or so many ``samples`` drawn where there are too many.
    """
    if isinstance(method, (Marginal, TopK, SparseMAP)):
        return method
    return Marginal("softmax") if samples is None else ScoreFunction(samples=samples)


def at_step(method: Method, step: int, own: Latent) -> None:
    """The Gumbel temperature of a step: max(0.5, exp(−rt)), a function of the step alone."""
    if isinstance(method, Gumbel):
        method.temperature = max(0.5, math.exp(-own.gumbel_decay * (step // EVERY * EVERY)))


def as_vector(z: Tensor, n: int) -> Tensor:
    """One-hot vectors of indices; a relaxed vector as it is."""
    return z if z.is_floating_point() else nn.functional.one_hot(z, n).to(torch.get_default_dtype())
