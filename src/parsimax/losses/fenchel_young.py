"""The Fenchel–Young loss of any mapping that has an entropy."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..mappings.declaration import REGISTRY, Entry
from ..mappings.registry import MappingLike, resolve
from .contract import Bound, Options, classification_loss, is_soft
from .entmax_loss import kernel_at


def bind(entry: Entry, settings: dict[str, Any], where: str, *, keep_entropy: bool) -> Bound:
    if entry.regulariser is None:
        have = ", ".join(e.name for e in REGISTRY.values() if e.regulariser)
        raise ValueError(
            f"{where}: {entry.name} is no gradient of a convex function, so it has no such loss; {have} have"
        )
    entropy = entry.regulariser.entropy if keep_entropy else None
    alpha = 0.0 if entry.name == "entmax" else entry.alpha  # that of the kernel of the loss; 0: one that takes a tensor
    kernel = None if alpha is None else kernel_at(alpha)
    setting = entry.loss_setting
    if setting is None:
        return Bound(entry.regulariser.conjugate, (), entropy, kernel)
    value = settings.get(setting.name, setting.default)
    if value is None:
        raise TypeError(f"{where}: {entry.name} needs a setting, such as {setting.name}={setting.example:g}")
    return Bound(entry.regulariser.conjugate, (setting.at(value),), entropy, kernel)


def fenchel_young_loss(
    scores: Tensor,
    target: Tensor,
    mapping: MappingLike,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    **settings: Any,
) -> Tensor:
    r"""The loss whose gradient is mapping(z) - target, for any mapping with an entropy.

    .. math:: L(z; q) = \Omega^*(z) + \Omega(q) - z \cdot q \;\ge\; 0, \qquad L = 0 \iff \operatorname{mapping}(z) = q

    Args:
        scores: (C), (N, C) or (N, C, d1, …), floating point.
        target: class indices of the shape of ``scores`` without C, or probabilities of the shape of ``scores``.
        mapping: softmax, sparsemax, entmax15, entmax, normmax or sparsegen: the name, the function or a module.
        weight: (C), one per class; only with class indices.
        ignore_index: a target to skip.
        reduction: "mean", "sum" or "none".
        label_smoothing: in [0, 1]; the loss is then taken at the smoothed target.
        settings: the mapping's own parameter, such as ``alpha=1.3``, differentiable; α is 1.5 if not given for entmax.

    Returns:
        A scalar, or for "none" one loss per target.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[1.0, 0.5, 0.0]])
        >>> target = parsimax.sparsemax(scores)
        >>> parsimax.fenchel_young_loss(scores, target, "sparsemax")
        tensor(0.)

    :func:`entmax_loss` leaves Ω(q) out, as cross-entropy does; for class indices without smoothing both are the same.

    Reference: Blondel, Martins and Niculae, Learning with Fenchel-Young Losses, JMLR 2020.
    """
    where = "fenchel_young_loss"
    options = Options(weight, ignore_index, reduction, label_smoothing, where)
    entry, settings = resolve(mapping, settings, where)
    bound = bind(entry, settings, where, keep_entropy=True)
    if weight is not None and is_soft(scores, target, where):
        raise ValueError(f"{where}: weight goes with class indices only, got target probabilities")
    return classification_loss(bound, scores, target, options)
