"""The Fenchel–Young losses of the entmax family, in the place of cross-entropy."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..engine.arguments import check_scores
from ..engine.chunked import Solve, Traced
from ..engine.operators import define
from ..engine.precision import work_dtype
from ..kernels.schemas import wide
from ..mappings.entmax import ALPHA as ENTMAX_ALPHA
from ..mappings.entmax import MEMBERS, Entmax, argmax_rows, entmax_conjugate
from .contract import (
    Bound,
    Options,
    RowLosses,
    SoftLosses,
    check_no_weight,
    class_dim,
    classification_loss,
    hard_rows,
    soft_rows,
)
from .fused_rows import row_losses, soft_row_losses

ALPHA = Entmax.entry.loss_setting or ENTMAX_ALPHA


def _largest(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    """The conjugate at α = infinity: the maximum, whose gradient is uniform over ties."""
    return (argmax_rows(z, live, solve=solve).detach() * z).sum(-1, keepdim=True)


SPECIAL = {alpha: entry.regulariser.conjugate for alpha, entry in MEMBERS.items()} | {math.inf: _largest}


def bind(alpha: float | Tensor) -> Bound:
    if isinstance(alpha, (int, float)) and not isinstance(alpha, bool) and alpha in SPECIAL:
        at = float(alpha)
        return Bound(SPECIAL[at], kernel=kernel_at(at), soft_kernel=soft_kernel_at(at))
    return Bound(entmax_conjugate, (ALPHA.at(alpha),), kernel=kernel_at(0.0), soft_kernel=soft_kernel_at(0.0))


def by_formula(
    x: Tensor,
    target: Tensor,
    alpha: Tensor | None,
    value: float,
    smoothing: float = 0.0,
    weight: Tensor | None = None,
) -> Tensor:
    """The loss of each row (…, n), 0 where the target is -1; ``value`` is α if no tensor is."""
    bound, raw = (bind(value), ()) if alpha is None else (bind(alpha), (alpha,))
    if weight is None:
        weight = torch.ones(x.shape[-1:], dtype=work_dtype(x.device), device=x.device)
    weight = weight.reshape((1,) * (x.dim() - 1) + x.shape[-1:])
    index, keep = target.clamp(min=0).unsqueeze(-1), (target >= 0).unsqueeze(-1)
    return hard_rows(bound, smoothing, x, *raw, index, keep, weight, solve=Traced()).squeeze(-1)


def _formula(x: Tensor, *rest: Any) -> Tensor:
    return by_formula(x, *rest).to(wide(x))


def _rows(
    x: Tensor, target: Tensor, alpha: Tensor | None, smoothing: float, weight: Tensor | None, value: float
) -> Tensor:
    run = torch.ops.parsimax.entmax_loss if torch.compiler.is_compiling() else _kernel
    loss: Tensor = run(x, target, alpha, value, smoothing, weight)
    return loss


_kernel = partial(row_losses, whole=by_formula)


def kernel_at(value: float) -> RowLosses:
    """The kernel of the loss at a fixed α; 0 if α comes as a tensor."""
    return partial(_rows, value=value)


def soft_by_formula(x: Tensor, target: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    """The loss of each row against target probabilities (…, n)."""
    bound, raw = (bind(value), ()) if alpha is None else (bind(alpha), (alpha,))
    weight = torch.ones((1,) * (x.dim() - 1) + x.shape[-1:], dtype=work_dtype(x.device), device=x.device)
    return soft_rows(bound, 0.0, x, *raw, target, weight, solve=Traced()).squeeze(-1)


def _soft_formula(x: Tensor, *rest: Any) -> Tensor:
    return soft_by_formula(x, *rest).to(wide(x))


def _soft_rows(x: Tensor, target: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    run = torch.ops.parsimax.entmax_soft_loss if torch.compiler.is_compiling() else _soft_kernel
    loss: Tensor = run(x, target, alpha, value)
    return loss


_soft_kernel = partial(soft_row_losses, whole=soft_by_formula)


def soft_kernel_at(value: float) -> SoftLosses:
    """The same for target probabilities."""
    return partial(_soft_rows, value=value)


define(
    "entmax_soft_loss(Tensor x, Tensor target, Tensor? alpha, float value) -> Tensor",
    _soft_kernel,
    _soft_formula,
    lambda x, *_: x.new_empty(x.shape[:-1], dtype=wide(x)),
)
define(
    "entmax_loss(Tensor x, Tensor target, Tensor? alpha, float value, float smoothing, Tensor? weight) -> Tensor",
    _kernel,
    _formula,
    lambda x, *_: x.new_empty(x.shape[:-1], dtype=wide(x)),
)


def entmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: float | Tensor = 1.5,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""The α-entmax loss, with the contract of ``F.cross_entropy``.

    .. math:: \ell_c(z) = \Omega_\alpha^*(z) - z_c = \max_{p \in \Delta} \big( p \cdot z + H_\alpha(p) \big) - z_c,
              \qquad \nabla_z \ell_c = \operatorname{entmax}_\alpha(z) - e_c

    It is 0 exactly when the score of the right class leads all others by the margin 1/(α-1). ``weight``,
    ``label_smoothing``, target probabilities, ignored targets and reductions combine the :math:`\ell_c` exactly as
    cross-entropy combines the -log p_c, so at α = 1 it is cross-entropy. For target probabilities the constant Ω(q) is
    left out, as cross-entropy leaves out the entropy of the target; :func:`fenchel_young_loss` keeps it.

    Args:
        scores: (C), (N, C) or (N, C, d1, …), floating point. -inf on a wrong class leaves the loss finite; on the right
            class it is inf.
        target: class indices of the shape of ``scores`` without C, or probabilities of the shape of ``scores``.
        alpha: in (0, ∞]; a float, or a tensor that is 0-dim or broadcasts to ``scores`` with size 1 along C;
            differentiable.
        weight: (C), one per class.
        ignore_index: a target to skip; it counts neither in the sum nor in the mean.
        reduction: "mean" (weighted, as cross-entropy has it), "sum" or "none".
        label_smoothing: in [0, 1], the share of the target that is spread over all classes.

    Returns:
        A scalar, or for "none" one loss per target.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[2.0, 0.5, 0.0], [0.0, 3.0, 0.0]])
        >>> parsimax.entmax_loss(scores, torch.tensor([0, 1]), reduction="none")
        tensor([0.0088, 0.0000])

    :func:`sparsemax_loss` and :func:`entmax15_loss` are α = 2 and 1.5; :func:`linear_entmax_loss` has the layer in it.

    Reference: Blondel, Martins and Niculae, Learning with Fenchel-Young Losses, JMLR 2020; Peters, Niculae and Martins,
    ACL 2019.
    """
    where = "entmax_loss"
    options = Options(weight, ignore_index, reduction, label_smoothing, where)
    check_scores(scores, None, where)
    check_no_weight(alpha, scores.shape[class_dim(scores)], "weight", where)
    return classification_loss(bind(alpha), scores, target, options)


