"""Every operator of the kernels, once: its schema, the shapes of what it gives, and the layout of what it saves.

A back end registers implementations of these for its device, and torch picks by device. They have no derivatives: the
autograd functions that call them are in ``engine/fused.py``, ``losses/fused_*.py`` and ``_attention/fused.py``.

* A row is the last dimension, of size n; rows are counted through the others. -inf forbids an entry, a row with NaN or
  +inf is NaN, a row without anything allowed is zeros.
* A parameter is a tensor, float32 or float64, with 1 number or one per row; or, if that is None, the number after it.
* Scores may be float32, float64, bfloat16 or float16. Half types are computed in float32, in which what is saved is.

What a forward pass saves depends on its scores alone, and its backward is the only reader. Both must come from one back
end; the shapes and types below are what every back end keeps to, since graphs are compiled for them. Thresholds are in
float64, as a weight is a power of the small distance between a score and its threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("parsimax", "FRAGMENT")
OPERATORS: dict[str, str] = {}  # name -> schema
# The mappings of the fused attention
MAPPINGS = ("entmax", "sparsegen", "topk_sparsemax", "budget_sparsemax", "rsoftmax", "tsoftmax", "normmax")
CAP = 64  # entries of the support that attention and the fused loss keep for the backward pass
Shapes = Callable[..., Any]


def operator(schema: str) -> Callable[[Shapes], Shapes]:
    """Define an operator; the function below is its shape rule."""
    name = schema.partition("(")[0]
    OPERATORS[name] = schema
    LIBRARY.define(schema)

    def add(shapes: Shapes) -> Shapes:
        torch.library.register_fake(f"parsimax::{name}", shapes, lib=LIBRARY)
        return shapes

    return add


def like(x: Tensor, *_: Any) -> Tensor:
    """A packed tensor of the shape and type of ``x``. Rows along another dimension may stay as they lie in memory."""
    return x.new_empty(x.shape)


def wide(x: Tensor) -> torch.dtype:
    """What the kernels compute in."""
    return torch.promote_types(x.dtype, torch.float32)


def _rows(x: Tensor) -> Any:
    return math.prod(x.shape[:-1])


def _per_row(x: Tensor, wanted: bool, dtype: torch.dtype = torch.float64) -> Tensor:
    """One number per row, or none at all."""
    return x.new_empty((_rows(x) if wanted else 0,), dtype=dtype)


@operator("_entmax_fwd(Tensor x, Tensor? alpha, float alpha_value) -> Tensor")
def _entmax_fwd(x: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    """p; its backward needs p alone."""
    return like(x)


@operator("_entmax_bwd(Tensor p, Tensor g, Tensor? alpha, float alpha_value, bool need_alpha) -> (Tensor, Tensor)")
def _entmax_bwd(p: Tensor, g: Tensor, alpha: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    """(dx, dα of each row)."""
    return like(p), _per_row(p, need)


@operator("_entmax_dx(Tensor p, Tensor g, float alpha) -> Tensor")
def _entmax_dx(p: Tensor, g: Tensor, alpha: float) -> Tensor:
    """dx at a fixed α: on a tiny tensor a second result costs as much as the first."""
    return like(p)


@operator("_entmax_learned_fwd(Tensor x, Tensor alpha) -> (Tensor, Tensor)")
def _entmax_learned_fwd(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """(p, state), for an α that is learned.

    The state is (rows, 2) float64, opaque: what tells the backward to start from x where p of a nearly dense row is too
    coarse for dα. (0, 2) if no row is such a row, or if the back end has no use for it.
    """
    found = torch.library.get_ctx().new_dynamic_size(min=0)
    return like(x), x.new_empty((found, 2), dtype=torch.float64)


@operator(
    "_entmax_learned_bwd(Tensor p, Tensor x, Tensor g, Tensor alpha, Tensor state, bool need_alpha) -> (Tensor, Tensor)"
)
def _entmax_learned_bwd(
    p: Tensor, x: Tensor, g: Tensor, alpha: Tensor, state: Tensor, need: bool
) -> tuple[Tensor, Tensor]:
    """(dx, dα of each row), where the state is not empty."""
    return like(p), _per_row(p, need)


@operator("_support_fwd(Tensor x, Tensor? alpha, float alpha_value, int cap) -> (Tensor, Tensor, Tensor)")
def _support_fwd(x: Tensor, alpha: Tensor | None, value: float, cap: int) -> tuple[Tensor, ...]:
    """The non-zeros of entmax: (columns (rows, cap) int64, p (rows, cap), their number (rows,) int64).

    In the order of the columns; NaN counts as one. A row with more than ``cap`` has its first ones; what is left over
    of other rows is 0 in both.
    """
    rows = _rows(x)
    return x.new_empty((rows, cap), dtype=torch.int64), x.new_empty((rows, cap)), _per_row(x, True, torch.int64)


@operator("_segment_fwd(Tensor x, Tensor ptr, Tensor? alpha, float alpha_value, int width) -> Tensor")
def _segment_fwd(x: Tensor, *_: Any) -> Tensor:
    """p of entmax on rows of any length, one behind the other; its backward needs p alone.

    Row (k, h) of x (entries, heads) is x[ptr[k] : ptr[k + 1], h]; ptr is int64, and no row is longer than ``width``. A
    parameter has 1 number or one per row, segments first.
    """
    return like(x)


@operator(
    "_segment_bwd(Tensor p, Tensor g, Tensor ptr, Tensor? alpha, float alpha_value, int width, bool need_alpha) -> "
    "(Tensor, Tensor)"
)
def _segment_bwd(
    p: Tensor, g: Tensor, ptr: Tensor, alpha: Tensor | None, value: float, width: int, need: bool
) -> tuple[Tensor, Tensor]:
    """(dx, dα of each row)."""
    rows = p.shape[1] * (ptr.shape[0] - 1) if need else 0
    return like(p), p.new_empty((rows,), dtype=torch.float64)


@operator("_topk_sparsemax_fwd(Tensor x, int k) -> (Tensor, Tensor)")
def _topk_sparsemax_fwd(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(p, whether it is sparsemax of the whole row); the backward is that of entmax at α = 2."""
    return like(x), _per_row(x, True, torch.bool)


