"""The precision to compute in, and the one to answer in."""

from __future__ import annotations

import torch
from torch import Tensor

WIDE = (torch.float32, torch.float64)


def work_dtype(device: torch.device) -> torch.dtype:
    """float64, so that thresholds and sums of a million float32 numbers are right; MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def softmax_dtype(scores: Tensor) -> torch.dtype:
    """What ``torch.softmax`` would return: under autocast that is not always the dtype of the scores."""
    if not scores.is_meta and torch.is_autocast_enabled(scores.device.type):
        return torch.softmax(torch.empty(1, dtype=scores.dtype, device=scores.device), -1).dtype
    return scores.dtype
