"""Attention functions with the contract of ``F.scaled_dot_product_attention``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

from torch import Tensor

from ..kernels.schemas import MAPPINGS
from ..mappings.declaration import Entry, MappingModule
from ..mappings.entmax import ALPHA, entmax
from ..mappings.registry import MappingLike, resolve
from . import formula, fused
from .arguments import Call, broadcasts, check_alpha, prepare


@overload
def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    *,
    alpha: float | Tensor = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...
@overload
def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    *,
    alpha: float | Tensor = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    alpha: float | Tensor = 1.5,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention whose weights are α-entmax of the scores, so that most keys get exactly 0.

    .. math:: \operatorname{entmax}_\alpha(q k^\top \cdot \text{scale} + \text{mask})\, v

    All but ``alpha`` and ``return_weights`` is as in ``F.scaled_dot_product_attention``, and α = 1 equals it. Half
    types are computed in float32 and rounded once.

    Args:
        query: (…, L, E), floating point.
        key: (…, S, E).
        value: (…, S, Ev). The leading dimensions of the three broadcast. Where a weight is 0 the value does not count,
            be it NaN or infinite (SDPA gives 0·NaN = NaN for some of them); under ``torch.func`` and forward-mode
            derivatives, and on other devices than the CPU, values are taken to be finite.
        attn_mask: broadcastable to (…, L, S). Boolean, True = may attend; or added to the scores, differentiable,
            float32 or of the query's dtype, with -inf for what is forbidden; or a ``causal_upper_left(L, S)`` or
            ``causal_lower_right(L, S)`` of ``torch.nn.attention.bias``. A query that may attend to nothing gets zeros.
        dropout_p: the share of weights to drop. It is always applied: pass 0.0 in evaluation.
        is_causal: query i attends to keys 0…i, counted from the first of each, for L ≠ S too. A step with cached keys
            must not pass it. Excludes ``attn_mask``.
        alpha: in [0, ∞] as in :func:`entmax`; exact zeros come from α > 1 on. A float, or a tensor that is 0-dim or
            broadcasts to (…, H, L, 1): one α per head has shape (H, 1, 1). Differentiable.
        scale: of the scores; 1/√E if not given.
        enable_gqa: let each head (third dimension from the end) of key and value serve several heads of the query.
        return_weights: give the weights too.

    Returns:
        (…, L, Ev) of the query's dtype; under autocast of the dtype SDPA has there. With ``return_weights`` a pair
        (that, the weights (…, L, S) before dropout).

    Example:
        >>> import torch, parsimax
        >>> query = torch.tensor([[1.0, 0.0]])
        >>> key = torch.tensor([[4.0, 0.0], [3.0, 1.0], [-2.0, 0.0]])
        >>> value = torch.tensor([[1.0], [2.0], [3.0]])
        >>> parsimax.entmax_attention(query, key, value, return_weights=True)
        (tensor([[1.2579]]), tensor([[0.7421, 0.2579, 0.0000]]))

    :func:`attention` takes any mapping. On a CPU a kernel computes this without the matrix of all scores, except with
    ``return_weights``, and under ``torch.func`` and forward-mode derivatives. Its dropout takes a seed from torch's
    generator, and its stream is not that of ``F.dropout``, which the formula calls.

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019.
    """
    where = "entmax_attention"
    call = prepare(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, where)
    return _entmax_attention(call, alpha, return_weights, where)


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    *,
    mapping: MappingLike = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    return_weights: Literal[False] = ...,
    **settings: Any,
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    *,
    mapping: MappingLike = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    return_weights: Literal[True],
    **settings: Any,
) -> tuple[Tensor, Tensor]: ...
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mapping: MappingLike = "softmax",
    scale: float | None = None,
    enable_gqa: bool = False,
    return_weights: bool = False,
    **settings: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention by any mapping from scores to weights.

    .. math:: \operatorname{mapping}(q k^\top \cdot \text{scale} + \text{mask})\, v

    Args:
        query: (…, L, E), floating point.
        key: (…, S, E).
        value: (…, S, Ev).
        attn_mask: as in :func:`entmax_attention`, and so are the next two.
        dropout_p: the share of weights to drop, always.
        is_causal: query i attends to keys 0…i.
        mapping: a mapping of parsimax: its name, the function or a module over the last dimension.
        scale: of the scores; 1/√E if not given.
        enable_gqa: fewer heads of key and value than of query.
        return_weights: give the weights too.
        settings: the mapping's own, such as ``rate=0.9`` for "rsoftmax" or ``k=8`` for "topk_sparsemax". A tensor
            broadcasts to (…, H, L, 1).

    Returns:
        (…, L, Ev), or with ``return_weights`` a pair (that, the weights (…, L, S) before dropout).

    Example:
        >>> import torch, parsimax
        >>> query, key, value = torch.randn(3, 2, 8, 5, 16)
        >>> out, weights = parsimax.attention(query, key, value, mapping="rsoftmax", rate=0.8, return_weights=True)
        >>> out.shape, (weights == 0).sum(-1).unique()
        (torch.Size([2, 8, 5, 16]), tensor([4]))

    With "softmax" it equals ``F.scaled_dot_product_attention``, with "entmax" :func:`entmax_attention`, whose kernel
    also takes "rsoftmax", "tsoftmax", "topk_sparsemax", "sparsegen", "budget_sparsemax" and "normmax".

    Reference: Vaswani et al., Attention Is All You Need, 2017.
    """
    where = "attention"
    call = prepare(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, where)
    entry, settings = resolve(mapping, settings, where)
    if isinstance(mapping, MappingModule) and mapping.dim not in (-1, len(call.lead) + 1):
        raise ValueError(f"{where}: the mapping must go over the keys, the last dimension, got dim={mapping.dim}")
    if entry.alpha is not None:  # entmax at a fixed α
        return _entmax_attention(call, entry.alpha, return_weights, where)
    if entry.name == "entmax":
        alpha: Any = settings.get("alpha", ALPHA.default)
        return _entmax_attention(call, alpha, return_weights, where)
    parameter = _parameter(entry, settings, call)
    if parameter is not None:
        switches = {name: settings.get(name) for name in entry.switches}
        if fused.can_run(call, entry.name, parameter, return_weights, **switches):
            return _fused_attention(call, entry.name, parameter)
    return _plain_attention(call, partial(entry.function, **settings), return_weights)


def _fused_attention(call: Call, name: str, parameter: float | Tensor) -> Tensor:
    """By a kernel of the mapping ``name``, as ``verify`` counts it."""
    return fused.attend(call, name, parameter)


def _parameter(entry: Entry, settings: dict[str, Any], call: Call) -> float | Tensor | None:
    """That of a mapping that the fused attention knows, checked. None: the mapping itself will say what is wrong."""
    setting = entry.setting
    if entry.name not in MAPPINGS or setting is None or setting.name not in settings:
        return None
    value: Any = settings[setting.name]
    if not isinstance(value, Tensor):
        number: float = setting.checked(value, entry.name) * 1.0
        return number
    return value if setting.continuous and value.is_floating_point() and broadcasts(value, call.rows) else None


def _entmax_attention(
    call: Call, alpha: float | Tensor, return_weights: bool, where: str
) -> Tensor | tuple[Tensor, Tensor]:
    alpha = check_alpha(alpha, call, ALPHA.domain, where)
    if fused.can_run(call, "entmax", alpha, return_weights):
        return fused.attend(call, "entmax", alpha)
    return _plain_attention(call, partial(entmax, alpha=alpha), return_weights)


def _plain_attention(
    call: Call, mapping: Callable[..., Tensor], return_weights: bool
) -> Tensor | tuple[Tensor, Tensor]:
    out, weights = formula.attend(call, mapping)
    return (out, weights) if return_weights else out
