"""The masks of ``nn.MultiheadAttention`` (True = forbidden) as one mask of attention (True = may attend)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .biases import check_kind


def allowed_or_added(mask: Tensor | None) -> Tensor | None:
    """A boolean mask turned round, one of numbers as it is."""
    return ~mask if mask is not None and mask.dtype == torch.bool else mask


def joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """What both allow, or the sum where one of them is of numbers."""
    if first is None or second is None:
        return second if first is None else first
    if first.dtype == second.dtype == torch.bool:
        return first & second
    if first.dtype == torch.bool:
        first, second = second, first
    if second.dtype == torch.bool:
        return first.masked_fill(~second, -math.inf)
    return first + second


def causal(queries: int, keys: int, before: int, device: torch.device) -> Tensor:
    """Query i may attend to keys 0…before + i."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(before)


def widened(mask: Tensor | None, by: int) -> Tensor | None:
    """The mask with so many more keys, which all may attend to."""
    if mask is None or not by:
        return mask
    return F.pad(mask, (0, by), value=True if mask.dtype == torch.bool else 0.0)


def checked(
    attn_mask: Tensor | None, padding: Tensor | None, batch: int, heads: int, sizes: tuple[int, int, int], where: str
) -> Tensor | None:
    """``attn_mask`` as (batch or 1, heads or 1, queries, keys), after a look at the shapes and types of both.

    ``sizes`` are the queries, all keys, and the keys of this call, which are fewer where there is a cache.
    """
    queries, keys, new = sizes
    for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", padding)):
        if mask is not None:
            check_kind(mask, name, where)
        if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
            raise TypeError(
                f"{where}: {name} must be boolean (True = forbidden) or floating point (added), got {mask.dtype}"
            )
    if padding is not None and tuple(padding.shape) != (batch, new):
        raise ValueError(
            f"{where}: key_padding_mask must be (batch, keys) = {(batch, new)}, without batch ({new},), got "
            f"{tuple(padding.shape)}"
        )
    if attn_mask is None:
        return None
    if tuple(attn_mask.shape) == (queries, keys):
        return attn_mask.view(1, 1, queries, keys)
    if tuple(attn_mask.shape) != (batch * heads, queries, keys):
        raise ValueError(
            f"{where}: attn_mask must be (queries, keys) = {(queries, keys)} or (batch x heads, queries, keys) = "
            f"{(batch * heads, queries, keys)}, got {tuple(attn_mask.shape)}"
        )
    return attn_mask.reshape(batch, heads, queries, keys)
