"""What a prediction of several labels is worth."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad


def figures(wanted: Tensor, given: Tensor, p: Tensor) -> dict[str, Any]:
    """Of labels (N, L) and probabilities; a label or a row with none wanted and none given counts as 0 in its F1."""
    from sklearn.metrics import accuracy_score, f1_score, hamming_loss

    right, found = wanted.int().numpy(), given.int().numpy()
    # Beside a label that nobody has, which is left out: a single one would be taken for two classes.
    some = [pad(labels.int(), (0, 1)).numpy() for labels in (wanted, given)]
    own = range(wanted.shape[1])
    f1 = {
        kind: float(f1_score(*some, labels=own, average=kind, zero_division=0))
        for kind in ("micro", "macro", "samples")
    }
    return {
        "examples": len(right),
        "micro F1": f1["micro"],
        "macro F1": f1["macro"],
        "example F1": f1["samples"],
        "subset accuracy": float(accuracy_score(right, found)),
        "Hamming loss": float(hamming_loss(right, found)),
        "predicted labels a row": given.sum(-1).double().mean().item(),
        "wanted labels a row": wanted.sum(-1).double().mean().item(),
        "zeros": (p == 0).double().mean().item(),
    }
