"""Scores and a target to a loss, with the contract of ``F.cross_entropy``."""

from .entmax_loss import entmax15_loss, entmax_loss, sparsemax_loss
from .fenchel_young import fenchel_young_loss
from .linear import linear_entmax_loss
from .modules import Entmax15Loss, EntmaxLoss, FenchelYoungLoss, LinearEntmaxLoss, SparsemaxLoss
from .multilabel import multilabel_loss

__all__ = [
    "Entmax15Loss",
    "EntmaxLoss",
    "FenchelYoungLoss",
    "LinearEntmaxLoss",
    "SparsemaxLoss",
    "entmax15_loss",
    "entmax_loss",
    "fenchel_young_loss",
    "linear_entmax_loss",
    "multilabel_loss",
    "sparsemax_loss",
]
