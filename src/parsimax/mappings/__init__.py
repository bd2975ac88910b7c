"""Scores to probabilities, one family a file."""

from .binary import entmoid15, sparsemoid
from .budget_sparsemax import budget_sparsemax
from .entmax import entmax
from .entmax15 import entmax15
from .learned import Entmax
from .log_entmax import log_entmax
from .modules import (
    BudgetSparsemax,
    Entmax15,
    Normmax,
    RSoftmax,
    SigSoftmax,
    Softmax,
    Sparsegen,
    SparseHourglass,
    Sparsemax,
    TopKSparsemax,
    TSoftmax,
)
from .normmax import normmax
from .registry import REGISTRY
from .rsoftmax import rsoftmax
from .sigsoftmax import sigsoftmax
from .softmax import softmax
from .sparsegen import sparsegen
from .sparsehourglass import sparsehourglass
from .sparsemax import sparsemax
from .support import support
from .topk_sparsemax import topk_sparsemax
from .tsoftmax import tsoftmax

__all__ = [
    "REGISTRY",
    "BudgetSparsemax",
    "Entmax",
    "Entmax15",
    "Normmax",
    "RSoftmax",
    "SigSoftmax",
    "Softmax",
    "SparseHourglass",
    "Sparsegen",
    "Sparsemax",
    "TSoftmax",
    "TopKSparsemax",
    "budget_sparsemax",
    "entmax",
    "entmax15",
    "entmoid15",
    "log_entmax",
    "normmax",
    "rsoftmax",
    "sigsoftmax",
    "softmax",
    "sparsegen",
    "sparsehourglass",
    "sparsemax",
    "sparsemoid",
    "support",
    "topk_sparsemax",
    "tsoftmax",
]
