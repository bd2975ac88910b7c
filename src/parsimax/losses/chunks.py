"""The output layer and its loss in plain torch, a chunk of rows at a time.

A chunk's logits give its losses and, at once, the gradient of each loss by the logits: p - y is zero outside the
support, so a few numbers a row are kept for the backward pass and the logits are dropped. Only a chunk whose rows are
dense is computed again in the backward pass. Label smoothing adds the same multiple of the class weights to every row's
gradient: a term of rank one, which needs no logits either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..engine.chunked import evaluate, rows_of
from ..engine.fused import aliases
from ..engine.modes import is_plain
from ..engine.precision import work_dtype
from .contract import Bound, hard_rows, soft_rows

CHUNK = 1 << 22  # logits at a time
DENSE = 16  # a chunk with more than one non-zero in this many is computed again instead of kept
GATHER = 1 << 13  # rows of the weight gathered at a time in the backward pass


@dataclass(frozen=True)
class Plan:
    """What does not change from chunk to chunk."""

    bound: Bound
    value: float  # α, if it is not a parameter
    smoothing: float
    softcap: float | None
    soft: bool

    @property
    def sparse(self) -> bool:
        """Whether the gradient by the logits is sparse, once smoothing is taken apart."""
        return not self.soft and not (self.smoothing and self.softcap)


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _losses(plan: Plan, logits: Tensor, rest: tuple[Tensor, ...], *, whole: bool = True) -> Tensor:
    rows = soft_rows if plan.soft else partial(hard_rows, whole=whole)
    formula = partial(rows, plan.bound, plan.smoothing)
    return evaluate(formula, logits, *rest, width=1, dtype=work_dtype(logits.device))


def chunked_losses(plan: Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Tensor) -> Tensor:
    """Losses of rows, (N, 1). ``rest`` is (alpha?, target…, class weight): (N, k) or shared as (1, k)."""
    loss: Tensor = _Chunked.apply(plan, hidden, weight, bias, *rest)  # type: ignore[no-untyped-call]
    return loss


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Tensor) -> Tensor:
        ctx.plan, ctx.kept = plan, []
        ctx.save_for_backward(hidden, weight, *rest, *([] if bias is None else [bias]))
        ctx.bias = bias is not None
        losses = []
        for part in _parts(hidden, weight):
            logits = logits_of(hidden[part], weight, bias, plan.softcap)
            pieces = tuple(rows_of(t, part) for t in rest)
            if any(ctx.needs_input_grad) and plan.sparse:
                loss, kept = _with_gradient(plan, logits, pieces)
            else:
                loss, kept = _losses(plan, logits, pieces, whole=not plan.sparse), None
            ctx.kept.append(kept)
            losses.append(loss)
        out = torch.cat(losses) if losses else hidden.new_zeros((0, 1), dtype=work_dtype(hidden.device))
        return out - smooth_term(plan, hidden, weight, bias, rest) if plan.sparse and plan.smoothing else out

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


def _parts(hidden: Tensor, weight: Tensor) -> list[slice]:
    size = max(1, CHUNK // max(1, weight.shape[0]))
    return [slice(at, min(at + size, hidden.shape[0])) for at in range(0, hidden.shape[0], size)]


def smooth_term(plan: Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, rest: tuple[Tensor, ...]) -> Tensor:
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


def _with_gradient(plan: Plan, logits: Tensor, rest: tuple[Tensor, ...]) -> tuple[Tensor, _Kept | None]:
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


def whole_losses(plan: Plan, hidden: Tensor, weight: Tensor, bias: Tensor | None, rest: tuple[Tensor, ...]) -> Tensor:
    return _losses(plan, logits_of(hidden, weight, bias, plan.softcap), rest)


def _whole_backward(
    plan: Plan, inputs: list[Tensor | None], wanted: list[bool], g: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradient as a differentiable function: for create_graph and batched gradients."""
    with torch.enable_grad():
        inputs = list(aliases(inputs, wanted))
        hidden, weight, bias, *rest = inputs
        assert hidden is not None and weight is not None
        y = whole_losses(plan, hidden, weight, bias, tuple(t for t in rest if t is not None))
        at = [t for t, w in zip(inputs, wanted, strict=True) if w and t is not None]
        grads = iter(torch.autograd.grad(y, at, g, create_graph=True, allow_unused=True, materialize_grads=True))
    return tuple(next(grads) if w else None for w in wanted)


def _chunked_backward(
    plan: Plan, kept: list[_Kept | None], inputs: list[Any], wanted: list[bool], g: Tensor
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
    plan: Plan, inputs: list[Any], wanted: list[bool], total: list[Tensor | None], g: Tensor, part: slice
) -> None:
    hidden, weight, bias, *rest = inputs
    rows = [hidden[part], weight, bias, *(rows_of(t, part) for t in rest)]
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() if w else t for t, w in zip(rows, wanted, strict=True)]
        y = _losses(plan, logits_of(leaves[0], leaves[1], leaves[2], plan.softcap), tuple(leaves[3:]))
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


def _add_smooth(plan: Plan, kept: list[_Kept | None], inputs: list[Any], total: list[Tensor | None], g: Tensor) -> None:
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
