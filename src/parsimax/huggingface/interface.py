"""What ``transformers`` calls: one attention function and its mask functions, registered under names of our own.

A model asks the interface by the name in its config; the function finds the core of the layer on the attention module.
A name without a mask function would get no mask at all, neither causal nor padding.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from .._attention.scaling import count_keys
from . import private
from .layers import named_by_its_code
from .parallel import attend_part

CORE = "parsimax"  # the attribute of an attention module that holds its core
NAME = "parsimax"  # a causal mask without padding may be None, since each module says whether it is causal
MASKED = "parsimax_masked"  # for models whose modules do not say: a causal mask is always written out
ADDED = "parsimax_added"  # for models that themselves read the mask as numbers that are added to scores
NAMES = (NAME, MASKED, ADDED)

# What modules pass on and what changes no score: the model has already built its mask from it, or reads it elsewhere.
HARMLESS = {
    *private.outer_keywords(),
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
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """(batch, heads, length, features) to the context (batch, length, heads, features), and the weights if wanted."""
    core = getattr(module, CORE, None)
    if core is None:
        raise RuntimeError(
            f"{type(module).__name__} has the attention implementation {NAME!r} but no mapping. from_pretrained brings "
            "the mapping of a saved model; any other model takes one by parsimax.huggingface.sparsify(model)"
        )
    _check(module, others)
    if not torch.compiler.is_compiling():
        core.reached = True
    wanted = bool(others.get("output_attentions")) or private.collects_attentions()
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", False))
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    mask = _forbidding(attention_mask, query, key.shape[2])
    if causal and not (position_bias is None and softcap is None and s_aux is None):
        mask, causal = _allowed(query, key), False
    if position_bias is not None or softcap is not None:
        # The core scales queries with the length; what reaches it as a mask is scaled here.
        scales = core.length_scaling is not None
        factors = core.length_scaling(count_keys(query, key.shape[2], mask, False)) if scales else 1
        if position_bias is not None:
            mask = _joined(position_bias[..., : key.shape[2]] * factors, mask)
        if softcap is not None:
            query, key, mask, scaling = _capped(query, key, mask, scaling, softcap, factors)
    if s_aux is not None:
        query, key, value, mask, scaling = _with_sink(query, key, value, mask, scaling, s_aux)
    run = core if query.shape[1] == core.num_heads else partial(attend_part, module, core)
    result = run(
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
    if s_aux is not None and weights is not None:
        weights = weights[..., :-1]
    return out.transpose(1, 2).contiguous(), weights


def _check(module: nn.Module, others: dict[str, Any]) -> None:
    """Refuse what may change a score. Models hand down whatever they are called with; that changes none."""
    unknown = [name for name, each in others.items() if each is not None and name not in HARMLESS]
    if unknown and (read := sorted(set(unknown) & named_by_its_code(type(module)))):
        raise NotImplementedError(
            f"{type(module).__name__} passes {', '.join(read)} to its attention, which parsimax does not know and will "
            "not ignore; parsimax.huggingface.desparsify(model) takes the model back"
        )


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


def _with_sink(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, sinks: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float]:
    """One more score in every row, the head's sink, whose share of the weight goes nowhere.

    A last key whose only feature is new, and a value of 0: the query has the sink in that feature, other keys have 0.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    feature = (sinks / scale).to(query.dtype).view(1, -1, 1, 1).expand(*query.shape[:-1], 1)
    unit = torch.zeros_like(key[..., :1, :1]).expand(*key.shape[:2], 1, 1) + 1
    key = torch.cat([nn.functional.pad(key, (0, 1)), nn.functional.pad(unit, (key.shape[-1], 0))], 2)
    if mask is not None:
        mask = nn.functional.pad(mask, (0, 1), value=1 if mask.dtype == torch.bool else 0)
    return torch.cat([query, feature], -1), key, nn.functional.pad(value, (0, 0, 0, 1)), mask, scale


for _name, _mask in zip(
    NAMES, (private.boolean_mask, private.boolean_mask_written_out, private.added_mask), strict=True
):
    AttentionInterface.register(_name, attend)
    AttentionMaskInterface.register(_name, _mask)
