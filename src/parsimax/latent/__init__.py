"""Scores and a loss of a discrete z → the expected loss and its gradient: marginalisers and estimators, by one call."""

from .estimators import Gumbel, ScoreFunction, SumAndSample
from .expectation import expected_loss
from .expected import Expected
from .marginalisers import Best, Marginal, Method, SparseMAP, TopK

__all__ = [
    "Best",
    "Expected",
    "Gumbel",
    "Marginal",
    "Method",
    "ScoreFunction",
    "SparseMAP",
    "SumAndSample",
    "TopK",
    "expected_loss",
]
