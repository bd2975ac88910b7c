"""The package ``entmax`` 1.3: its names, the order of its arguments, its options and its defaults.

Example:
    >>> import torch
    >>> from parsimax.compat.entmax import entmax15, entmax_bisect
    >>> scores = torch.tensor([[2.0, 1.5, 0.1]])
    >>> entmax15(scores, dim=-1, k=2)
    tensor([[0.6740, 0.3260, 0.0000]])
    >>> entmax_bisect(scores, 1.5, -1, 30)
    tensor([[0.6740, 0.3260, 0.0000]])

Options that only steer the package's own solvers (``k``, ``n_iter``, ``ensure_sum_one``) are accepted and change
nothing: the answer here is exact, and sums to 1, whatever they are.
"""

from .activations import Entmax15, Sparsemax, entmax15, sparsemax
from .losses import (
    Entmax15Loss,
    EntmaxBisectLoss,
    NormmaxBisectLoss,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_bisect_loss,
    normmax_bisect_loss,
    sparsemax_bisect_loss,
    sparsemax_loss,
)
from .root_finding import (
    BudgetBisect,
    EntmaxBisect,
    NormmaxBisect,
    SparsemaxBisect,
    budget_bisect,
    entmax_bisect,
    normmax_bisect,
    sparsemax_bisect,
)

__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "budget_bisect",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "normmax_bisect",
    "normmax_bisect_loss",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]
