"""What every output head is: hidden states to log-probabilities and to a loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..losses.contract import Options
from .chunks import chunked_loss
from .fused import Fused

Tied = nn.Embedding | nn.Parameter | None


class Head(nn.Module):
    """Hidden states (…, features) to log-probabilities of classes (…, classes). What the heads have in common.

    ``weight`` (classes, width) scores the classes; given ``tied``, it is that embedding's own. A subclass has
    :meth:`whole`, the log-probabilities of a few rows, and may have a cheaper :meth:`row_losses`.

    Example:
        >>> import torch, parsimax
        >>> head = parsimax.LinearHead(8, 100)
        >>> isinstance(head, parsimax.Head), head.features, head.classes
        (True, 8, 100)
    """

    features: int
    weight: nn.Parameter
    bias: nn.Parameter | None
    rows_per_token = 1  # rows of logits that one hidden state takes

    def __init__(
        self,
        features: int,
        classes: int,
        width: int,
        bias: bool,
        tied: Tied,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        for name, value in {"features": features, "classes": classes, "width": width}.items():
            if value < 1:
                raise ValueError(f"{where}: {name} must be 1 or more, got {value}")
        weight: Any = tied.weight if isinstance(tied, nn.Embedding) else tied
        if weight is not None and not isinstance(weight, nn.Parameter):
            raise TypeError(
                f"{where}: tied must be an nn.Embedding or an nn.Parameter, which is what the loss has a gradient by, "
                f"got {type(tied).__name__}"
                + (" whose weight is computed from others" if isinstance(tied, nn.Embedding) else "")
            )
        if weight is not None and (device is not None or dtype is not None):
            raise ValueError(f"{where}: a head with a tied weight has its device and dtype; leave them out")
        if weight is not None and tuple(weight.shape) != (classes, width):
            raise ValueError(
                f"{where}: a tied weight must have shape (classes, width) = {(classes, width)}, "
                f"got {tuple(weight.shape)}"
            )
        self.features = features
        if weight is None:
            weight = nn.Parameter(torch.randn(classes, width, device=device, dtype=dtype) * width**-0.5)
        self.weight = weight
        self.bias = nn.Parameter(weight.new_zeros(classes)) if bias else None

    @property
    def classes(self) -> int:
        return self.weight.shape[0]

    def whole(self, hidden: Tensor) -> Tensor:
        """Log-probabilities, all rows at once."""
        raise NotImplementedError

    def row_losses(self, hidden: Tensor, target: Tensor, options: dict[str, Any]) -> Tensor:
        """The loss of each row of ``hidden`` (n, features), class weights and smoothing in it; all rows at once."""
        return negative_logs(self.whole(hidden), target, **options)

    def fused(self, hidden: Tensor) -> Fused | None:
        """How kernels make the loss of these rows, if they can."""
        return None

    def forward(self, hidden: Tensor) -> Tensor:
        """Log-probabilities (…, classes), -inf where the probability is exactly 0; in float32 or better."""
        return self.whole(self._checked(hidden))

    def probs(self, hidden: Tensor) -> Tensor:
        """Probabilities (…, classes), which sum to 1."""
        return self.forward(hidden).exp()

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
        """The loss, with the contract of ``F.cross_entropy``; never more than a chunk of logits exists.

        Args:
            hidden: (…, features).
            target: class indices (…), or probabilities (…, classes).
            weight: (classes), one per class.
            ignore_index: a target to skip.
            reduction: "mean", "sum" or "none". For the first two gradients are made in the forward pass; for the last
                each chunk is computed again in the backward pass.
            label_smoothing: in [0, 1].

        Returns:
            A scalar, or for "none" one loss per target.
        """
        where = f"{type(self).__name__}.loss"
        options = Options(weight, ignore_index, reduction, label_smoothing, where)
        return chunked_loss(self, self._checked(hidden), target, options)

    def _checked(self, hidden: Tensor) -> Tensor:
        if not isinstance(hidden, Tensor) or not hidden.is_floating_point():
            given = hidden.dtype if isinstance(hidden, Tensor) else type(hidden).__name__
            raise TypeError(f"{type(self).__name__}: hidden must be a floating-point tensor, got {given}")
        if not hidden.dim() or hidden.shape[-1] != self.features:
            raise ValueError(
                f"{type(self).__name__}: hidden must be (…, {self.features}), got shape {tuple(hidden.shape)}"
            )
        return hidden


def head_loss(hidden: Tensor, target: Tensor, head: Head, **options: Any) -> Tensor:
    """The loss of a head: ``head.loss(hidden, target, **options)`` as a function, for :func:`explain`.

    Args:
        hidden: (…, features).
        target: class indices (…), or probabilities (…, classes).
        head: any :class:`Head`.
        options: ``weight``, ``ignore_index``, ``reduction`` and ``label_smoothing``, as in ``F.cross_entropy``.

    Returns:
        A scalar, or for ``reduction="none"`` one loss per target.

    Example:
        >>> import torch, parsimax
        >>> _ = torch.manual_seed(0)
        >>> head = parsimax.LinearHead(8, 100)
        >>> hidden, target = torch.randn(4, 8), torch.tensor([1, 2, 3, 4])
        >>> logits = hidden @ head.weight.T + head.bias
        >>> torch.allclose(parsimax.head_loss(hidden, target, head), torch.nn.functional.cross_entropy(logits, target))
        True
    """
    return head.loss(hidden, target, **options)


def wide(scores: Tensor) -> Tensor:
    """In float32 or better: a probability of a half type has few digits."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def negative_logs(
    logs: Tensor, target: Tensor, *, weight: Tensor | None, ignore_index: int, label_smoothing: float
) -> Tensor:
    """-log p of the target, combined as ``F.cross_entropy`` does, one per row; a term with coefficient 0 is 0."""
    n = logs.shape[-1]
    each = torch.ones(n, dtype=logs.dtype, device=logs.device) if weight is None else weight.to(logs.dtype)
    if target.is_floating_point():
        share = ((1 - label_smoothing) * target + label_smoothing / n) * each
        return -torch.where(share != 0, share * logs, 0).sum(-1)
    keep = target != ignore_index
    index = torch.where(keep, target, 0).long().unsqueeze(-1)
    own = each[index.squeeze(-1)] * (1 - label_smoothing)
    loss = -torch.where(own != 0, own * logs.gather(-1, index).squeeze(-1), 0)
    if label_smoothing:
        loss = loss - label_smoothing / n * torch.where(each != 0, each * logs, 0).sum(-1)
    return torch.where(keep, loss, 0)


def bent(function: nn.Module | None, scores: Tensor) -> Tensor:
    """A function of each score; -inf, a forbidden class, stays what it is."""
    if function is None:
        return scores
    live = scores != -math.inf
    bent_scores: Tensor = function(torch.where(live, scores, 0))
    return torch.where(live, bent_scores, scores)
