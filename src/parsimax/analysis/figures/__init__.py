"""Figures of attention, one function each. Each returns a ``matplotlib.figure.Figure``; call its ``savefig``."""

from .grids import density, entropy, roles
from .layers import alpha, diversity
from .maps import attention, comparison

__all__ = ["alpha", "attention", "comparison", "density", "diversity", "entropy", "roles"]
