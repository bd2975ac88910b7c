"""Attention in plain torch: right in every derivative mode, and what the kernel is tested against."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from ..engine.modes import is_plain
from .arguments import Call
from .dropout import factors

Mapping = Callable[..., Tensor]  # (scores, mask=…) -> weights, over the last dimension


def attend(call: Call, mapping: Mapping) -> tuple[Tensor, Tensor]:
    """The context, and the weights before dropout. Half types are computed in float32 and rounded once."""
    with _full_precision(call.q.device):
        wide = torch.promote_types(call.q.dtype, torch.float32)
        scores, allowed = _scores(call, wide)
        weights = mapping(scores, mask=allowed)
        out = _weighted(_dropped(weights, call), repeated(call.v.to(wide), call.lead))
    return out.to(call.q.dtype), weights.to(call.q.dtype)


def _dropped(weights: Tensor, call: Call) -> Tensor:
    if not call.dropout:
        return weights
    if call.seed is None:
        return F.dropout(weights, call.dropout)
    return weights * factors(call.seed, tuple(weights.shape), call.dropout, weights)


def _weighted(weights: Tensor, v: Tensor) -> Tensor:
    """weights @ v, where a key of weight 0 does not count even if its value is NaN or infinite.

    Looking costs nothing beside the product on the CPU; elsewhere, and in traced code, values are taken to be finite.
    """
    if v.device.type != "cpu" or not is_plain(weights, v) or v.isfinite().all():
        return weights @ v
    used = (weights != 0).to(v.dtype)
    broken, up, down = (used @ bad.to(v.dtype) > 0 for bad in (v.isnan(), v == math.inf, v == -math.inf))
    out = weights @ v.masked_fill(~v.isfinite(), 0)
    out = torch.where(up, math.inf, torch.where(down, -math.inf, out))
    return torch.where(broken | (up & down), math.nan, out)


def _scores(call: Call, wide: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The scores (*lead, L, S), and where a query may attend."""
    q, k, mask = call.q.to(wide) * call.scale, repeated(call.k.to(wide), call.lead), call.mask
    scores = q @ k.transpose(-2, -1)
    if mask is not None and mask.dtype != torch.bool:
        scores, mask = scores + mask.to(wide), mask != -math.inf  # forbidden even where the score is NaN
    if call.causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores.expand(*call.lead, *scores.shape[-2:]), mask


def repeated(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Keys or values with each head as often as there are queries' heads for it; one head broadcasts by itself."""
    if x.dim() < 3 or x.shape[-3] in (0, 1, lead[-1]):
        return x
    return x.repeat_interleave(lead[-1] // x.shape[-3], -3)


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    kind = device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()
