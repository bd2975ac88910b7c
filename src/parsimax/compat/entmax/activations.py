"""``entmax.activations``: sparsemax and 1.5-entmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...mappings import entmax15 as exact_entmax15
from ...mappings import sparsemax as exact_sparsemax

Mapped = Any  # a tensor; with ``return_support_size`` two


def _with_size(f: Callable[..., Tensor], X: Tensor, dim: int, return_support_size: bool) -> Mapped:
    p = f(X, dim)
    return (p, (p > 0).sum(dim, keepdim=True)) if return_support_size else p


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> Mapped:
    """:func:`parsimax.sparsemax`; with ``return_support_size`` also the number of non-zeros, of size 1 along ``dim``.

    ``k``, how far the package sorts at first, changes nothing.
    """
    return _with_size(exact_sparsemax, X, dim, return_support_size)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> Mapped:
    """:func:`parsimax.entmax15`; with ``return_support_size`` also the number of non-zeros, of size 1 along ``dim``.

    ``k``, how far the package sorts at first, changes nothing.
    """
    return _with_size(exact_entmax15, X, dim, return_support_size)


class _Activation(nn.Module):
    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__()
        self.dim, self.k, self.return_support_size = dim, k, return_support_size

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Sparsemax(_Activation):
    """:func:`sparsemax` as a module."""

    def forward(self, X: Tensor) -> Mapped:
        return sparsemax(X, self.dim, self.k, self.return_support_size)


class Entmax15(_Activation):
    """:func:`entmax15` as a module."""

    def forward(self, X: Tensor) -> Mapped:
        return entmax15(X, self.dim, self.k, self.return_support_size)