@operator("_rsoftmax_fwd(Tensor x, Tensor? rate, float rate_value) -> Tensor")
def _rsoftmax_fwd(x: Tensor, rate: Tensor | None, value: float) -> Tensor:
    """p; its backward needs x alone."""
    return like(x)


@operator("_rsoftmax_keep(Tensor x, Tensor? rate, float rate_value) -> (Tensor, Tensor)")
def _rsoftmax_keep(x: Tensor, rate: Tensor | None, value: float) -> tuple[Tensor, Tensor]:
    """(p, the cut of each row): (rows, 7) float64, opaque; the backward may do without."""
    return like(x), x.new_empty((_rows(x), 7), dtype=torch.float64)


@operator(
    "_rsoftmax_bwd(Tensor x, Tensor g, Tensor? rate, float rate_value, Tensor? cuts, bool need_rate) -> "
    "(Tensor, Tensor)"
)
def _rsoftmax_bwd(
    x: Tensor, g: Tensor, rate: Tensor | None, value: float, cuts: Tensor | None, need: bool
) -> tuple[Tensor, Tensor]:
    """(dx, d rate of each row)."""
    return like(x), _per_row(x, need)


@operator("_budget_fwd(Tensor x, Tensor? budget, float budget_value) -> Tensor")
def _budget_fwd(x: Tensor, budget: Tensor | None, value: float) -> Tensor:
    """p; its backward needs p alone."""
    return like(x)


@operator("_budget_bwd(Tensor p, Tensor g, bool need_budget) -> (Tensor, Tensor)")
def _budget_bwd(p: Tensor, g: Tensor, need: bool) -> tuple[Tensor, Tensor]:
    """(dx, d budget of each row)."""
    return like(p), _per_row(p, need)


@operator("_tsoftmax_fwd(Tensor x, Tensor? t, float t_value) -> Tensor")
def _tsoftmax_fwd(x: Tensor, t: Tensor | None, value: float) -> Tensor:
    """p; its backward needs x alone."""
    return like(x)


