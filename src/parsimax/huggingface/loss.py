"""What a model's own loss, ``model(…, labels=…).loss``, is under a head whose probabilities may be exactly 0.

Cross-entropy of its log-probabilities would be infinite there, and they do not tell the scores below the support. So
such a head leaves its hidden states with the logits, and the model's loss becomes that of the head on them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..heads import Head

SAID = "parsimax_said"  # the attribute of the logits: who says them, and of what hidden states
INSTEAD = "leave out labels, and train by model.get_output_embeddings().loss(hidden, target)"


def connect(model: nn.Module, head: Head) -> None:
    """Let the model's own loss be that of a head with exact zeros; a model that computes its own refuses labels."""
    if not sparse(head):
        return
    head.register_forward_hook(_leave)
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part.get_output_embeddings() is head:
            code = getattr(inspect.unwrap(type(part).forward), "__code__", None)
            if "loss_function" in getattr(code, "co_names", ()):
                part.loss_function = HeadLoss(part)
            elif _refuse not in part._forward_pre_hooks.values():
                part.register_forward_pre_hook(_refuse, with_kwargs=True)


def sparse(head: Any) -> bool:
    return isinstance(head, Head) and bool(cast(Any, head).mapping.entry.sparse)


class HeadLoss:
    """Called as the loss functions of ``transformers`` for language models are. Dense heads have what was before."""

    def __init__(self, part: Any) -> None:
        before: Any = part.loss_function
        self.part = part
        self.plain: Callable[..., Tensor] = before.plain if isinstance(before, HeadLoss) else before

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab_size: int | None = None,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        options: dict[str, Any] = {"num_items_in_batch": num_items_in_batch, "ignore_index": ignore_index}
        head = self.part.get_output_embeddings()
        if not sparse(head):
            given = {} if shift_labels is None else {"shift_labels": shift_labels}
            return self.plain(logits, labels, vocab_size=vocab_size, **options, **given, **others)
        if (said := getattr(logits, SAID, None)) is None:
            raise RuntimeError(
                f"{type(self.part).__name__} changes its logits before its loss, which then cannot be that of "
                f"{head.mapping.entry.name}; {INSTEAD}"
            )
        head, hidden = said  # in a replica of DataParallel the head is not that of ``part``
        setattr(logits, SAID, None)  # they outlive this call
        if shift_labels is None and getattr(self.part, "loss_type", None) != "ForMaskedLM":
            shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]  # tokens < n predict n
        target = (labels if shift_labels is None else shift_labels).reshape(-1).to(hidden.device)
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss: Tensor = head.loss(
            hidden.reshape(-1, head.features), target, ignore_index=ignore_index, reduction=reduction
        )
        return loss if num_items_in_batch is None else loss / torch.as_tensor(num_items_in_batch, device=loss.device)


def _leave(head: nn.Module, args: tuple[Tensor, ...], logits: Tensor) -> None:
    setattr(logits, SAID, (head, args[0]))


def _refuse(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Of models that write their cross-entropy out, a forward pre-hook."""
    head = model.get_output_embeddings()
    if kwargs.get("labels") is not None and sparse(head):
        raise ValueError(
            f"{type(model).__name__} computes the cross-entropy of its logits by itself, which is infinite where "
            f"{head.mapping.entry.name} gives 0; {INSTEAD}"
        )
