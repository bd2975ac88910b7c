"""A chosen mapping inside a model: as the output with its loss, and as the words of an attention layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...heads import LinearHead
from ...parameters import LEARNED
from .choice import Choice


def attention_words(choice: Choice, heads: int) -> dict[str, Any]:
    """The words by which an attention layer knows a choice. What is learned starts at random, as in the paper."""
    words, setting = {"mapping": choice.mapping, **choice.own()}, choice.entry.setting
    if setting is not None and words[setting.name] == LEARNED:
        words["start"] = setting.random_start((heads,))
    return words


class Output(LinearHead):
    """Hidden states (…, width) → log-probabilities of classes (…, size), by a choice of a mapping.

    Args:
        width: of the hidden states.
        size: the number of classes.
        choice: the mapping.
        tied: an embedding whose weight scores the classes; a weight of its own if not given.
    """

    def __init__(self, width: int, size: int, choice: Choice, tied: nn.Embedding | None = None) -> None:
        super().__init__(width, size, choice.mapping, tied=tied, **choice.own())
        self.choice = choice

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        old = f"{prefix}learned."  # what the mapping was called before 0.2
        for key in [key for key in state_dict if key.startswith(old)]:
            state_dict[f"{prefix}mapping.{key.removeprefix(old)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *rest)
