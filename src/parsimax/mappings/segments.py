"""entmax over rows of any length that lie one behind the other: graphs, sets, batches without padding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..engine.arguments import check_count, check_scores
from ..engine.clean import as_tensor
from ..engine.fused import for_kernel
from ..engine.modes import derivative_is_observed, kernels_serve
from ..engine.precision import softmax_dtype
from .entmax import ALPHA, entmax
from .entmax_rule import entmax_rule

ops = torch.ops.parsimax
INTEGERS = (torch.int64, torch.int32)


def segment_softmax(
    scores: Tensor, index: Tensor | None = None, *, ptr: Tensor | None = None, num_segments: int | None = None
) -> Tensor:
    r"""Softmax over each segment of the scores, as graph layers normalise the edges that arrive at a node.

    The same as :func:`segment_entmax` at α = 1, and its arguments.

    Args:
        scores: (entries,) or (entries, heads), floating point; -inf forbids an entry.
        index: the segment of each entry, int64, in any order.
        ptr: instead of ``index`` where segments lie one behind the other: segment k is ``scores[ptr[k] : ptr[k + 1]]``.
        num_segments: how many there are, where the last ones are empty; with ``index`` only.

    Returns:
        Probabilities of the shape of ``scores``; those of a segment sum to 1.

    Example:
        >>> import torch, parsimax
        >>> parsimax.segment_softmax(torch.tensor([1.0, 0.0, 5.0, 1.0]), torch.tensor([0, 0, 1, 0]))
        tensor([0.4223, 0.1554, 1.0000, 0.4223])
    """
    return _segments(scores, index, ptr, num_segments, 1.0, "segment_softmax")


def segment_sparsemax(
    scores: Tensor, index: Tensor | None = None, *, ptr: Tensor | None = None, num_segments: int | None = None
) -> Tensor:
    r"""Sparsemax over each segment of the scores: :func:`segment_entmax` at α = 2.

    Args:
        scores: (entries,) or (entries, heads), floating point; -inf forbids an entry.
        index: the segment of each entry, int64, in any order.
        ptr: instead of ``index`` where segments lie one behind the other: segment k is ``scores[ptr[k] : ptr[k + 1]]``.
        num_segments: how many there are, where the last ones are empty; with ``index`` only.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros; those of a segment sum to 1.

    Example:
        >>> import torch, parsimax
        >>> parsimax.segment_sparsemax(torch.tensor([1.0, 0.5, 5.0, -1.0]), ptr=torch.tensor([0, 2, 2, 4]))
        tensor([0.7500, 0.2500, 1.0000, 0.0000])
    """
    return _segments(scores, index, ptr, num_segments, 2.0, "segment_sparsemax")


def segment_entmax15(
    scores: Tensor, index: Tensor | None = None, *, ptr: Tensor | None = None, num_segments: int | None = None
) -> Tensor:
    r"""1.5-entmax over each segment of the scores: :func:`segment_entmax` at α = 1.5.

    Args:
        scores: (entries,) or (entries, heads), floating point; -inf forbids an entry.
        index: the segment of each entry, int64, in any order.
        ptr: instead of ``index`` where segments lie one behind the other: segment k is ``scores[ptr[k] : ptr[k + 1]]``.
        num_segments: how many there are, where the last ones are empty; with ``index`` only.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros; those of a segment sum to 1.

    Example:
        >>> import torch, parsimax
        >>> parsimax.segment_entmax15(torch.tensor([1.0, 0.5, -1.0, 3.0]), torch.tensor([0, 0, 0, 1]))
        tensor([0.6740, 0.3260, 0.0000, 1.0000])
    """
    return _segments(scores, index, ptr, num_segments, 1.5, "segment_entmax15")


def segment_entmax(
    scores: Tensor,
    index: Tensor | None = None,
    alpha: float | Tensor = 1.5,
    *,
    ptr: Tensor | None = None,
    num_segments: int | None = None,
) -> Tensor:
    r"""α-entmax over each segment of the scores: rows of any length without padding.

    .. math:: p_e = \operatorname{entmax}_\alpha(z_{s})_e, \qquad s = \{e' : \text{index}_{e'} = \text{index}_e\}

    Args:
        scores: (entries,) or (entries, heads), floating point; -inf forbids an entry.
        index: the segment of each entry, int64, in any order, as the target nodes of a graph's edges.
        alpha: in [0, ∞]; a float, or a tensor that is 0-dim, or (segments,), or (segments, heads) or (1, heads);
            differentiable.
        ptr: instead of ``index`` where segments lie one behind the other: segment k is ``scores[ptr[k] : ptr[k + 1]]``.
        num_segments: how many there are, where the last ones are empty; with ``index`` only.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros for α > 1; those of a segment sum to 1. Each is what
        :func:`entmax` gives for the segment as a row that -inf fills up to the longest one, to the bit.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([1.0, 0.5, -1.0, 3.0, 2.9])
        >>> parsimax.segment_entmax(scores, torch.tensor([0, 0, 0, 1, 1]), 1.25)
        tensor([0.6315, 0.3451, 0.0235, 0.5297, 0.4703])

    A segment costs as much as the longest of its neighbours for α in [0, 2] (in float64 for 1, 1.5 and 2) if none has
    more than 192 entries, else up to as much as the longest of all; memory grows with the entries alone.
    """
    return _segments(scores, index, ptr, num_segments, alpha, "segment_entmax")


def _segments(
    scores: Tensor,
    index: Tensor | None,
    ptr: Tensor | None,
    num_segments: int | None,
    alpha: float | Tensor,
    where: str,
) -> Tensor:
    check_scores(scores, None, where)
    if scores.dim() > 2:
        raise ValueError(f"{where}: scores must be (entries,) or (entries, heads), got {tuple(scores.shape)}")
    order = None
    if (index is None) == (ptr is None):
        raise TypeError(f"{where}: pass index or ptr, and not both")
    if num_segments is not None:
        num_segments = check_count(num_segments, "num_segments", where, least=0)
    if index is not None:
        ptr, order = _sorted(index, scores, num_segments, where)
    else:
        assert ptr is not None
        _check_ptr(ptr, scores, num_segments, where)
    x = scores.unsqueeze(-1) if scores.dim() == 1 else scores
    x = x if order is None else x[order]
    own = _alpha(alpha, len(ptr) - 1, x, where)
    width = int((ptr[1:] - ptr[:-1]).amax()) if len(ptr) > 1 else 0
    out = softmax_dtype(scores)
    if width == 0:  # no entries; α is in the graph all the same, with a gradient of 0
        return scores.to(out) + (0 * own.sum()).to(out)
    given, value = (own, 0.0) if isinstance(alpha, Tensor) else (None, float(alpha))
    if kernels_serve(where, x, *([] if given is None else [own]), alpha=alpha):
        p = _Segments.apply(x.to(out), given, value, ptr.long(), width)  # type: ignore[no-untyped-call]
    else:
        p = _padded(x, given, value, ptr.long(), width).to(out)
    if order is not None:
        p = torch.zeros_like(p).index_copy(0, order, p)
    result: Tensor = p.squeeze(-1) if scores.dim() == 1 else p
    return result


def _sorted(index: Tensor, scores: Tensor, number: int | None, where: str) -> tuple[Tensor, Tensor | None]:
    """Where segments begin and end once the entries are sorted by them, and that order, or None if they are."""
    if not isinstance(index, Tensor) or index.dtype not in INTEGERS or index.shape != scores.shape[:1]:
        raise ValueError(
            f"{where}: index must be int64 of shape ({len(scores)},), one segment per entry, got {_described(index)}"
        )
    least = int(index.amax()) + 1 if len(index) else 0
    number = least if number is None else number
    if least > number or (len(index) and int(index.amin()) < 0):
        raise IndexError(f"{where}: index must be in [0, {number}), got {int(index.amin())} to {least - 1}")
    counts = torch.bincount(index, minlength=number)
    ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    rising = bool((index[1:] >= index[:-1]).all())
    return ptr, None if rising else index.argsort(stable=True)


def _described(given: object) -> str:
    return f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__


def _check_ptr(ptr: Tensor, scores: Tensor, number: int | None, where: str) -> None:
    if not isinstance(ptr, Tensor) or ptr.dtype not in INTEGERS or ptr.dim() != 1 or len(ptr) == 0:
        raise ValueError(f"{where}: ptr must be int64 of shape (segments + 1,), got {_described(ptr)}")
    if number is not None and number != len(ptr) - 1:
        raise ValueError(f"{where}: ptr has {len(ptr) - 1} segments, num_segments says {number}")
    if int(ptr[0]) != 0 or int(ptr[-1]) != len(scores) or bool((ptr[1:] < ptr[:-1]).any()):
        raise ValueError(f"{where}: ptr must rise from 0 to {len(scores)}, the number of entries")


def _alpha(alpha: float | Tensor, segments: int, x: Tensor, where: str) -> Tensor:
    """(1, 1, 1), or one per row of (segments, heads)."""
    heads = x.shape[1]
    rows = x.new_empty((segments, heads, 1))
    if isinstance(alpha, Tensor) and alpha.dim() > 0:
        if alpha.dim() > 2 or alpha.shape[0] not in (1, segments) or (alpha.dim() == 2 and alpha.shape[1] != heads):
            raise ValueError(
                f"{where}: alpha must be a number or a tensor of shape (), ({segments},), ({segments}, {heads}) or "
                f"(1, {heads}), got {tuple(alpha.shape)}"
            )
        alpha = (alpha.unsqueeze(-1) if alpha.dim() == 1 else alpha).unsqueeze(-1)
    return as_tensor(ALPHA.at(alpha), rows, 2, where)


def _places(ptr: Tensor, width: int) -> Tensor:
    """Where each entry lies among the padded ones."""
    sizes = ptr[1:] - ptr[:-1]
    row = torch.repeat_interleave(torch.arange(len(sizes), device=ptr.device), sizes)
    return row * width + torch.arange(int(ptr[-1]), device=ptr.device) - ptr[row]


def _wide(x: Tensor, place: Tensor, segments: int, width: int, fill: float) -> Tensor:
    """(entries, heads) as rows (segments, heads, width)."""
    room = x.new_full((segments * width, x.shape[1]), fill).index_copy(0, place, x)
    return room.view(segments, width, x.shape[1]).transpose(1, 2)


def _entries(rows: Tensor, place: Tensor) -> Tensor:
    """What :func:`_wide` made of entries, as entries."""
    # reshape and not flatten, for which batched gradients have no rule
    segments, heads, width = rows.shape
    return rows.transpose(1, 2).reshape(segments * width, heads)[place]


def _padded(x: Tensor, alpha: Tensor | None, value: float, ptr: Tensor, width: int) -> Tensor:
    """The same by a padded tensor, in every derivative mode."""
    place = _places(ptr, width)
    rows = _wide(x, place, len(ptr) - 1, width, -math.inf)
    return _entries(entmax(rows, value if alpha is None else alpha), place)


class _Segments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor | None, value: float, ptr: Tensor, width: int) -> Tensor:
        rows = len(ptr) - 1, x.shape[1]
        plain = for_kernel(alpha if alpha is None or alpha.numel() == 1 else alpha.expand(*rows, 1))
        p: Tensor = ops._segment_fwd(x, ptr, plain, value, width)
        ctx.value, ctx.width, ctx.rows = value, width, rows
        ctx.save_for_backward(p, ptr, *([] if alpha is None else [alpha]))
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        p, ptr, *rest = ctx.saved_tensors
        alpha = rest[0] if rest else None
        want = ctx.needs_input_grad[1]
        if derivative_is_observed(g):
            dx, change = _rule(p, g, alpha, ctx.value, ptr, ctx.width)
        else:
            plain = for_kernel(alpha if alpha is None or alpha.numel() == 1 else alpha.expand(*ctx.rows, 1))
            dx, change = ops._segment_bwd(p, g, ptr, plain, ctx.value, ctx.width, want)
        if alpha is None or not want:
            return dx, None, None, None, None
        change = change.reshape(*ctx.rows, 1).sum_to_size(alpha.shape)
        return dx, change.to(alpha.dtype), None, None, None


def _rule(p: Tensor, g: Tensor, alpha: Tensor | None, value: float, ptr: Tensor, width: int) -> tuple[Tensor, Any]:
    """The derivative in torch, on padded rows: it is differentiated itself."""
    place = _places(ptr, width)
    p, g = (_wide(t, place, len(ptr) - 1, width, 0.0) for t in (p, g))
    dx, change = entmax_rule(p, g, alpha, value)
    return _entries(dx, place), change
