"""What training costs beside the same model with softmax everywhere."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...kit.beside import step_ratio
from ...kit.settings import changed, flat
from .model import Seq2Seq
from .task import Seq2SeqTask


def softmax_words(settings: Any) -> dict[str, str]:
    """The settings that make a model its softmax twin; none if it is one."""
    return {
        name: "softmax"
        for name, value in flat(settings).items()
        if name.endswith(".mapping") and name.startswith("model.") and value != "softmax"
    }


def beside_softmax(task: Seq2SeqTask, settings: Any, build: Any) -> dict[str, float]:
    """The time of a step of the trained model, by that of its twin."""
    words = softmax_words(settings)
    if not words:
        return {}
    twin: Seq2Seq = build(changed(settings, words), task.codec).to(task.device)
    smoothing = settings.model.smoothing
    plan = task.batches.plan(settings.train.seed)

    def loss(model: Any, batch: Any) -> Tensor:
        found: Tensor = model.loss(batch, smoothing)
        return found

    return {"step time / softmax": step_ratio(task.model, twin, loss, plan, task.batches.make)}