@operator("_tsoftmax_bwd(Tensor x, Tensor g, Tensor? t, float t_value, bool need_t) -> (Tensor, Tensor)")
def _tsoftmax_bwd(x: Tensor, g: Tensor, t: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    """(dx, dt of each row)."""
    return like(x), _per_row(x, need)


@operator("_sigsoftmax_fwd(Tensor x) -> Tensor")
def _sigsoftmax_fwd(x: Tensor) -> Tensor:
    """p; its backward needs x alone."""
    return like(x)


@operator("_sigsoftmax_bwd(Tensor x, Tensor g) -> Tensor")
def _sigsoftmax_bwd(x: Tensor, g: Tensor) -> Tensor:
    """dx."""
    return like(x)


@operator("_sparsegen_fwd(Tensor x, Tensor? lam, float lam_value) -> Tensor")
def _sparsegen_fwd(x: Tensor, lam: Tensor | None, value: float) -> Tensor:
    """p; its backward needs p alone."""
    return like(x)


@operator("_sparsegen_bwd(Tensor p, Tensor g, Tensor? lam, float lam_value, bool need_lam) -> (Tensor, Tensor)")
def _sparsegen_bwd(p: Tensor, g: Tensor, lam: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    """(dx, dλ of each row)."""
    return like(p), _per_row(p, need)


@operator("_hourglass_fwd(Tensor x, Tensor? q, float q_value) -> Tensor")
def _hourglass_fwd(x: Tensor, q: Tensor | None, value: float) -> Tensor:
    """p of sparsehourglass; its backward needs x and p."""
    return like(x)


@operator("_hourglass_bwd(Tensor x, Tensor p, Tensor g, Tensor? q, float q_value, bool need_q) -> (Tensor, Tensor)")
def _hourglass_bwd(
    x: Tensor, p: Tensor, g: Tensor, q: Tensor | None, value: float, need: bool
) -> tuple[Tensor, Tensor]:
    """(dx, dq of each row)."""
    return like(p), _per_row(p, need)


@operator("_normmax_fwd(Tensor x, Tensor? alpha, float alpha_value) -> Tensor")
def _normmax_fwd(x: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    """p; its backward needs p alone."""
    return like(x)


@operator("_normmax_bwd(Tensor p, Tensor g, Tensor? alpha, float alpha_value, bool need_alpha) -> (Tensor, Tensor)")
def _normmax_bwd(p: Tensor, g: Tensor, alpha: Tensor | None, value: float, need: bool) -> tuple[Tensor, Tensor]:
    """(dx, dα of each row)."""
    return like(p), _per_row(p, need)


@operator(
    "_loss_fwd(Tensor x, Tensor target, Tensor? alpha, float alpha_value, float smoothing, Tensor? weight) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
def _loss_fwd(x: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """(loss of each row, state, columns, p).

    ``target`` is int64, one per row, -1 for a row that does not count; ``weight`` float64, one per class, or None for
    ones. The state is (rows, 5) float64: the maximum, the two numbers of the threshold, dloss/dα, and, as an int64, the
    size of the support. Columns (rows, cap) int32 and p (rows, cap) hold the support if it is not larger than
    cap = min(n, max(64, n // 64)); else it is computed again from x.
    """
    rows, n, out = _rows(x), x.shape[-1], wide(x)
    cap = torch.sym_min(n, torch.sym_max(64, n // 64))
    return (
        x.new_empty((rows,), dtype=out),
        x.new_empty((rows, 5), dtype=torch.float64),
        x.new_empty((rows, cap), dtype=torch.int32),
        x.new_empty((rows, cap), dtype=out),
    )


@operator(
    "_loss_bwd(Tensor x, Tensor target, Tensor g, Tensor? alpha, float alpha_value, float smoothing, Tensor? weight, "
    "Tensor rows, Tensor index, Tensor value) -> (Tensor, Tensor)"
)
def _loss_bwd(x: Tensor, target: Tensor, g: Tensor, alpha: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    """(dx, dα of each row)."""
    return like(x), _per_row(x, alpha is not None)


@operator(
    "_soft_loss_fwd(Tensor x, Tensor target, Tensor? alpha, float alpha_value) -> (Tensor, Tensor, Tensor, Tensor)"
)
def _soft_loss_fwd(x: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """The same for a target of coefficients, of the shape and type of ``x``."""
    same: tuple[Tensor, ...] = _loss_fwd(x)
    return same


@operator(
    "_soft_loss_bwd(Tensor x, Tensor target, Tensor g, Tensor? alpha, float alpha_value, Tensor rows, Tensor index, "
    "Tensor value) -> (Tensor, Tensor)"
)
def _soft_loss_bwd(x: Tensor, target: Tensor, g: Tensor, alpha: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    """(dx, dα of each row); the target has no derivative."""
    return like(x), _per_row(x, alpha is not None)


def _support(x: Tensor, lead: tuple[int, ...], numbers: int, most: int, keep: bool) -> tuple[Tensor, ...]:
    """(threshold (*lead, numbers) float64, columns (*lead, cap) int32, weights (*lead, cap), their number (*lead)).

    cap = min(64, most); a row with more has its number above cap, and is computed again. Not kept: cap is 0.
    """
    cap = torch.sym_min(CAP, most) if keep else 0
    return (
        x.new_empty((*lead, numbers), dtype=torch.float64),
        x.new_empty((*lead, cap), dtype=torch.int32),
        x.new_empty((*lead, cap), dtype=wide(x)),
        x.new_empty(lead, dtype=torch.int32),
    )


@operator(
    "_linear_loss_fwd(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? alpha, float alpha_value, "
    "float softcap, bool need_state) -> (Tensor loss, Tensor state, Tensor index, Tensor support, Tensor count)"
)
def _linear_loss_fwd(hidden: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """(loss of each row of hidden (N, d), and the support); the numbers are (maximum, edge, dloss/dα).

    ``target`` is int64, one per row; or, where a back end takes that, a coefficient of each class, (N, V) in float32.
    """
    rows = hidden.shape[:1]
    return hidden.new_empty(rows, dtype=wide(hidden)), *_support(hidden, rows, 3, weight.shape[0], rest[-1])


@operator(
    "_linear_loss_bwd(Tensor grad, Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? alpha, "
    "float alpha_value, float softcap, Tensor state, Tensor index, Tensor support, Tensor count) -> "
    "(Tensor dhidden, Tensor dweight, Tensor dbias)"
)
def _linear_loss_bwd(g: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    return like(hidden), like(weight), hidden.new_empty((0,), dtype=wide(hidden)) if bias is None else like(bias)


@operator(
    "_attention_fwd(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? alpha, float alpha_value, int mapping, "
    "bool causal, float scale, float dropout, Tensor? seed, bool need_state) -> "
    "(Tensor out, Tensor threshold, Tensor index, Tensor weight, Tensor count)"
)
def _attention_fwd(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """(context, and the support of each query).

    ``mapping`` is an index of ``MAPPINGS``, and ``alpha`` the parameter of that mapping. The numbers of a query are
    (maximum, edge) for entmax, and eight that the mapping knows for the others, whose columns may include one of weight
    0.
    q (B, H, L, E), k (B, K, S, E), v (B, K, S, Ev), K divides H; mask and alpha have size 1 where they repeat. With
    dropout, ``seed`` is one int64, and weights are kept as those before dropout (``_attention/dropout.py``).
    """
    lead = q.shape[:-1]
    return q.new_empty((*lead, v.shape[-1])), *_support(q, lead, 8 if rest[3] else 2, k.shape[-2], rest[-1])


@operator(
    "_attention_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? alpha, float alpha_value, "
    "int mapping, bool causal, float scale, float dropout, Tensor? seed, Tensor threshold, Tensor index, "
    "Tensor weight, Tensor count, bool mask_grad) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dalpha, Tensor dmask)"
)
def _attention_bwd(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    lead = q.shape[:-1]
    by_alpha = q.new_empty((*lead, 1), dtype=torch.float64)
    by_mask = q.new_empty((*lead, k.shape[-2] if rest[-1] else 0), dtype=wide(q))
    return like(q), like(k), like(v), by_alpha, by_mask


# Output heads. A table (pieces, 2 or 4) holds polynomials on equal pieces: at u = x scale + offset, piece i = floor(u)
# within the table, the function is sum_k table[i, k] (u - i)^k. Sums (8, pieces, coefficients) collect its gradient, of
# eight fixed shares of the rows; they are added to, and must be zeroed before the first chunk.


@operator("_head_rows(Tensor(a!) z, Tensor target, bool sigmoid) -> (Tensor loss, Tensor inverse)")
def _head_rows(z: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Of logits (rows, n), -log p of the target by softmax or sigsoftmax, and 1 / the sum of the weights.

    ``z`` becomes the gradient by the logits, each row still to be multiplied by its inverse. ``target`` is int64, -1
    for a row that does not count.
    """
    return z.new_empty(z.shape[:1]), z.new_empty(z.shape[:1])


@operator(
    "_head_pieces(Tensor(a!) z, Tensor target, Tensor factor, Tensor table, float scale, float offset, "
    "Tensor(b!) sums) -> Tensor"
)
def _head_pieces(z: Tensor, *_: Any) -> Tensor:
    """-log p of the target, p the softmax of a function of pieces; ``z`` becomes the gradient of factor times that."""
    return z.new_empty(z.shape[:1])


@operator(
    "_head_norms(Tensor z, Tensor target, Tensor table, float scale, float offset) -> (Tensor log_sum, Tensor own)"
)
def _head_norms(z: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Of the same, log sum e^f and f of the target; both 0 where that is -1."""
    return z.new_empty(z.shape[:1]), z.new_empty(z.shape[:1])


@operator(
    "_head_gradient(Tensor(a!) z, Tensor target, Tensor log_sum, Tensor factor, Tensor table, float scale, "
    "float offset, Tensor(b!) sums) -> ()"
)
def _head_gradient(z: Tensor, *_: Any) -> None:
    """What ``_head_pieces`` does to ``z`` and the sums, where the sums of the rows are known."""


@operator("_pieces_fwd(Tensor x, Tensor table, float scale, float offset) -> Tensor")
def _pieces_fwd(x: Tensor, *_: Any) -> Tensor:
    """The function of each number."""
    return like(x)


@operator("_pieces_bwd(Tensor g, Tensor x, Tensor table, float scale, float offset) -> (Tensor, Tensor)")
def _pieces_bwd(g: Tensor, x: Tensor, table: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """(dx, sums)."""
    return like(x), x.new_empty((8, *table.shape))


@operator("_plif_table(Tensor raw, float bound) -> Tensor")
def _plif_table(raw: Tensor, bound: float) -> Tensor:
    """(K, 2): the value at the left end of each piece, and its rise, from raw slopes (K) whose softplus they are."""
    return raw.new_empty((raw.shape[0], 2))


@operator("_plif_slopes(Tensor sums, Tensor raw, float bound) -> Tensor")
def _plif_slopes(sums: Tensor, raw: Tensor, bound: float) -> Tensor:
    """The gradient by the raw slopes."""
    return like(raw)


@operator(
    "_sparsemap(Tensor unary, Tensor? extra, int kind, int low, int high, Tensor? start, Tensor? start_weights, "
    "Tensor? start_counts, int max_iter, int max_support, float tolerance) -> "
    "(Tensor codes, Tensor weights, Tensor counts, Tensor facts)"
)
def _sparsemap(unary: Tensor, extra: Tensor | None, kind: int, *_: Any) -> tuple[Tensor, ...]:
    """SparseMAP of each item by the active set, ragged: one row a pair of an item and an active structure.

    All scores are float64: (items, bits), with a table (items or 1, 2^bits) for kind 5, or (items, positions, labels)
    with transitions (items or 1, positions - 1 or 1, labels, labels). Codes are words of 64 bits (kinds 0 and 5) or
    int32 labels; facts are (gap, iterations). Structures of weight 0 complete the face for the derivative. An item
    with NaN or +inf has one structure of weight NaN, one in which nothing is allowed has none.
    """
    pairs = torch.library.get_ctx().new_dynamic_size(min=0)
    items = unary.shape[0]
    return (
        _codes(unary, kind, (pairs,)),
        unary.new_empty((pairs,)),
        unary.new_empty((items,), dtype=torch.int64),
        unary.new_empty((items, 2)),
    )


def _codes(unary: Tensor, kind: int, lead: tuple[Any, ...]) -> Tensor:
    words = kind in (0, 5)
    length = (unary.shape[1] + 63) // 64 if words else unary.shape[1]
    return unary.new_empty((*lead, length), dtype=torch.int64 if words else torch.int32)


@operator("_sparsemap_grad(Tensor codes, Tensor counts, Tensor g) -> Tensor")
def _sparsemap_grad(codes: Tensor, counts: Tensor, g: Tensor) -> Tensor:
    """What a gradient by the weights of :func:`_sparsemap` is by the scores of their structures."""
    return like(g)


@operator("_kbest_structures(Tensor unary, Tensor? extra, int kind, int low, int high, int k) -> (Tensor, Tensor)")
def _kbest_structures(unary: Tensor, extra: Tensor | None, kind: int, *rest: Any) -> tuple[Tensor, Tensor]:
    """(codes (items, k, length), values (items, k)) of the k best, best first; -inf where there are fewer."""
    items, k = unary.shape[0], rest[-1]
    return _codes(unary, kind, (items, k)), unary.new_empty((items, k))


LIBRARY.define("_isa() -> int")  # of the C++ kernels: the instruction set in use, as an index of library.LEVELS
