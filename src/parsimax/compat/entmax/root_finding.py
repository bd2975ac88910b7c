"""``entmax.root_finding``: what the package solves by bisection, here exact."""

from __future__ import annotations

from torch import Tensor, nn

from ...mappings import budget_sparsemax, entmax, normmax, sparsemax


def entmax_bisect(
    X: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Tensor:
    """:func:`parsimax.entmax`; at α = 1 it is softmax. ``n_iter`` and ``ensure_sum_one`` change nothing."""
    return entmax(X, alpha, dim)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """:func:`parsimax.sparsemax`. ``n_iter`` and ``ensure_sum_one`` change nothing."""
    return sparsemax(X, dim)


def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """:func:`parsimax.normmax`, differentiable in α too. ``n_iter`` changes nothing."""
    return normmax(X, alpha, dim)


def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """:func:`parsimax.budget_sparsemax`, differentiable in the budget too. ``n_iter`` changes nothing."""
    return budget_sparsemax(X, budget, dim)


def hold(module: nn.Module, name: str, value: float | Tensor) -> None:
    """``value`` as an attribute. A tensor moves with the module; a state without it, as the package writes, loads."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value, persistent=False)
    else:
        setattr(module, name, value)


class SparsemaxBisect(nn.Module):
    """:func:`sparsemax_bisect` as a module."""

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class EntmaxBisect(nn.Module):
    """:func:`entmax_bisect` as a module; an ``nn.Parameter`` as α is one of the module's own, and is learned."""

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter
        hold(self, "alpha", alpha)

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, dim={self.dim}"


class NormmaxBisect(nn.Module):
    """:func:`normmax_bisect` as a module."""

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter
        hold(self, "alpha", alpha)

    def forward(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, dim={self.dim}"


class BudgetBisect(nn.Module):
    """:func:`budget_bisect` as a module."""

    budget: float | Tensor

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter
        hold(self, "budget", budget)

    def forward(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim)

    def extra_repr(self) -> str:
        return f"budget={self.budget}, dim={self.dim}"
