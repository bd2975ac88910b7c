"""The precision to compute in, and the one to answer in."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.backends import LEAN, formulas_of
from ..kernels.dispatch import wanted
from .modes import leaves_the_library

WIDE = (torch.float32, torch.float64)


def work_dtype(device: torch.device) -> torch.dtype:
    """float64, so that parameters and sums over rows are right; MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def formula_dtype(x: Tensor) -> torch.dtype:
    """What a formula computes rows of ``x`` in: float64, or float32 with sums and thresholds in two parts.

    On the CPU float64 costs little; elsewhere it is slow, or does not exist. float64 scores are computed in float64.
    """
    device = x.device.type
    if x.dtype == torch.float64 or formulas_of(device, wanted()) != LEAN:
        return torch.float64
    # A graph that leaves the library holds formulas with a sort, whose sums over a row are plain.
    return torch.float64 if device != "mps" and leaves_the_library() else torch.float32


def softmax_dtype(scores: Tensor) -> torch.dtype:
    """What ``torch.softmax`` would return: under autocast that is not always the dtype of the scores."""
    if not scores.is_meta and torch.is_autocast_enabled(scores.device.type):
        return torch.softmax(torch.empty(1, dtype=scores.dtype, device=scores.device), -1).dtype
    return scores.dtype
