"""The losses as modules, in the place of ``nn.CrossEntropyLoss``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..engine.arguments import check_number
from ..mappings.learned import BoundedParameter, shape_of
from ..mappings.modules import hold, readable, short
from ..mappings.registry import MappingLike, resolve
from .contract import Options
from .entmax_loss import DOMAIN, entmax15_loss, entmax_loss, sparsemax_loss
from .fenchel_young import bind, fenchel_young_loss
from .linear import SOFTCAP, linear_entmax_loss


class ClassificationLoss(nn.Module):
    """The options of ``nn.CrossEntropyLoss``; what the loss modules have in common."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        Options(weight, ignore_index, reduction, label_smoothing, type(self).__name__)
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def options(self) -> dict[str, Any]:
        return {
            "weight": self.weight,
            "ignore_index": self.ignore_index,
            "reduction": self.reduction,
            "label_smoothing": self.label_smoothing,
        }

    def extra_repr(self) -> str:
        shown = {k: v for k, v in self.options().items() if v is not None}
        return ", ".join(f"{name}={short(value)}" for name, value in shown.items())


class SparsemaxLoss(ClassificationLoss):
    """:func:`sparsemax_loss` as a module, with the options of ``nn.CrossEntropyLoss``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.SparsemaxLoss()(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([0]))
        tensor(0.0625)
    """

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return sparsemax_loss(scores, target, **self.options())


class Entmax15Loss(ClassificationLoss):
    """:func:`entmax15_loss` as a module, with the options of ``nn.CrossEntropyLoss``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.Entmax15Loss(label_smoothing=0.1)
        Entmax15Loss(ignore_index=-100, reduction='mean', label_smoothing=0.1)
    """

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return entmax15_loss(scores, target, **self.options())


class EntmaxLoss(ClassificationLoss):
    """:func:`entmax_loss` as a module; ``learnable`` trains α too, inside of ``interval``.

    Example:
        >>> import torch, parsimax
        >>> loss = parsimax.EntmaxLoss(1.3)
        >>> loss
        EntmaxLoss(alpha=1.3, ignore_index=-100, reduction='mean', label_smoothing=0)
        >>> loss(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([0]))
        tensor(0.3326)
    """

    fixed_alpha: float | Tensor

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        *,
        learnable: bool = False,
        shape: tuple[int, ...] = (),
        interval: tuple[float, float] = (1, 2),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.learned_alpha: BoundedParameter | None = None
        if learnable:
            self.learned_alpha = BoundedParameter(alpha, interval, shape_of(alpha, shape), type(self).__name__)
        else:
            hold(self, "fixed_alpha", alpha, DOMAIN)

    @property
    def alpha(self) -> float | Tensor:
        """The α in use."""
        return self.fixed_alpha if self.learned_alpha is None else self.learned_alpha()

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return entmax_loss(scores, target, self.alpha, **self.options())

    def extra_repr(self) -> str:
        value = self.alpha
        shown = f"alpha={short(value.detach() if isinstance(value, Tensor) else value)}"
        if self.learned_alpha is not None:
            shown = f"{shown} learned" if readable(self.learned_alpha.raw) else "alpha learned"
        return f"{shown}, {super().extra_repr()}"


class FenchelYoungLoss(ClassificationLoss):
    """:func:`fenchel_young_loss` of a mapping, given by name, function or module.

    Example:
        >>> import torch, parsimax
        >>> parsimax.FenchelYoungLoss("normmax", alpha=2.0)
        FenchelYoungLoss(normmax, alpha=2, ignore_index=-100, reduction='mean', label_smoothing=0)
    """

    def __init__(
        self,
        mapping: MappingLike,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(weight, ignore_index, reduction, label_smoothing)
        entry, found = resolve(mapping, settings, type(self).__name__)
        bind(entry, found, type(self).__name__, keep_entropy=True)
        self.mapping, self._name, self._own = mapping, entry.name, tuple(settings)
        for name, value in settings.items():  # so that a parameter is trained, saved and moved
            assert entry.setting is not None
            hold(self, name, value, entry.setting.domain)

    @property
    def settings(self) -> dict[str, Any]:
        """The mapping's own parameter, if it was given."""
        return {name: getattr(self, name) for name in self._own}

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return fenchel_young_loss(scores, target, self.mapping, **self.options(), **self.settings)

    def extra_repr(self) -> str:
        settings = "".join(f", {name}={short(value)}" for name, value in self.settings.items())
        return f"{self._name}{settings}, {super().extra_repr()}"


class LinearEntmaxLoss(EntmaxLoss):
    """:func:`linear_entmax_loss` as a module. The layer's weight is given at each call, so it can be tied.

    Example:
        >>> import torch, parsimax
        >>> layer = torch.nn.Linear(8, 100)
        >>> loss = parsimax.LinearEntmaxLoss(1.5, label_smoothing=0.1)
        >>> loss(torch.randn(4, 8), layer.weight, torch.tensor([1, 2, 3, 4]), bias=layer.bias).shape
        torch.Size([])
    """

    def __init__(self, alpha: float | Tensor = 1.5, *, softcap: float | None = None, **options: Any) -> None:
        super().__init__(alpha, **options)
        if softcap is not None:
            check_number(softcap, SOFTCAP, "softcap", type(self).__name__)
        self.softcap = softcap

    def forward(  # type: ignore[override]
        self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        options = self.options()
        options["class_weight"] = options.pop("weight")
        return linear_entmax_loss(hidden, weight, target, self.alpha, bias=bias, softcap=self.softcap, **options)
