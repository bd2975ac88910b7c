"""The mappings as modules. Each says in its ``repr`` what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from ..engine.arguments import Interval, check_count, check_number
from .budget_sparsemax import DOMAIN as BUDGET
from .budget_sparsemax import budget_sparsemax
from .entmax15 import entmax15
from .normmax import DOMAIN as NORM
from .normmax import normmax
from .rsoftmax import DOMAIN as RATE
from .rsoftmax import rsoftmax
from .sigsoftmax import sigsoftmax
from .softmax import softmax
from .sparsegen import DOMAIN as LAM
from .sparsegen import sparsegen
from .sparsehourglass import DOMAIN as Q
from .sparsehourglass import sparsehourglass
from .sparsemax import sparsemax
from .topk_sparsemax import topk_sparsemax
from .tsoftmax import DOMAIN as T
from .tsoftmax import tsoftmax


class MappingModule(nn.Module):
    """A mapping over ``dim``; what the modules have in common. ``forward(scores, mask=None)``."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def settings(self) -> dict[str, Any]:
        """What is passed to the function beside scores, dim and mask."""
        return {}

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return type(self).function(scores, dim=self.dim, mask=mask, **self.settings())

    def extra_repr(self) -> str:
        shown = {**self.settings(), "dim": self.dim}
        return ", ".join(f"{name}={short(value)}" for name, value in shown.items())


def readable(value: Tensor) -> bool:
    """Whether a ``repr`` may read it: its values are here. (A rank that prints alone would wait for the others.)"""
    return type(value) in (Tensor, nn.Parameter) and not value.is_meta


def short(value: object) -> str:
    if isinstance(value, Tensor):
        return (
            f"{value.item():g}" if value.numel() == 1 and readable(value) else f"<tensor of shape {tuple(value.shape)}>"
        )
    return f"{value:g}" if isinstance(value, float) else repr(value)


def hold(module: nn.Module, name: str, value: float | Tensor, domain: Interval) -> None:
    """Keep a number, checked, as an attribute; a parameter as it is; any other tensor as a buffer."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    elif isinstance(value, Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, check_number(value, domain, name, type(module).__name__))


class Softmax(MappingModule):
    """:func:`softmax` as a module.

    Example:
        >>> import torch, parsimax
        >>> parsimax.Softmax()(torch.tensor([1.0, 0.0]))
        tensor([0.7311, 0.2689])
    """

    function = softmax


class Sparsemax(MappingModule):
    """:func:`sparsemax` as a module.

    Example:
        >>> import torch, parsimax
        >>> parsimax.Sparsemax()(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """

    function = sparsemax


class Entmax15(MappingModule):
    """:func:`entmax15` as a module.

    Example:
        >>> import torch, parsimax
        >>> parsimax.Entmax15()(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.6740, 0.3260, 0.0000])
    """

    function = entmax15


class SigSoftmax(MappingModule):
    """:func:`sigsoftmax` as a module.

    Example:
        >>> import torch, parsimax
        >>> parsimax.SigSoftmax()(torch.tensor([1.0, 0.0, -1.0]))
        tensor([0.7684, 0.1933, 0.0383])
    """

    function = sigsoftmax


class TSoftmax(MappingModule):
    """:func:`tsoftmax` with its ``t``: a number, a tensor (kept as a buffer) or an ``nn.Parameter``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.TSoftmax(1.5)
        TSoftmax(t=1.5, dim=-1)
    """

    function = tsoftmax
    t: float | Tensor

    def __init__(self, t: float | Tensor, dim: int = -1) -> None:
        super().__init__(dim)
        hold(self, "t", t, T)

    def settings(self) -> dict[str, Any]:
        return {"t": self.t}


class RSoftmax(MappingModule):
    """:func:`rsoftmax` with its ``rate``: a number, a tensor (kept as a buffer) or an ``nn.Parameter``.

    A rate that is a number may be set anew between calls, as a schedule does.

    Example:
        >>> import torch, parsimax
        >>> dial = parsimax.RSoftmax(0.5)
        >>> dial(torch.tensor([3.0, 2.0, 1.0, 1.0]))
        tensor([0.8908, 0.1092, 0.0000, 0.0000])
        >>> dial.rate = 0.75
        >>> dial
        RSoftmax(rate=0.75, dim=-1)
    """

    function = rsoftmax
    rate: float | Tensor

    def __init__(self, rate: float | Tensor, dim: int = -1, detach_threshold: bool = False) -> None:
        super().__init__(dim)
        hold(self, "rate", rate, RATE)
        self.detach_threshold = detach_threshold

    def settings(self) -> dict[str, Any]:
        return {"rate": self.rate} | ({"detach_threshold": True} if self.detach_threshold else {})


class TopKSparsemax(MappingModule):
    """:func:`topk_sparsemax` with its ``k``. With ``return_certificate`` it gives a pair, as the function does.

    Example:
        >>> import torch, parsimax
        >>> parsimax.TopKSparsemax(2)(torch.tensor([1.0, 0.8, 0.7]))
        tensor([0.6000, 0.4000, 0.0000])
    """

    function = topk_sparsemax

    def __init__(self, k: int, dim: int = -1, return_certificate: bool = False) -> None:
        super().__init__(dim)
        self.k = check_count(k, "k", "TopKSparsemax")
        self.return_certificate = return_certificate

    def settings(self) -> dict[str, Any]:
        return {"k": self.k} | ({"return_certificate": True} if self.return_certificate else {})


class Normmax(MappingModule):
    """:func:`normmax` with its ``alpha``: a number, a tensor (kept as a buffer) or an ``nn.Parameter``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.Normmax(2.0)(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.6890, 0.3110, 0.0000])
    """

    function = normmax
    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor, dim: int = -1) -> None:
        super().__init__(dim)
        hold(self, "alpha", alpha, NORM)

    def settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha}


class BudgetSparsemax(MappingModule):
    """:func:`budget_sparsemax` with its ``budget``: a number, a tensor (kept as a buffer) or an ``nn.Parameter``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.BudgetSparsemax(2)(torch.tensor([2.0, 0.5, 0.2, -1.0]))
        tensor([1.0000, 0.6500, 0.3500, 0.0000])
    """

    function = budget_sparsemax
    budget: float | Tensor

    def __init__(self, budget: float | Tensor, dim: int = -1) -> None:
        super().__init__(dim)
        hold(self, "budget", budget, BUDGET)

    def settings(self) -> dict[str, Any]:
        return {"budget": self.budget}


class Sparsegen(MappingModule):
    """:func:`sparsegen` with its ``lam``: a number, a tensor (kept as a buffer) or an ``nn.Parameter``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.Sparsegen(0.25)(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.8333, 0.1667, 0.0000])
    """

    function = sparsegen
    lam: float | Tensor

    def __init__(self, lam: float | Tensor, dim: int = -1) -> None:
        super().__init__(dim)
        hold(self, "lam", lam, LAM)

    def settings(self) -> dict[str, Any]:
        return {"lam": self.lam}


class SparseHourglass(MappingModule):
    """:func:`sparsehourglass` with its ``q``: a number, a tensor (kept as a buffer) or an ``nn.Parameter``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.SparseHourglass(1.0)(torch.tensor([4.0, 3.5, 1.0]))
        tensor([0.5870, 0.4130, 0.0000])
    """

    function = sparsehourglass
    q: float | Tensor

    def __init__(self, q: float | Tensor = 10.0, dim: int = -1) -> None:
        super().__init__(dim)
        hold(self, "q", q, Q)

    def settings(self) -> dict[str, Any]:
        return {"q": self.q}
