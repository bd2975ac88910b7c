"""Masks that are more than numbers: torch's causal biases are understood, other tensor classes are refused by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..engine.modes import redefines_functions


def is_bias(mask: object) -> bool:
    """Whether this is a ``causal_upper_left`` or ``causal_lower_right`` of torch.

    By name: importing ``torch.nn.attention.bias`` takes a while, and who has a bias has done it.
    """
    kind = type(mask)
    return kind.__name__ == "CausalBias" and kind.__module__ == "torch.nn.attention.bias"


def resolved(
    mask: Any, causal: bool, queries: int, keys: int, device: torch.device, where: str, before: int = 0
) -> tuple[Tensor | None, bool]:
    """(mask, causal) without torch's biases, True where one may attend.

    ``before`` is how many keys the first query of a causal call sees beside its own, where there is a cache.
    """
    if not is_bias(mask):
        return mask, causal
    sizes = (mask.seq_len_q, mask.seq_len_kv)
    if sizes != (queries, keys):
        raise ValueError(
            f"{where}: the causal bias is for {sizes[0]} queries and {sizes[1]} keys, the call has {queries} and {keys}"
        )
    shift = 0 if mask.variant.name == "UPPER_LEFT" else keys - queries
    if shift == before:
        return None, True
    if shift + 1 >= keys:  # the first query sees all
        return None, False
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(shift), False


def check_kind(mask: object, name: str, where: str) -> None:
    """A mask is a tensor whose numbers say everything.

    A class that gives torch's functions another meaning, as a masked tensor does, would be read as if it did not. Those
    that torch itself puts in the place of tensors (fake, functional, distributed ones) do no such thing.
    """
    kind: Any = type(mask)
    if not isinstance(mask, Tensor):
        hint = "; alpha goes by name" if name == "attn_mask" and isinstance(mask, (int, float)) else ""
        raise TypeError(f"{where}: {name} must be a torch.Tensor, got {kind.__name__}{hint}")
    if mask.is_nested:
        raise TypeError(f"{where}: {name} must not be a nested tensor; pad it with to_padded_tensor")
    if redefines_functions(kind):
        raise TypeError(
            f"{where}: {name} must be a plain tensor or a causal bias of torch.nn.attention.bias, got a "
            f"{kind.__name__}, which may mean more than its numbers; if they are the mask, pass "
            f"{name}.as_subclass(torch.Tensor)"
        )