def sparsemax_loss(
    scores: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""The sparsemax loss: :func:`entmax_loss` at α = 2, zero from a margin of 1 on.

    .. math:: \ell_c(z) = \max_{p \in \Delta} \big( p \cdot z + \tfrac12 (1 - \|p\|^2) \big) - z_c

    Args:
        scores: (C), (N, C) or (N, C, d1, …), floating point.
        target: class indices of the shape of ``scores`` without C, or probabilities of the shape of ``scores``.
        weight: (C), one per class.
        ignore_index: a target to skip.
        reduction: "mean", "sum" or "none".
        label_smoothing: in [0, 1].

    Returns:
        A scalar, or for "none" one loss per target.

    Example:
        >>> import torch, parsimax
        >>> parsimax.sparsemax_loss(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([0]))
        tensor(0.0625)

    Reference: Martins and Astudillo, From Softmax to Sparsemax, ICML 2016.
    """
    options = Options(weight, ignore_index, reduction, label_smoothing, "sparsemax_loss")
    return classification_loss(bind(2.0), scores, target, options)


def entmax15_loss(
    scores: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""The 1.5-entmax loss: :func:`entmax_loss` at α = 1.5, zero from a margin of 2 on.

    .. math:: \ell_c(z) = \max_{p \in \Delta} \big( p \cdot z + \tfrac43 \textstyle\sum_j (p_j - p_j^{1.5}) \big) - z_c

    Args:
        scores: (C), (N, C) or (N, C, d1, …), floating point.
        target: class indices of the shape of ``scores`` without C, or probabilities of the shape of ``scores``.
        weight: (C), one per class.
        ignore_index: a target to skip.
        reduction: "mean", "sum" or "none".
        label_smoothing: in [0, 1].

    Returns:
        A scalar, or for "none" one loss per target.

    Example:
        >>> import torch, parsimax
        >>> parsimax.entmax15_loss(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([0]))
        tensor(0.2033)

    Reference: Peters, Niculae and Martins, Sparse Sequence-to-Sequence Models, ACL 2019.
    """
    options = Options(weight, ignore_index, reduction, label_smoothing, "entmax15_loss")
    return classification_loss(bind(1.5), scores, target, options)
