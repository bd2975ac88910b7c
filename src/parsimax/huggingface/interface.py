"""What ``transformers`` calls: one attention function and its mask functions, registered under names of our own.

A model asks the interface by the name in its config; the function finds the core of the layer on the attention module.
A name without a mask function would get no mask at all, neither causal nor padding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.utils.generic import TransformersKwargs
from transformers.utils.output_capturing import _active_collector

from .._attention.scaling import count_keys

CORE = "parsimax"  # the attribute of an attention module that holds its core
NAME = "parsimax"  # a causal mask without padding may be None, since each module says whether it is causal
MASKED = "parsimax_masked"  # for models whose modules do not say: a causal mask is always written out

# What modules pass on and what changes no score: the model has already built its mask from it, or reads it elsewhere.
HARMLESS = {
    *TransformersKwargs.__annotations__,
    "cache_position",
    "cu_seqlens",
    "deterministic",
    "past_key_values",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "sliding_window",
    "token_type_ids",
    "use_cache",
}


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """(batch, heads, length, features) to the context (batch, length, heads, features), and the weights if wanted."""
    core = getattr(module, CORE, None)
    if core is None:
        raise RuntimeError(
            f"{type(module).__name__} has the attention implementation {NAME!r} but no mapping. A sparsified model "
            "that was saved is loaded by parsimax.huggingface.from_pretrained(path); any other takes its mapping by "
            "parsimax.huggingface.sparsify(model)"
        )
    if unknown := [name for name, each in others.items() if each is not None and name not in HARMLESS]:
        raise NotImplementedError(
            f"{type(module).__name__} passes {', '.join(sorted(unknown))} to its attention, which parsimax does not "
            "know and will not ignore; parsimax.huggingface.desparsify(model) takes the model back"
        )
    wanted = _wants_weights(others)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", False))
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    mask = _forbidding(attention_mask, query, key.shape[2])
    if position_bias is not None or softcap is not None:
        mask = _allowed(query, key) if causal else mask
        causal = False
        # The core scales queries with the length; what reaches it as a mask is scaled here.
        scales = core.length_scaling is not None
        factors = core.length_scaling(count_keys(query, key.shape[2], mask, False)) if scales else 1
        if position_bias is not None:
            mask = _joined(position_bias[..., : key.shape[2]] * factors, mask)
        if softcap is not None:
            query, key, mask, scaling = _capped(query, key, mask, scaling, softcap, factors)
    result = core(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout if module.training else 0.0,
        is_causal=causal,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
        return_weights=wanted,
    )
    out, weights = result if wanted else (result, None)
    return out.transpose(1, 2).contiguous(), weights


def _wants_weights(others: dict[str, Any]) -> bool:
    """Whether the caller asks for ``attentions``: not every model hands the wish on, but who collects them knows."""
    collected: Any = _active_collector.get() or ()  # type: ignore[no-untyped-call]
    return bool(others.get("output_attentions")) or any("attentions" in name for name in collected)


def _forbidding(mask: Tensor | None, query: Tensor, keys: int) -> Tensor | None:
    """A boolean mask as it is; an added one with -inf where it has the lowest number, which models write for it."""
    if mask is None:
        return None
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return mask
    if mask.dtype not in (torch.float32, query.dtype):
        mask = mask.to(query.dtype)
    return mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -math.inf)


def _allowed(query: Tensor, key: Tensor) -> Tensor:
    """The causal mask, aligned at the first query and key as ``is_causal`` is."""
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()


def _joined(scores: Tensor, mask: Tensor | None) -> Tensor:
    """What is added to the scores, and a mask, as one added mask."""
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _capped(
    query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None, cap: float, factors: Tensor | int
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Scores bent to ±cap are no product of queries and keys: they go in as a mask over products that are all 0."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    each = key if key.shape[1] == query.shape[1] else key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = ((query @ each.transpose(-2, -1) * scale / cap).tanh() * cap * factors).to(query.dtype)
    return torch.zeros_like(query[..., :1]), torch.zeros_like(key[..., :1]), _joined(scores, mask), 1.0


def _written_out(**kwargs: Any) -> Tensor | None:
    return sdpa_mask(**{**kwargs, "allow_is_causal_skip": False})


AttentionInterface.register(NAME, attend)
AttentionInterface.register(MASKED, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)  # boolean (batch, 1, queries, keys), True = may attend
AttentionMaskInterface.register(MASKED, _written_out)
