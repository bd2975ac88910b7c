"""The output layer and its loss in one: the matrix of all logits never exists."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..engine.arguments import POSITIVE, check_number, check_scores
from ..engine.chunked import flat_rows
from ..engine.clean import as_tensor
from ..engine.modes import is_plain, kernels_serve
from ..engine.operators import define
from ..engine.precision import formula_dtype, work_dtype
from ..kernels.schemas import wide
from .chunks import Plan, chunked_losses, logits_of, smooth_term, whole_losses
from .contract import Options, check_class_weight, check_no_weight, check_targets, loss_dtype, reduced
from .entmax_loss import bind, by_formula, soft_by_formula
from .fused_linear import linear_row_losses


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    alpha: float | Tensor = 1.5,
    *,
    bias: Tensor | None = None,
    class_weight: Tensor | None = None,
    softcap: float | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""A linear layer and :func:`entmax_loss` in one, without the matrix of all logits.

    .. math:: \operatorname{entmax\_loss}(h W^\top + b, y)

    Works a chunk of rows at a time. Its backward pass goes through the support only, plus a term of rank one for label
    smoothing; a chunk whose probabilities are dense is computed again. Under ``torch.func``, and
    without the kernel under ``torch.compile`` and export, it runs unchunked.

    Args:
        hidden: (…, d), the states.
        weight: (V, d), as in ``nn.Linear``.
        target: class indices (…), or probabilities (…, V).
        alpha: in (0, ∞]; a float, or a tensor that is 0-dim or broadcasts to (…, 1); differentiable.
        bias: (V).
        class_weight: (V), the ``weight`` of ``F.cross_entropy``.
        softcap: c > 0 replaces the logits by c·tanh(logits/c).
        ignore_index: a target to skip.
        reduction: "mean", "sum" or "none".
        label_smoothing: in [0, 1].

    Returns:
        A scalar, or for "none" one loss per target.

    Example:
        >>> import torch, parsimax
        >>> _ = torch.manual_seed(0)
        >>> hidden, weight = torch.randn(4, 8), torch.randn(100, 8)
        >>> target = torch.tensor([1, 2, 3, 4])
        >>> fused = parsimax.linear_entmax_loss(hidden, weight, target)
        >>> torch.allclose(fused, parsimax.entmax_loss(hidden @ weight.T, target))
        True

    Reference: Wijmans et al., Cut Your Losses, 2024, do the like for softmax by dropping small gradients. Here they are
    exactly zero.
    """
    where = "linear_entmax_loss"
    kind = hidden.device.type if isinstance(hidden, Tensor) else "cpu"
    if kind != "meta" and torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64:
        # As F.linear would: the layer in the lower precision, the loss in that of cross_entropy there.
        low, out = torch.get_autocast_dtype(kind), _out_dtype(hidden)
        options: dict[str, Any] = {"class_weight": class_weight, "softcap": softcap, "ignore_index": ignore_index}
        options.update(reduction=reduction, label_smoothing=label_smoothing)
        bias = None if bias is None else bias.to(low)
        with torch.autocast(kind, enabled=False):
            return linear_entmax_loss(hidden.to(low), weight.to(low), target, alpha, bias=bias, **options).to(out)
    Options(class_weight, ignore_index, reduction, label_smoothing, where)
    check_scores(hidden, None, where)
    _check_layer(hidden, weight, bias, softcap, where)
    lead, classes = hidden.shape[:-1], weight.shape[0]
    soft = target_is_soft(target, lead, classes, where)
    if soft and ignore_index >= 0:
        raise ValueError(f"{where}: ignore_index goes with class indices only, got {ignore_index}")
    check_class_weight(class_weight, classes, where)
    check_no_weight(alpha, classes, "class_weight", where, place="fourth")
    if class_weight is not None and class_weight.requires_grad:
        raise ValueError(f"{where}: there is no gradient by class_weight here, as in F.cross_entropy; detach it")
    bound = bind(alpha)
    value = 0.0 if bound.parameters or isinstance(alpha, Tensor) else float(alpha)
    plan = Plan(bound, value, label_smoothing, softcap, soft)
    shaped = hidden.new_empty(()).expand(*lead, classes)
    raw = [as_tensor(p, shaped, shaped.dim() - 1, where) for p in bound.parameters]
    work = work_dtype(hidden.device)
    ones = torch.ones(classes, dtype=work, device=hidden.device)
    cw = (ones if class_weight is None else class_weight).reshape((1,) * len(lead) + (classes,))
    count: Tensor | None = None
    if soft:
        rest = [*raw, target, cw]
    else:
        check_targets(target, classes, ignore_index, where)
        keep = (target != ignore_index).unsqueeze(-1)
        index = torch.where(keep, target.unsqueeze(-1).long(), 0)
        rest = [*raw, index, keep, cw]
        own = cw.to(work).reshape(-1)[index] if class_weight is not None else torch.ones_like(index, dtype=work)
        count = torch.where(keep, own, 0).sum()
    plain = is_plain(hidden, weight, target, *raw)
    kinds = {"soft": soft, "smoothing": label_smoothing, "softcap": softcap, "bias": bias}
    kernel = kernels_serve(where, hidden, weight, target, *raw, **kinds)
    if plain or kernel:
        flat = [flat_rows(t, lead) for t in rest]
        run = _by_kernel if kernel else chunked_losses
        loss = run(plan, hidden.reshape(-1, hidden.shape[-1]), weight, bias, *flat).reshape(lead)
    else:
        loss = whole_losses(plan, hidden, weight, bias, tuple(rest)).squeeze(-1)
    return reduced(loss, count, reduction).to(hidden.dtype)


