"""Scores of parts → a sparse distribution over structures: SparseMAP and top-k sparsemax."""

from .bits import Bits
from .custom import Custom
from .distribution import Distribution
from .graphs import Assignment, Tree
from .labels import Chain, OneOf, OneOfEach
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
    "Structure",
    "Tree",
    "sparsemap",
    "topk",
]
