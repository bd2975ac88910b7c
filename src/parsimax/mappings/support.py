"""The support of entmax: the few entries that are not zero, without the many that are."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..engine.arguments import check_count, check_dim, check_mask, check_scores
from ..engine.clean import as_tensor
from ..engine.fused import for_kernel
from ..engine.modes import derivative_is_observed, kernels_serve, values_are_hidden
from ..engine.precision import softmax_dtype
from .entmax import ALPHA, entmax
from .entmax_rule import entmax_rule

ops = torch.ops.parsimax
FIRST = 64  # columns to begin with: more than most rows of a sparse mapping have


class Support(NamedTuple):
    """The non-zeros of rows, largest first. What :func:`support` returns."""

    indices: Tensor
    probabilities: Tensor
    counts: Tensor


def support(
    scores: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
    max_size: int | None = None,
) -> Support:
    r"""The non-zeros of :func:`entmax`: where they are, what they are, how many there are.

    For all that is a sum over the support: an expectation over a latent variable, the continuations of a beam, a loss
    over a sharded vocabulary. Its cost after the mapping grows with the support and not with the row.

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        alpha: in [0, ∞], as in :func:`entmax`; differentiable.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the probabilities.
        max_size: keep this many of the largest, or the whole row if it is shorter. They are not scaled up; ``counts``
            says where some were left out. Needed under ``torch.compile``, ``torch.export`` and ``vmap``, where no size
            may depend on values.

    Returns:
        A named tuple ``(indices, probabilities, counts)``. The first two have the shape of ``scores`` with the size of
        the largest support along ``dim``, or ``max_size``: largest first, equal ones in the order of the row. Smaller
        supports are filled up with index 0 and probability 0. ``counts``, the shape of ``scores`` without ``dim``, are
        the sizes of the whole supports. ``probabilities`` is differentiable by scores and α; its backward pass works on
        the support alone.

    Example:
        >>> import torch, parsimax
        >>> found = parsimax.support(torch.tensor([[0.0, 2.0, 1.5, -1.0], [0.0, 0.0, 9.0, 0.0]]), alpha=2)
        >>> found.indices, found.probabilities, found.counts
        (tensor([[1, 2], [2, 0]]), tensor([[0.7500, 0.2500], [1.0000, 0.0000]]), tensor([2, 1]))
        >>> torch.zeros(2, 4).scatter_add(-1, found.indices, found.probabilities)
        tensor([[0.0000, 0.7500, 0.2500, 0.0000],
                [0.0000, 0.0000, 1.0000, 0.0000]])

    A row with NaN has all its entries, each NaN; a row with nothing allowed has none.

    Reference: Correia, Niculae, Aziz and Martins, Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, NeurIPS 2020 (what it is for).
    """
    where = "support"
    check_scores(scores, dtype, where, has_dtype=True)
    dim = check_dim(dim, scores.dim(), where)
    most = None if max_size is None else check_count(max_size, "max_size", where)
    x = scores if dtype is None else scores.to(dtype)
    if mask is not None:
        check_mask(mask, scores, where)
        x = x.masked_fill(~mask, -math.inf)
    own = as_tensor(ALPHA.at(alpha), x, dim, where)
    rows = x.movedim(dim, -1)
    tensors = (rows, own) if isinstance(alpha, Tensor) else (rows,)
    if rows.numel() and kernels_serve(where, *tensors, alpha=alpha):
        own = own if own.numel() == 1 else own.expand(*rows.shape[:-1], 1)
        value = 0.0 if isinstance(alpha, Tensor) else float(alpha)
        rows = rows.to(dtype or softmax_dtype(scores))
        found = _Support.apply(rows, own if isinstance(alpha, Tensor) else None, value)  # type: ignore[no-untyped-call]
    else:
        found = _plainly(entmax(rows, own if isinstance(alpha, Tensor) else alpha, dtype=dtype), most)
    indices, p, counts = found
    if most is not None:  # the same size whatever the values are; a negative pad cuts
        more = (0, min(most, rows.shape[-1]) - p.shape[-1])
        indices, p = F.pad(indices, more), F.pad(p, more)
    return Support(indices.movedim(-1, dim), p.movedim(-1, dim), counts)


def _plainly(p: Tensor, most: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The same from the matrix of probabilities, in every derivative mode."""
    fixed = p.detach()
    counts, n = (fixed != 0).sum(-1), p.shape[-1]
    if most is None:
        if values_are_hidden():
            raise ValueError("support: pass max_size in traced code, where no size may depend on values")
        most = int(counts.amax()) if counts.numel() else 0
    order = fixed.sort(dim=-1, descending=True, stable=True).indices[..., : min(most, n)]
    inside = torch.arange(order.shape[-1], device=p.device) < counts.unsqueeze(-1)
    return torch.where(inside, order, 0), torch.where(inside, p.gather(-1, order), 0), counts


def _compact(x: Tensor, alpha: Tensor | None, value: float) -> tuple[Tensor, Tensor, Tensor]:
    """The support by the kernel, largest first: once more with enough room if some row has more than a few."""
    n, plain = x.shape[-1], for_kernel(alpha)
    indices, p, counts = ops._support_fwd(x, plain, value, min(n, FIRST))
    size = int(counts.max())
    if size > p.shape[-1]:
        indices, p, counts = ops._support_fwd(x, plain, value, size)
    p, order = p[:, :size].sort(dim=-1, descending=True, stable=True)
    return indices[:, :size].gather(-1, order), p, counts


class _Support(torch.autograd.Function):
    """The derivative of entmax needs the support alone, so its rule is applied to that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor | None, value: float) -> tuple[Tensor, Tensor, Tensor]:
        lead = x.shape[:-1]
        indices, p, counts = _compact(x, alpha, value)
        indices, p, counts = indices.view(*lead, -1), p.view(*lead, -1), counts.view(lead)
        ctx.mark_non_differentiable(indices, counts)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(p, indices, *([] if alpha is None else [alpha]))
        ctx.value, ctx.shape = value, x.shape
        return indices, p, counts

    @staticmethod
    def backward(ctx: Any, _: None, g: Tensor | None, __: None) -> tuple[Tensor | None, Tensor | None, None]:
        if g is None:
            return None, None, None
        p, indices, *rest = ctx.saved_tensors
        alpha = rest[0] if rest else None
        want = ctx.needs_input_grad[1]
        if derivative_is_observed(g):
            moved, change = entmax_rule(p, g, alpha, ctx.value)
        else:
            moved, change = ops._entmax_bwd(p, g.contiguous(), for_kernel(alpha), ctx.value, want)
        dx = torch.zeros(ctx.shape, dtype=moved.dtype, device=moved.device).scatter_add(-1, indices, moved)
        if alpha is None or not want or change is None:
            return dx, None, None
        return dx, change.reshape(*ctx.shape[:-1], 1).sum_to_size(alpha.shape).to(alpha.dtype), None
