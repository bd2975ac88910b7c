"""The kernels, ``parsimax::_entmax_fwd`` and so on, and their shape rules. They have no derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import library

LIBRARY = torch.library.Library("parsimax", "FRAGMENT")
CAP = 64  # entries of the support that attention and the fused loss keep for the backward pass


def like(x: Tensor, *_: Any) -> Tensor:
    """A packed tensor of the shape and type of ``x``."""
    return x.new_empty(x.shape)


def wide(x: Tensor) -> torch.dtype:
    """What the kernels compute in."""
    return torch.promote_types(x.dtype, torch.float32)


def _per_row(x: Tensor, wanted: bool) -> Tensor:
    return x.new_empty((math.prod(x.shape[:-1]) if wanted else 0,), dtype=torch.float64)


def _loss_forward(x: Tensor, *_: Any) -> tuple[Tensor, ...]:
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    cap = torch.sym_min(n, torch.sym_max(64, n // 64))
    out = wide(x)
    return (
        x.new_empty((rows,), dtype=out),
        x.new_empty((rows, 5), dtype=torch.float64),
        x.new_empty((rows, cap), dtype=torch.int32),
        x.new_empty((rows, cap), dtype=out),
    )


def _support(x: Tensor, lead: tuple[int, ...], numbers: int, most: int, keep: bool) -> tuple[Tensor, ...]:
    """What is kept for the backward pass: some numbers a row, its support (indices and weights) and how large it is."""
    cap = torch.sym_min(CAP, most) if keep else 0
    return (
        x.new_empty((*lead, numbers), dtype=torch.float64),
        x.new_empty((*lead, cap), dtype=torch.int32),
        x.new_empty((*lead, cap), dtype=wide(x)),
        x.new_empty(lead, dtype=torch.int32),
    )


def _linear_forward(hidden: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    rows = hidden.shape[:1]
    return hidden.new_empty(rows, dtype=wide(hidden)), *_support(hidden, rows, 3, weight.shape[0], rest[-1])


def _linear_backward(g: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    return like(hidden), like(weight), hidden.new_empty((0,), dtype=wide(hidden)) if bias is None else like(bias)


def _attention_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    lead = q.shape[:-1]
    return q.new_empty((*lead, v.shape[-1])), *_support(q, lead, 2, k.shape[-2], rest[-1])


def _attention_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    lead = q.shape[:-1]
    by_alpha = q.new_empty((*lead, 1), dtype=torch.float64)
    by_mask = q.new_empty((*lead, k.shape[-2] if rest[-1] else 0), dtype=wide(q))
    return like(q), like(k), like(v), by_alpha, by_mask


SHAPES: dict[str, Callable[..., Any]] = {
    "_entmax_fwd": like,
    "_entmax_bwd": lambda p, g, alpha, value, wanted: (like(p), _per_row(p, wanted)),
    "_topk_sparsemax_fwd": lambda x, k: (like(x), _per_row(x, True).to(torch.bool)),
    "_rsoftmax_fwd": like,
    "_rsoftmax_bwd": lambda x, g, rate, value, detach, wanted: (like(x), _per_row(x, wanted)),
    "_budget_fwd": like,
    "_budget_bwd": lambda p, g, wanted: (like(p), _per_row(p, wanted)),
    "_loss_fwd": _loss_forward,
    "_loss_bwd": lambda x, target, g, alpha, *_: (like(x), _per_row(x, alpha is not None)),
    "_linear_loss_fwd": _linear_forward,
    "_linear_loss_bwd": _linear_backward,
    "_attention_fwd": _attention_forward,
    "_attention_bwd": _attention_backward,
}
if library.AVAILABLE:
    for _name, _shape in SHAPES.items():
        torch.library.register_fake(f"parsimax::{_name}", _shape, lib=LIBRARY)
