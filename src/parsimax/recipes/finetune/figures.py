"""What answers are worth, and how sparse the attention is that they come from."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...analysis import Recording, measures, record
from ...huggingface import sparsify
from ..text.lengths import spread
from .encoder import Encoder
from .model import Tokens

RECORDED = 32  # examples whose attention is measured


def of_classes(wanted: Tensor, said: Tensor, classes: list[str]) -> dict[str, Any]:
    """As scikit-learn has them. F1 is that of the label that sorts last where there are two, else the mean of all
    labels'; a label that is neither wanted nor said has 0.
    """
    right, asked, told = (
        torch.bincount(some, minlength=len(classes)).double() for some in (wanted[wanted == said], wanted, said)
    )
    by_label = 2 * right / (asked + told).clamp(min=1)
    macro = by_label.mean().item()
    return {
        "accuracy": (wanted == said).double().mean().item(),
        "F1": by_label[1].item() if len(classes) == 2 else macro,
        "macro F1": macro,
        "Matthews": matthews(right, asked, told),
    }


def matthews(right: Tensor, asked: Tensor, told: Tensor) -> float:
    """The correlation of labels that are wanted and said, by how often each is right; 0 where either is always one."""
    count = asked.sum()
    spread = (count.square() - asked @ asked) * (count.square() - told @ told)
    return float((right.sum() * count - asked @ told) / spread.sqrt()) if spread else 0.0


def of_numbers(wanted: Tensor, said: Tensor) -> dict[str, Any]:
    """Squared error, and the correlations of Pearson and Spearman; NaN where all are equal."""
    return {
        "squared error": (wanted.double() - said.double()).square().mean().item(),
        "Pearson": correlation(wanted, said),
        "Spearman": correlation(ranks(wanted), ranks(said)),
    }


def correlation(one: Tensor, other: Tensor) -> float:
    one, other = (part.double() - part.double().mean() for part in (one, other))
    size = math.sqrt(float(one.square().sum() * other.square().sum()))
    return float(one @ other) / size if size else math.nan


def ranks(values: Tensor) -> Tensor:
    """Of each value from 0 on; equals share the mean of their places."""
    _, same, count = values.unique(return_inverse=True, return_counts=True)
    places: Tensor = count.cumsum(0) - (count + 1) / 2
    return places[same]


@torch.no_grad()
def recorded(encoder: Encoder, tokens: Tokens, indices: Sequence[int]) -> Recording:
    """The attention on some examples, padding left out."""
    model, training = encoder.model, encoder.model.training
    if not any(hasattr(module, "observers") for module in model.modules()):  # transformers' own softmax shows nothing
        model = sparsify(copy.deepcopy(model), "softmax")
    inputs = {name: part.to(model.device) for name, part in tokens.batch(indices).items()}
    names = [encoder.tokenizer.convert_ids_to_tokens(tokens.rows[index]["input_ids"]) for index in indices]
    with record(model.eval(), names) as recording:
        model(**inputs)
    model.train(training)
    return recording


def some(tokens: Tokens, most: int = RECORDED) -> list[int]:
    return spread(len(tokens), most)


def attention(recording: Recording) -> dict[str, Any]:
    """The share of zeros, then density and α layer by layer, each the mean of its heads."""
    layers: dict[str, list[Any]] = {}
    for head in measures(recording):
        layers.setdefault(head.layer, []).append(head)
    density = [statistics.fmean(head.density for head in heads) for heads in layers.values()]
    every = [head for heads in layers.values() for head in heads]
    found: dict[str, Any] = {
        "zeros": 1 - statistics.fmean(density),
        "density by layer": [round(one, 4) for one in density],
        "attended tokens": statistics.fmean(head.support for head in every),
    }
    if all(head.alpha is not None for head in every):
        alphas = [statistics.fmean(head.alpha for head in heads) for heads in layers.values()]
        found["alpha by layer"] = [round(one, 4) for one in alphas]
    return found
