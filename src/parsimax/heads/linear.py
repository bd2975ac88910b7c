"""A linear layer, a function of each score if wanted, and a mapping to probabilities."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..losses import entmax_loss, fenchel_young_loss, linear_entmax_loss
from ..mappings.declaration import Entry, MappingModule
from ..mappings.registry import MappingLike, resolve
from .fused import Fused, reach
from .head import Head, Tied, bent, negative_logs, wide
from .monotonic import Monotonic
from .pieces import steps_of
from .plif import PLIF

FLOOR = 1e-8  # of the loss of mappings without an entropy, as r-softmax's paper has it


class LinearHead(Head):
    """A linear layer and any mapping: the usual output of a classifier or a language model.

    The loss is the mapping's Fenchel–Young loss (cross-entropy for softmax, :func:`linear_entmax_loss` for the entmax
    family), or -log(p + 1e-8) for a mapping that has no entropy.

    Args:
        features: of the hidden states.
        classes: how many.
        mapping: its name, function or module.
        function: an increasing function of each score before the mapping, such as :class:`PLIF`.
        bias: whether a number per class is added to its score.
        tied: an embedding (classes, features) whose weight scores the classes; the head has its device and dtype.
        device: of the parameters, if nothing is tied.
        dtype: of the parameters, if nothing is tied.
        settings: the mapping's own parameter, such as ``alpha=1.3`` or ``alpha="learned"``.

    Example:
        >>> import torch, parsimax
        >>> _ = torch.manual_seed(0)
        >>> head = parsimax.LinearHead(8, 100, "entmax15")
        >>> hidden, target = torch.randn(4, 8), torch.tensor([1, 2, 3, 4])
        >>> head.probs(hidden).sum(-1)
        tensor([1.0000, 1.0000, 1.0000, 1.0000], grad_fn=<SumBackward1>)
        >>> head.loss(hidden, target).shape
        torch.Size([])

    The log-probabilities of softmax have rank at most features + 1 over any contexts. :class:`SigSoftmaxHead`,
    :class:`MonotonicHead`, :class:`PLIFHead` and :class:`MixtureOfSoftmaxes` have no such limit.
    """

    mapping: MappingModule

    def __init__(
        self,
        features: int,
        classes: int,
        mapping: MappingLike = "softmax",
        *,
        function: nn.Module | None = None,
        bias: bool = True,
        tied: Tied = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(features, classes, features, bias, tied, device, dtype)
        self.mapping = mapping_module(mapping, settings, type(self).__name__).to(self.weight.device)
        self.function = None if function is None else like(self.weight, function)

    @property
    def alpha(self) -> float | Tensor | None:
        """The α of entmax in use; None for mappings that are no member of that family."""
        return alpha_of(self.mapping)

    def scores(self, hidden: Tensor) -> Tensor:
        """What goes into the mapping (…, classes); in float32 or better."""
        return bent(self.function, wide(F.linear(hidden, self.weight, self.bias)))

    def whole(self, hidden: Tensor) -> Tensor:
        return mapped_logs(self.mapping, self.scores(hidden))

    def probs(self, hidden: Tensor) -> Tensor:
        """Probabilities (…, classes), which sum to 1; of a sparse mapping most are exactly 0."""
        p: Tensor = self.mapping(self.scores(self._checked(hidden)))
        return p

    def row_losses(self, hidden: Tensor, target: Tensor, options: dict[str, Any]) -> Tensor:
        alpha, entry, own = self.alpha, self.mapping.entry, {**options, "reduction": "none"}
        if target.is_floating_point() and (entry.name == "sigsoftmax" or (isinstance(alpha, float) and alpha == 1)):
            return negative_logs(self.whole(hidden), target, **options)
        if entry.name == "sigsoftmax":
            scores = self.scores(hidden)
            return entmax_loss(scores + F.logsigmoid(scores), target, 1.0, **own)
        if alpha is not None:
            return entmax_loss(self.scores(hidden), target, alpha, **own)
        if entry.regulariser is not None:
            return fenchel_young_loss(self.scores(hidden), target, self.mapping, **own)
        return negative_logs((self.probs(hidden) + FLOOR).log(), target, **options)

    def loss(
        self,
        hidden: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        alpha, softmax = self.alpha, isinstance(self.alpha, float) and self.alpha == 1
        options: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        options["label_smoothing"] = label_smoothing
        if alpha is None or softmax or self.function is not None:
            return super().loss(hidden, target, weight=weight, **options)
        hidden = self._checked(hidden)  # here the support is all that the backward pass needs
        return linear_entmax_loss(hidden, self.weight, target, alpha, bias=self.bias, class_weight=weight, **options)

    def fused(self, hidden: Tensor) -> Fused | None:
        if type(self).scores is not LinearHead.scores or type(self).row_losses is not LinearHead.row_losses:
            return None
        return fused_plan(self, self.function, hidden)

    def extra_repr(self) -> str:
        return f"features={self.features}, classes={self.classes}, bias={self.bias is not None}"


class SigSoftmaxHead(LinearHead):
    """A linear layer and sigsoftmax, which is no more work than softmax and not bound in rank.

    Args:
        features: of the hidden states.
        classes: how many.
        bias: whether a number per class is added to its score.
        tied: an embedding (classes, features) whose weight scores the classes; the head has its device and dtype.
        device: of the parameters, if nothing is tied.
        dtype: of the parameters, if nothing is tied.

    Example:
        >>> import torch, parsimax
        >>> head = parsimax.SigSoftmaxHead(8, 100)
        >>> head(torch.randn(2, 3, 8)).shape
        torch.Size([2, 3, 100])

    Reference: Kanai, Fujiwara, Yamanaka and Adachi, Sigsoftmax, NeurIPS 2018.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        bias: bool = True,
        tied: Tied = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(features, classes, "sigsoftmax", bias=bias, tied=tied, device=device, dtype=dtype)


