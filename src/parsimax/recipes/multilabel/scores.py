"""What a prediction of several labels is worth."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def figures(wanted: Tensor, given: Tensor, p: Tensor) -> dict[str, Any]:
    """Of labels (N, L) and probabilities, as scikit-learn has them, which would take a single label for two classes.

    A label or a row with none wanted and none given counts as 0 in its F1.
    """
    right = wanted & given
    return {
        "examples": len(wanted),
        "micro F1": f1(right.sum(), wanted.sum(), given.sum()).item(),
        "macro F1": f1(right.sum(0), wanted.sum(0), given.sum(0)).mean().item(),
        "example F1": f1(right.sum(-1), wanted.sum(-1), given.sum(-1)).mean().item(),
        "subset accuracy": (wanted == given).all(-1).double().mean().item(),
        "Hamming loss": (wanted != given).double().mean().item(),
        "predicted labels a row": given.sum(-1).double().mean().item(),
        "wanted labels a row": wanted.sum(-1).double().mean().item(),
        "zeros": (p == 0).double().mean().item(),
    }


def f1(right: Tensor, wanted: Tensor, given: Tensor) -> Tensor:
    """From counts of labels."""
    return 2 * right.double() / (wanted + given).clamp(min=1)
