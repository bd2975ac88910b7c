"""``entmax.losses``: scores (n, classes) and target (n) to one loss a row; modules that reduce them.

In the modules ``ignore_index`` is obeyed whatever its sign; the package reads it only from 0 up, and fails at a target
of -100, its default.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...losses import entmax15_loss as exact_entmax15_loss
from ...losses import entmax_loss, fenchel_young_loss
from ...losses import sparsemax_loss as exact_sparsemax_loss
from .root_finding import hold

REDUCTIONS = {"elementwise_mean": "mean", "sum": "sum", "none": "none"}


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """:func:`parsimax.sparsemax_loss` of each row. ``k`` changes nothing."""
    return exact_sparsemax_loss(X, target, reduction="none")


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """:func:`parsimax.sparsemax_loss` of each row. ``n_iter`` changes nothing."""
    return exact_sparsemax_loss(X, target, reduction="none")


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """:func:`parsimax.entmax15_loss` of each row. ``k`` changes nothing."""
    return exact_entmax15_loss(X, target, reduction="none")


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int | None = 50) -> Tensor:
    """:func:`parsimax.entmax_loss` of each row, differentiable in α too. ``n_iter`` changes nothing."""
    return entmax_loss(X, target, alpha, reduction="none")


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int | None = 50) -> Tensor:
    """The Fenchel–Young loss of normmax of each row, differentiable in α too. ``n_iter`` changes nothing."""
    return fenchel_young_loss(X, target, "normmax", alpha=alpha, reduction="none")


class _Loss(nn.Module):
    def __init__(self, ignore_index: int, reduction: str) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise ValueError(
                f"{type(self).__name__}: reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}"
            )
        self.ignore_index, self.reduction = ignore_index, reduction

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"


class SparsemaxLoss(_Loss):
    """:func:`parsimax.sparsemax_loss` as a module."""

    def __init__(self, k: int | None = None, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        return exact_sparsemax_loss(X, target, ignore_index=self.ignore_index, reduction=REDUCTIONS[self.reduction])


class SparsemaxBisectLoss(_Loss):
    """:func:`parsimax.sparsemax_loss` as a module."""

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        return exact_sparsemax_loss(X, target, ignore_index=self.ignore_index, reduction=REDUCTIONS[self.reduction])


class Entmax15Loss(_Loss):
    """:func:`parsimax.entmax15_loss` as a module."""

    def __init__(self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        return exact_entmax15_loss(X, target, ignore_index=self.ignore_index, reduction=REDUCTIONS[self.reduction])


class EntmaxBisectLoss(_Loss):
    """:func:`parsimax.entmax_loss` as a module; an ``nn.Parameter`` as α is learned."""

    alpha: float | Tensor

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter
        hold(self, "alpha", alpha)

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        how = REDUCTIONS[self.reduction]
        return entmax_loss(X, target, self.alpha, ignore_index=self.ignore_index, reduction=how)


class NormmaxBisectLoss(_Loss):
    """The Fenchel–Young loss of normmax as a module."""

    alpha: float | Tensor

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter
        hold(self, "alpha", alpha)

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        how = REDUCTIONS[self.reduction]
        return fenchel_young_loss(X, target, "normmax", alpha=self.alpha, ignore_index=self.ignore_index, reduction=how)
