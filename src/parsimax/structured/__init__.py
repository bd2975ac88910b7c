"""Scores of parts → a sparse distribution over structures: SparseMAP and top-k sparsemax."""

from .bits import Bits
from .custom import Custom
from .distribution import Distribution
from .graphs import Assignment, Tree
from .labels import Chain, OneOf, OneOfEach
from .loss import SparseMAPLoss, sparsemap_loss
from .sparsemap import sparsemap
from .structure import Structure
from .topk import topk

__all__ = [
    "Assignment",
    "Bits",
    "Chain",
    "Custom",
    "Distribution",
    "OneOf",
    "OneOfEach",
    "SparseMAPLoss",
    "Structure",
    "Tree",
    "sparsemap",
    "sparsemap_loss",
    "topk",
]
