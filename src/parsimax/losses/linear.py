"""The output layer and its loss in one: the matrix of all logits never exists.

Rows go through in chunks. A chunk's logits give its losses and, at once, the gradient of each loss by the logits: p - y
is zero outside of the support, so a few numbers a row are kept for the backward pass and the logits are dropped. Only a
chunk whose rows are dense is computed again in the backward pass. Label smoothing adds the same multiple of the class
weights to every row's gradient: a term of rank one, which needs no logits either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._arguments import Interval, check_number, check_scores
from ..kernels import dispatch
from ..kernels.linear import linear_row_losses
from ..kernels.rows import aliases
from ..mappings.apply import as_tensor, clean
from ..mappings.rows import Solve, Traced, evaluate, is_plain, work_dtype
from .contract import (
    Bound,
    Options,
    check_class_weight,
    check_targets,
    class_weight_of,
    conjugate_rows,
    hard_rows,
    loss_dtype,
    reduced,
    soft_rows,
)
from .entmax_loss import bind

CHUNK = 1 << 22  # logits at a time
DENSE = 16  # a chunk with more than one non-zero in this many is computed again instead of kept
SOFTCAP = Interval(0, math.inf, closed_low=False, closed_high=False)
GATHER = 1 << 13  # rows of the weight gathered at a time in the backward pass


@dataclass(frozen=True)
class _Plan:
    """What does not change from chunk to chunk."""

    bound: Bound
    smoothing: float
    softcap: float | None
    soft: bool

    @property
    def sparse(self) -> bool:
        """Whether the gradient by the logits is sparse, once smoothing is taken apart."""
        return not self.soft and not (self.smoothing and self.softcap)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _support_rows(bound: Bound, smoothing: float, x: Tensor, *rest: Tensor, solve: Solve) -> Tensor:
    """The part of a smoothed loss whose gradient is sparse: all but -(smoothing/n) sum_c weight_c logit_c."""
    *raw, index, keep, weight = rest
    rows = clean(x, traced=isinstance(solve, Traced))
    omega, _ = conjugate_rows(bound, x, rows, tuple(raw), keep, solve)
    weight = weight.to(omega.dtype)
    scale = class_weight_of(index, weight)
    own = omega - (x.gather(-1, index).to(omega.dtype) - rows.top)
    loss = torch.where(scale != 0, scale * own, 0) * (1 - smoothing) if smoothing < 1 else torch.zeros_like(own)
    if smoothing:
        loss = loss + smoothing / x.shape[-1] * weight.sum(-1, keepdim=True) * (omega + rows.top)
    return torch.where(keep, loss, 0)


def _losses(plan: _Plan, logits: Tensor, rest: tuple[Tensor, ...], *, whole: bool = True) -> Tensor:
    rows = soft_rows if plan.soft else hard_rows if whole else _support_rows
    formula = partial(rows, plan.bound, plan.smoothing)
    return evaluate(formula, logits, *rest, width=1, dtype=work_dtype(logits.device))


class _Chunked(torch.autograd.Function):
    """Losses of rows, (N, 1). ``rest`` is (alpha?, target…, class weight): (N, k) or shared as (1, k)."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Tensor) -> Tensor:
        ctx.plan, ctx.kept = plan, []
        ctx.save_for_backward(hidden, weight, *rest, *([] if bias is None else [bias]))
        ctx.bias = bias is not None
        losses = []
        for part in _parts(hidden, weight):
            logits = _logits(hidden[part], weight, bias, plan.softcap)
            pieces = tuple(_take(t, part) for t in rest)
            if any(ctx.needs_input_grad) and plan.sparse:
                loss, kept = _with_gradient(plan, logits, pieces)
            else:
                loss, kept = _losses(plan, logits, pieces, whole=not plan.sparse), None
            ctx.kept.append(kept)
            losses.append(loss)
        out = torch.cat(losses) if losses else hidden.new_zeros((0, 1), dtype=work_dtype(hidden.device))
        return out - _smooth(plan, hidden, weight, bias, rest) if plan.sparse and plan.smoothing else out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, *rest = ctx.saved_tensors
        bias = rest.pop() if ctx.bias else None
        needs = ctx.needs_input_grad
        wanted = [needs[1], needs[2], needs[3], *needs[4:]]
        inputs = [hidden, weight, bias, *rest]
        if torch.is_grad_enabled() or not is_plain(g, hidden, weight):
            grads = _whole_backward(ctx.plan, inputs, wanted, g)
        else:
            grads = _chunked_backward(ctx.plan, ctx.kept, inputs, wanted, g)
        return (None, *grads)


