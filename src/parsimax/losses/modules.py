"""The losses as modules, in the place of ``nn.CrossEntropyLoss``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..engine.arguments import POSITIVE, check_number
from ..mappings.declaration import REGISTRY, setting_property
from ..mappings.registry import MappingLike, resolve
from ..parameters import Adjustable, Ends, Schedule, short
from .contract import Options
from .entmax_loss import ALPHA, entmax15_loss, entmax_loss, sparsemax_loss
from .fenchel_young import bind, fenchel_young_loss
from .linear import linear_entmax_loss


class ClassificationLoss(Adjustable):
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
        options = [f"{name}={short(value)}" for name, value in self.options().items() if value is not None]
        return ", ".join([*self.shown(whole=False), *options])

    def __repr__(self) -> str:  # one line: what holds a learned α is no child worth a line of its own
        return f"{type(self).__name__}({self.extra_repr()})"


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
    """:func:`entmax_loss` as a module. α is a number, a tensor, a schedule or ``"learned"``.

    ``learnable`` trains α too, from its value on, inside ``interval``; arguments as in :class:`Entmax`.

    Example:
        >>> import torch, parsimax
        >>> loss = parsimax.EntmaxLoss(1.3)
        >>> loss
        EntmaxLoss(alpha=1.3, ignore_index=-100, reduction='mean', label_smoothing=0)
        >>> loss(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([0]))
        tensor(0.3326)
    """

    alpha: float | Tensor = setting_property("alpha")  # type: ignore[assignment]

    def __init__(
        self,
        alpha: float | Tensor | str | Schedule = 1.5,
        *,
        learnable: bool = False,
        shape: tuple[int, ...] = (),
        interval: Ends | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.hold(ALPHA, alpha, type(self).__name__, learnable=learnable, shape=shape, interval=interval)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return entmax_loss(scores, target, self.value("alpha"), **self.options())


class FenchelYoungLoss(ClassificationLoss):
    """:func:`fenchel_young_loss` of a mapping, given by name, function or module.

    The mapping's own setting is a number, a tensor, a schedule or ``"learned"``, inside ``interval``.

    Example:
        >>> import torch, parsimax
        >>> parsimax.FenchelYoungLoss("normmax", alpha=2.0)
        FenchelYoungLoss(normmax, alpha=2, ignore_index=-100, reduction='mean', label_smoothing=0)
        >>> parsimax.FenchelYoungLoss("sparsegen", lam="learned", interval=(-1, 1))
        FenchelYoungLoss(sparsegen, lam=0.25 learned, ignore_index=-100, reduction='mean', label_smoothing=0)
    """

    def __init__(
        self,
        mapping: MappingLike,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        interval: Ends | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(weight, ignore_index, reduction, label_smoothing)
        where = type(self).__name__
        entry, found = resolve(mapping, settings, where)
        self.mapping, self._name = mapping, entry.name
        own = entry.loss_setting
        if own is not None and own.name in settings:
            self.hold(own, settings[own.name], where, interval=interval)
            found = {**found, own.name: self.value(own.name)}
        bind(entry, found, where, keep_entropy=True)

    @property
    def settings(self) -> dict[str, Any]:
        """The mapping's own parameter, if it was given."""
        return {name: self.value(name) for name in self._settings}

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return fenchel_young_loss(scores, target, self.mapping, **self.options(), **self.settings)

    def extra_repr(self) -> str:
        return f"{self._name}, {super().extra_repr()}"


for _entry in REGISTRY.values():  # loss.alpha, loss.lam: as the modules of the mappings have them
    if _entry.setting is not None and _entry.regulariser is not None:
        setattr(FenchelYoungLoss, _entry.setting.name, setting_property(_entry.setting.name))


class LinearEntmaxLoss(EntmaxLoss):
    """:func:`linear_entmax_loss` as a module. The layer's weight is given at each call, so it can be tied.

    Example:
        >>> import torch, parsimax
        >>> layer = torch.nn.Linear(8, 100)
        >>> loss = parsimax.LinearEntmaxLoss(1.5, label_smoothing=0.1)
        >>> loss(torch.randn(4, 8), layer.weight, torch.tensor([1, 2, 3, 4]), bias=layer.bias).shape
        torch.Size([])
    """

    def __init__(
        self, alpha: float | Tensor | str | Schedule = 1.5, *, softcap: float | None = None, **options: Any
    ) -> None:
        super().__init__(alpha, **options)
        if softcap is not None:
            check_number(softcap, POSITIVE, "softcap", type(self).__name__)
        self.softcap = softcap

    def forward(  # type: ignore[override]
        self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        options = self.options()
        options["class_weight"] = options.pop("weight")
        return linear_entmax_loss(
            hidden, weight, target, self.value("alpha"), bias=bias, softcap=self.softcap, **options
        )