class MonotonicHead(LinearHead):
    """Softmax of a learned monotonic net of each score: a linear-monotonic-softmax.

    Args:
        features: of the hidden states.
        classes: how many.
        units: sigmoids of the net.
        bound: the scores at the start lie within ± this, about.
        bias: whether a number per class is added to its score.
        tied: an embedding (classes, features) whose weight scores the classes; the head has its device and dtype.
        device: of the parameters, if nothing is tied.
        dtype: of the parameters, if nothing is tied.

    Example:
        >>> import torch, parsimax
        >>> head = parsimax.MonotonicHead(8, 100, units=20)
        >>> bool(torch.isclose(head.probs(torch.randn(8)).sum(), torch.tensor(1.0)))
        True

    :class:`PLIFHead` is far cheaper and has no bounds. Reference: Ganea et al., ICML 2019.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        units: int = 100,
        bound: float = 10.0,
        bias: bool = True,
        tied: Tied = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        own: dict[str, Any] = {"bias": bias, "tied": tied, "device": device, "dtype": dtype}
        super().__init__(features, classes, function=Monotonic(units, bound), **own)


class PLIFHead(LinearHead):
    """Softmax of a learned piecewise linear increasing function of each score; at the start it is linear softmax.

    Args:
        features: of the hidden states.
        classes: how many.
        knots: pieces of the function.
        bound: half the width of the interval that they cover; linear beyond.
        bias: whether a number per class is added to its score.
        tied: an embedding (classes, features) whose weight scores the classes; the head has its device and dtype.
        device: of the parameters, if nothing is tied.
        dtype: of the parameters, if nothing is tied.

    Example:
        >>> import torch, parsimax
        >>> _ = torch.manual_seed(0)
        >>> head = parsimax.PLIFHead(8, 100)
        >>> hidden = torch.randn(4, 8)
        >>> plain = torch.log_softmax(hidden @ head.weight.T, -1)
        >>> torch.allclose(head(hidden), plain, atol=1e-5)
        True

    Reference: Ganea et al., Breaking the Softmax Bottleneck via Learnable Monotonic Pointwise Non-linearities,
    ICML 2019.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        knots: int = 100_000,
        bound: float = 20.0,
        bias: bool = True,
        tied: Tied = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        own: dict[str, Any] = {"bias": bias, "tied": tied, "device": device, "dtype": dtype}
        super().__init__(features, classes, function=PLIF(knots, bound), **own)


def mapping_module(mapping: MappingLike, settings: dict[str, Any], where: str) -> MappingModule:
    if isinstance(mapping, MappingModule) and not settings:
        made = mapping
    else:
        entry: Entry
        entry, settings = resolve(mapping, settings, where)
        made = entry.module(**settings)
    if made.dim != -1:
        raise ValueError(f"{where}: the classes are the last dimension, got a mapping over dim {made.dim}")
    if made.entry.total != 1:
        raise ValueError(
            f"{where}: {made.entry.name} sums to its {made.entry.total}, not to 1; its p is no distribution"
        )
    return made


def like(weight: Tensor, function: nn.Module) -> nn.Module:
    """On the device of the weight; in its type where that is the type of the scores, which half types are not."""
    return function.to(weight.device, wide(weight[:0]).dtype)


def alpha_of(mapping: MappingModule) -> float | Tensor | None:
    entry = mapping.entry
    return mapping.value("alpha") if entry.name == "entmax" else entry.alpha


def fused_plan(head: Any, function: nn.Module | None, hidden: Tensor, mixture: Any = None) -> Fused | None:
    """Kernels know softmax, sigsoftmax, and softmax of a function that is, or can be had as, a table."""
    alpha, sigmoid = alpha_of(head.mapping), head.mapping.entry.name == "sigsoftmax"
    plan = Fused(head.weight, head.bias, sigmoid, function, mixture)
    if sigmoid and function is None:
        return plan
    if not isinstance(alpha, float) or alpha != 1:
        return None
    if isinstance(function, Monotonic):
        if hidden.dtype != torch.float32 or mixture is not None:
            return None
        plan = replace(plan, reach=reach(hidden, head.weight, head.bias))
        return plan if steps_of(function.weights, plan.reach) else None
    return plan if function is None or isinstance(function, PLIF) else None


def mapped_logs(mapping: MappingModule, scores: Tensor) -> Tensor:
    """Logarithms of a mapping's probabilities, of softmax and sigsoftmax without the detour."""
    alpha = alpha_of(mapping)
    if isinstance(alpha, float) and alpha == 1:
        return F.log_softmax(scores, -1)
    if mapping.entry.name == "sigsoftmax":
        return F.log_softmax(scores + F.logsigmoid(scores), -1)
    return log_of(mapping(scores))


def log_of(p: Tensor) -> Tensor:
    """-inf where p is 0, whose logarithm has no gradient and would make those of all scores NaN."""
    live = p != 0
    return torch.where(live, torch.where(live, p, 1).log(), -math.inf)
