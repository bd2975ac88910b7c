"""Tiny rows in plain torch: a mapping by one sort, in as few operations as can be.

On a few dozen scores one operation costs as much as another, and the general path, with its search and its checks,
takes three times as many. Which way a row goes is decided by its length alone, so that its bits depend neither on
other rows nor on how it was given: along another dimension, with a mask or with -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .modes import derivative_is_observed

CHUNK = 1 << 18  # numbers at a time, in float64


@dataclass(frozen=True)
class Tiny:
    """``map(z, best, rank)`` is p of rows z with maximum 0, and ``best`` is z in falling order, all in float64, with
    room to write to; -inf is forbidden. ``backward(p, g)`` is its derivative, ``rule(p, g)`` the same, differentiable.
    """

    map: Callable[[Tensor, Tensor, Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    rule: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        if not (x.requires_grad and torch.is_grad_enabled()):
            return _by_chunks(self.run, x)
        out: Tensor = _Tiny.apply(self, x)  # type: ignore[no-untyped-call]
        return out

    def run(self, x: Tensor) -> Tensor:
        wide = x.double()
        best = wide.sort(dim=-1, descending=True)[0]  # NaN first
        top, rank = best[..., :1], _ranks(x.shape[-1])
        if math.isfinite(top.sum().item()):
            return self.map(wide - top, best - top, rank).to(x.dtype)
        usual = top.isfinite()
        shift = torch.where(usual, top, 0)
        p = self.map(torch.where(usual, wide, 0) - shift, torch.where(usual, best, 0) - shift, rank)
        return torch.where(usual, p, torch.where(top == -math.inf, 0.0, math.nan)).to(x.dtype)


def _by_chunks(run: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    if x.numel() <= CHUNK:
        return run(x, *others)
    rows = max(1, CHUNK // x.shape[-1])
    parts = (t.reshape(-1, x.shape[-1]).split(rows) for t in (x, *others))
    return torch.cat([run(*some) for some in zip(*parts, strict=True)]).reshape(x.shape)


@lru_cache(maxsize=64)
def _ranks(n: int) -> Tensor:
    return torch.arange(1, n + 1, dtype=torch.float64)


class _Tiny(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tiny: Tiny, x: Tensor) -> Tensor:
        p = _by_chunks(tiny.run, x)
        ctx.tiny = tiny
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        (p,) = ctx.saved_tensors
        if derivative_is_observed(g):
            return None, ctx.tiny.rule(p, g)
        return None, _by_chunks(ctx.tiny.backward, p, g)
