"""What training costs beside the same model with softmax everywhere."""

from __future__ import annotations

import statistics
import time
from typing import Any

from ...kit.settings import changed, flat
from .model import Seq2Seq
from .task import Seq2SeqTask

STEPS = 16


def softmax_words(settings: Any) -> dict[str, str]:
    """The settings that make a model its softmax twin; none if it is one."""
    return {
        name: "softmax"
        for name, value in flat(settings).items()
        if name.endswith(".mapping") and name.startswith("model.") and value != "softmax"
    }


def beside_softmax(task: Seq2SeqTask, settings: Any, build: Any) -> dict[str, float]:
    """Forward and backward pass of the trained model and its twin in turns on the same batches: the median ratio."""
    words = softmax_words(settings)
    if not words:
        return {}
    twin: Seq2Seq = build(changed(settings, words), task.codec).to(task.device)
    ratios = []
    batches = task.batches.plan(settings.train.seed)[: STEPS + 1]
    for number, indices in enumerate(batches):
        batch, seconds = task.batches.make(indices), {}
        for own in (True, False) if number % 2 else (False, True):  # who goes first changes
            seconds[own] = _seconds(task.model if own else twin, batch, settings.model.smoothing)
        ratios.append(seconds[True] / seconds[False])
    task.model.zero_grad(set_to_none=True)
    return {"step time / softmax": statistics.median(ratios[1:] or ratios)}  # the first warms up


def _seconds(model: Seq2Seq, batch: Any, smoothing: float) -> float:
    model.train()
    model.zero_grad(set_to_none=True)
    began = time.perf_counter()
    model.loss(batch, smoothing).backward()
    return time.perf_counter() - began
