"""What answers are worth, and how sparse the attention is that they come from."""

from __future__ import annotations

import copy
import math
import statistics
import warnings
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
    """By scikit-learn. F1 is that of the label that sorts last where there are two, else the mean of all labels'."""
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    right, found = wanted.numpy(), said.numpy()
    by_label = f1_score(right, found, labels=range(len(classes)), average=None, zero_division=0)
    macro = float(by_label.mean())
    with warnings.catch_warnings():  # of a single label in both, for which 0 is what it gives
        warnings.filterwarnings("ignore", "A single label was found", UserWarning)
        matthews = float(matthews_corrcoef(right, found))
    return {
        "accuracy": float(accuracy_score(right, found)),
        "F1": float(by_label[1]) if len(classes) == 2 else macro,
        "macro F1": macro,
        "Matthews": matthews,
    }


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
