"""Scores of parts → a sparse distribution over structures: SparseMAP, top-k sparsemax, LP-SparseMAP."""

from .bits import Bits
from .custom import Custom
from .dense import Dense
from .distribution import Distribution
from .factors import AtMostOne, Budget, Factor, Knapsack, Or, OrOut, Pair, Xor
from .graph import FactorGraph, Relaxation
from .graphs import Assignment, Tree
from .labels import Chain, OneOf, OneOfEach
from .loss import SparseMAPLoss, sparsemap_loss
from .sparsemap import sparsemap
from .structure import Structure
from .topk import topk

__all__ = [
    "Assignment",
    "AtMostOne",
    "Bits",
    "Budget",
    "Chain",
    "Custom",
    "Dense",
    "Distribution",
    "Factor",
    "FactorGraph",
    "Knapsack",
    "OneOf",
    "OneOfEach",
    "Or",
    "OrOut",
    "Pair",
    "Relaxation",
    "SparseMAPLoss",
    "Structure",
    "Tree",
    "Xor",
    "sparsemap",
    "sparsemap_loss",
    "topk",
]
