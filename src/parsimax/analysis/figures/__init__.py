"""Figures of attention and output heads, one function each; each gives a ``matplotlib.figure.Figure``."""

from .curves import function, spectrum
from .grids import density, entropy, roles
from .layers import alpha, diversity
from .maps import attention, comparison

__all__ = ["alpha", "attention", "comparison", "density", "diversity", "entropy", "function", "roles", "spectrum"]