def _take(t: Tensor, part: slice) -> Tensor:
    return t if t.shape[0] == 1 else t[part]


def _parts(hidden: Tensor, weight: Tensor) -> list[slice]:
    size = max(1, CHUNK // max(1, weight.shape[0]))
    return [slice(at, min(at + size, hidden.shape[0])) for at in range(0, hidden.shape[0], size)]


def _smooth(plan: _Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, rest: tuple[Tensor, ...]) -> Tensor:
    """(smoothing/n) sum_c weight_c logit_c for the rows that count, without the logits."""
    work = work_dtype(hidden.device)
    *_, keep, class_weight = rest
    cw = class_weight.reshape(-1).to(work)
    wide = torch.promote_types(weight.dtype, torch.float32)
    total = (hidden.to(work) @ (cw.to(wide) @ weight.to(wide)).to(work)).unsqueeze(-1)
    if bias is not None:
        total = total + torch.where(cw != 0, cw * bias.to(work), 0).sum()
    return torch.where(keep, total * (plan.smoothing / weight.shape[0]), 0)


@dataclass
class _Kept:
    """The gradient of a chunk's losses by its logits, where it is not 0; and by α, one per row."""

    row: Tensor
    column: Tensor
    value: Tensor
    alpha: Tensor | None


def _with_gradient(plan: _Plan, logits: Tensor, rest: tuple[Tensor, ...]) -> tuple[Tensor, _Kept | None]:
    """Losses of a chunk and their gradients, or None for the latter if they are dense."""
    count = len(plan.bound.parameters)
    with torch.enable_grad():
        x = logits.detach().requires_grad_()
        alpha = [
            a.detach().to(work_dtype(a.device)).expand(x.shape[0], 1).clone().requires_grad_() for a in rest[:count]
        ]
        loss = _losses(plan, x, (*alpha, *rest[count:]), whole=False)
    by_logit, *by_alpha = torch.autograd.grad(loss, [x, *alpha], torch.ones_like(loss))
    row, column = by_logit.nonzero(as_tuple=True)
    if row.numel() * DENSE > by_logit.numel():
        return loss.detach(), None
    value = by_logit[row, column]
    if plan.softcap is not None:
        value = value * (1 - (logits[row, column] / plan.softcap).square())
    return loss.detach(), _Kept(row, column, value, by_alpha[0] if by_alpha else None)


def _whole(plan: _Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, rest: tuple[Tensor, ...]) -> Tensor:
    return _losses(plan, _logits(hidden, weight, bias, plan.softcap), rest)


def _whole_backward(
    plan: _Plan, inputs: list[Tensor | None], wanted: list[bool], g: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradient as a differentiable function: for create_graph and batched gradients."""
    with torch.enable_grad():
        inputs = list(aliases(inputs, wanted))
        hidden, weight, bias, *rest = inputs
        assert hidden is not None and weight is not None
        y = _whole(plan, hidden, weight, bias, tuple(t for t in rest if t is not None))
        at = [t for t, w in zip(inputs, wanted, strict=True) if w and t is not None]
        grads = iter(torch.autograd.grad(y, at, g, create_graph=True, allow_unused=True, materialize_grads=True))
    return tuple(next(grads) if w else None for w in wanted)


def _chunked_backward(
    plan: _Plan, kept: list[_Kept | None], inputs: list[Any], wanted: list[bool], g: Tensor
) -> tuple[Tensor | None, ...]:
    hidden, weight = inputs[:2]
    # Sums over many rows are kept in at least float32 and rounded once.
    wide = torch.promote_types(hidden.dtype, torch.float32)
    work = work_dtype(hidden.device)
    total = [
        torch.zeros(t.shape, dtype=work if i > 2 else wide, device=t.device) if w else None
        for i, (t, w) in enumerate(zip(inputs, wanted, strict=True))
    ]
    for part, known in zip(_parts(hidden, weight), kept, strict=True):
        if known is None:
            _add_dense(plan, inputs, wanted, total, g, part)
        else:
            _add_sparse(known, hidden[part], weight, total, g[part], part)
    if plan.sparse and plan.smoothing:
        _add_smooth(plan, kept, inputs, total, g)
    return tuple(t if t is None else t.to(i.dtype) for t, i in zip(total, inputs, strict=True))


def _add_dense(
    plan: _Plan, inputs: list[Any], wanted: list[bool], total: list[Tensor | None], g: Tensor, part: slice
) -> None:
    hidden, weight, bias, *rest = inputs
    rows = [hidden[part], weight, bias, *(_take(t, part) for t in rest)]
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() if w else t for t, w in zip(rows, wanted, strict=True)]
        y = _losses(plan, _logits(leaves[0], leaves[1], leaves[2], plan.softcap), tuple(leaves[3:]))
    at = [t for t, w in zip(leaves, wanted, strict=True) if w]
    grads = iter(torch.autograd.grad(y, at, g[part], allow_unused=True, materialize_grads=True))
    for i, (sum_, w) in enumerate(zip(total, wanted, strict=True)):
        if sum_ is None or not w:
            continue
        grad = next(grads)
        per_row = i not in (1, 2) and inputs[i].shape[0] != 1
        if per_row:
            sum_[part] += grad
        else:
            sum_ += grad


def _add_sparse(
    known: _Kept, hidden: Tensor, weight: Tensor, total: list[Tensor | None], g: Tensor, part: slice
) -> None:
    by_hidden, by_weight, by_bias, *by_rest = total
    value = (known.value * g[known.row, 0]).to(torch.promote_types(hidden.dtype, torch.float32))
    for at in range(0, value.numel(), GATHER):
        few = slice(at, at + GATHER)
        row, column, v = known.row[few], known.column[few], value[few, None]
        if by_hidden is not None:
            by_hidden[part].index_add_(0, row, weight[column].to(v.dtype) * v)
        if by_weight is not None:
            by_weight.index_add_(0, column, hidden[row].to(v.dtype) * v)
    if by_bias is not None:
        by_bias.index_add_(0, known.column, value)
    if known.alpha is not None and by_rest[0] is not None:
        change = known.alpha * g
        if by_rest[0].shape[0] == 1:
            by_rest[0] += change.sum(0, keepdim=True)
        else:
            by_rest[0][part] += change


def _add_smooth(
    plan: _Plan, kept: list[_Kept | None], inputs: list[Any], total: list[Tensor | None], g: Tensor
) -> None:
    """Minus (smoothing/n) w hᵀ for each row h that counts, class weights w; chunks computed again have it already."""
    hidden, weight, *_, keep, class_weight = inputs
    by_hidden, by_weight, by_bias, *_ = total
    scale = torch.where(keep, g, 0).expand(hidden.shape[0], 1).clone()
    for part, known in zip(_parts(hidden, weight), kept, strict=True):
        if known is None:
            scale[part] = 0
    wide = torch.promote_types(hidden.dtype, torch.float32)
    scale = (scale * (plan.smoothing / weight.shape[0])).to(wide)
    cw = class_weight.reshape(-1).to(wide)
    if by_hidden is not None:
        by_hidden -= scale * (cw @ weight.to(wide))
    if by_weight is not None:
        by_weight -= torch.outer(cw, (scale * hidden).sum(0))
    if by_bias is not None:
        by_bias -= cw * scale.sum()


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
    smoothing; a chunk whose probabilities are dense is computed again. Under ``torch.compile``, export and
    ``torch.func`` it runs unchunked.

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
        options |= {"reduction": reduction, "label_smoothing": label_smoothing}
        bias = None if bias is None else bias.to(low)
        with torch.autocast(kind, enabled=False):
            return linear_entmax_loss(hidden.to(low), weight.to(low), target, alpha, bias=bias, **options).to(out)
    Options(class_weight, ignore_index, reduction, label_smoothing, where)
    check_scores(hidden, None, where)
    _check_layer(hidden, weight, bias, softcap, where)
    lead, classes = hidden.shape[:-1], weight.shape[0]
    soft = _is_soft(target, lead, classes, where)
    check_class_weight(class_weight, classes, where)
    if class_weight is not None and class_weight.requires_grad:
        raise ValueError(f"{where}: there is no gradient by class_weight here, as in F.cross_entropy; detach it")
    bound = bind(alpha)
    plan = _Plan(bound, label_smoothing, softcap, soft)
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
    if is_plain(hidden, weight, target, *raw):
        flat = [_flat(t, lead) for t in rest]
        states = hidden.reshape(-1, hidden.shape[-1])
        run = _by_kernel if _kernel_can(plan, states, weight, bias, *raw) else _by_chunks
        loss = run(plan, states, weight, bias, *flat).reshape(lead)
    else:
        loss = _whole(plan, hidden, weight, bias, tuple(rest)).squeeze(-1)
    return reduced(loss, count, reduction).to(hidden.dtype)


def _flat(t: Tensor, lead: torch.Size) -> Tensor:
    return t.reshape(1, -1) if t.shape[:-1].numel() == 1 else t.expand(*lead, -1).reshape(-1, t.shape[-1])


def _by_chunks(plan: _Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Tensor) -> Tensor:
    loss: Tensor = _Chunked.apply(plan, hidden, weight, bias, *rest)  # type: ignore[no-untyped-call]
    return loss


def _kernel_can(plan: _Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, *raw: Tensor) -> bool:
    """Whether the kernel serves: not with autocast, which would cast the layer, nor with infinite biases to smooth."""
    return (
        plan.sparse
        and hidden.dtype == weight.dtype
        and not torch.is_autocast_enabled(hidden.device.type)
        and dispatch.cpu("linear_entmax_loss", hidden, weight, *raw)
        and not (plan.smoothing and bias is not None and not bias.isfinite().all())
    )


def _by_kernel(plan: _Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Tensor) -> Tensor:
    *raw, index, keep, class_weight = rest
    work, n = work_dtype(hidden.device), weight.shape[0]
    alone = torch.ones(1, n, dtype=work)
    index, keep = index.expand(hidden.shape[0], 1), keep.expand(hidden.shape[0], 1)

    def whole(hidden: Tensor, weight: Tensor, bias: Tensor | None, alpha: Tensor | None) -> Tensor:
        parts = (*(() if alpha is None else (alpha,)), index, keep, alone)
        return _whole(_Plan(plan.bound, 0.0, plan.softcap, False), hidden, weight, bias, parts).squeeze(-1)

    alpha, fixed = (raw[0], 0.0) if raw else (None, plan.bound.alpha or 0.0)
    target = torch.where(keep, index, -1).squeeze(-1).contiguous()
    loss = linear_row_losses(hidden, weight, bias, alpha, target, fixed, plan.softcap or 0.0, whole).to(work)
    cw = class_weight.reshape(-1).to(work)
    own = cw[index.squeeze(-1)]
    if not plan.smoothing:
        return torch.where(own != 0, own * loss, 0)
    # With ℓ the loss of the target: Ω* = ℓ + z_c, so sum_k w_k ℓ_k = (sum w)(ℓ + z_c) - sum_k w_k z_k.
    at = index.squeeze(-1)
    score = (hidden * weight[at]).sum(-1, dtype=work) + (0 if bias is None else bias[at].to(work))
    spread = plan.smoothing / n * cw.sum()
    smooth = _smooth(plan, hidden, weight, bias, rest).squeeze(-1)
    both = ((1 - plan.smoothing) * own + spread) * loss + spread * score
    return torch.where(keep.squeeze(-1), both, 0) - smooth


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
        check_number(softcap, SOFTCAP, "softcap", where)


def _is_soft(target: Tensor, lead: torch.Size, classes: int, where: str) -> bool:
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