def _by_soft_kernel(plan: Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Tensor) -> Tensor:
    *raw, target, class_weight = rest
    work = formula_dtype(hidden)
    if plan.smoothing:
        target = (1 - plan.smoothing) * target.to(work) + plan.smoothing / weight.shape[0]
    coefficients = (target.to(work) * class_weight.to(work)).to(wide(hidden))
    run = torch.ops.parsimax.linear_entmax_loss if torch.compiler.is_compiling() else _kernel
    loss: Tensor = run(hidden, weight, bias, raw[0] if raw else None, coefficients, plan.value, plan.softcap or 0.0)
    return loss.to(work_dtype(hidden.device))


def _by_kernel(plan: Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Tensor) -> Tensor:
    if plan.soft:
        return _by_soft_kernel(plan, hidden, weight, bias, *rest)
    *raw, index, keep, class_weight = rest
    work, n = work_dtype(hidden.device), weight.shape[0]
    index, keep = index.expand(hidden.shape[0], 1), keep.expand(hidden.shape[0], 1)
    target = torch.where(keep, index, -1).squeeze(-1).contiguous()
    run = torch.ops.parsimax.linear_entmax_loss if torch.compiler.is_compiling() else _kernel
    loss = run(hidden, weight, bias, raw[0] if raw else None, target, plan.value, plan.softcap or 0.0).to(work)
    cw = class_weight.reshape(-1).to(work)
    own = cw.gather(0, index.squeeze(-1))
    if not plan.smoothing:
        return torch.where(own != 0, own * loss, 0)
    # With ℓ the loss of the target: Ω* = ℓ + z_c, so sum_k w_k ℓ_k = (sum w)(ℓ + z_c) - sum_k w_k z_k.
    at = index.squeeze(-1)
    score = (hidden * weight[at]).sum(-1, dtype=work) + (0 if bias is None else bias[at].to(work))
    spread = plan.smoothing / n * cw.sum()
    smooth = smooth_term(plan, hidden, weight, bias, rest).squeeze(-1)
    both = ((1 - plan.smoothing) * own + spread) * loss + spread * score
    return torch.where(keep.squeeze(-1), both, 0) - smooth


def _formula(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    target: Tensor,
    value: float,
    softcap: float,
) -> Tensor:
    """The losses of rows, 0 where the target is -1, with all logits at once."""
    rows = soft_by_formula if target.is_floating_point() else by_formula
    return rows(logits_of(hidden, weight, bias, softcap or None), target, alpha, value).to(wide(hidden))


_kernel = partial(linear_row_losses, whole=_formula)
define(
    "linear_entmax_loss(Tensor hidden, Tensor weight, Tensor? bias, Tensor? alpha, Tensor target, float value, "
    "float softcap) -> Tensor",
    _kernel,
    _formula,
    lambda hidden, *_: hidden.new_empty(hidden.shape[:1], dtype=wide(hidden)),
)


def _out_dtype(hidden: Tensor) -> torch.dtype:
    """That of ``F.cross_entropy`` of ``F.linear``: under autocast the logits are of a lower precision."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64:
        return loss_dtype(torch.empty(1, dtype=torch.get_autocast_dtype(kind), device=hidden.device))
    return loss_dtype(hidden)


def _check_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None, where: str) -> None:
    if not isinstance(weight, Tensor) or weight.dtype != hidden.dtype:
        given = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"{where}: weight must be a tensor of the dtype of hidden, {hidden.dtype}, got {given}")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"{where}: weight must be (classes, {hidden.shape[-1]}) for hidden of shape {tuple(hidden.shape)}, "
            f"got {tuple(weight.shape)}"
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"{where}: bias must have shape ({weight.shape[0]},), got {tuple(bias.shape)}")
    if softcap is not None:
        check_number(softcap, POSITIVE, "softcap", where)


def target_is_soft(target: Tensor, lead: torch.Size, classes: int, where: str) -> bool:
    if not isinstance(target, Tensor):
        raise TypeError(f"{where}: target must be a torch.Tensor, got {type(target).__name__}")
    if target.is_floating_point() and target.shape == (*lead, classes):
        return True
    if target.is_floating_point() or target.dtype == torch.bool:
        raise TypeError(
            f"{where}: target must be class indices of shape {tuple(lead)} or probabilities of shape "
            f"{(*lead, classes)}, got {target.dtype} of shape {tuple(target.shape)}"
        )
    if target.shape != lead:
        raise ValueError(f"{where}: class indices must have shape {tuple(lead)}, got {tuple(target.shape)}")
    return False
