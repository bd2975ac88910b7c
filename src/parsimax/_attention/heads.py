"""Some heads by one mapping, the others by softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .functional import attention


def attend_by_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chosen: Tensor,
    mapping: str,
    settings: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """:func:`attention` by ``mapping`` where ``chosen`` (heads,) says so, by softmax elsewhere."""
    on, off = chosen.nonzero().flatten(), (~chosen).nonzero().flatten()
    own = {n: _of_heads(each, on) if isinstance(each, Tensor) else each for n, each in settings.items()}
    results, mask = [], options["attn_mask"]
    more: dict[str, Any]
    for index, name, more in ((on, mapping, own), (off, "softmax", {})):
        now: dict[str, Any] = {
            **options,
            "enable_gqa": False,
            "attn_mask": None if mask is None else _of_heads(mask, index),
        }
        keys, values = (_of_heads(each, index, query.shape[-3]) for each in (key, value))
        results.append(attention(query.index_select(-3, index), keys, values, mapping=name, **now, **more))
    back = torch.cat([on, off]).argsort()
    if not options["return_weights"]:
        return torch.cat(results, -3).index_select(-3, back)
    return tuple(torch.cat(pair, -3).index_select(-3, back) for pair in zip(*results, strict=True))


def _of_heads(x: Tensor, index: Tensor, heads: int = 0) -> Tensor:
    """These heads of what has one, as many as there are, or (with ``heads``) one for several."""
    if x.dim() < 3 or x.shape[-3] == 1:
        return x
    return x.index_select(-3, index if not heads else index // (heads // x.shape[-3]))


def rows_of(x: Tensor, rows: slice) -> Tensor:
    """These queries of what broadcasts to (…, queries, keys)."""
    return x if x.dim() < 2 or x.shape[-2] == 1 else x[..., rows, :]
