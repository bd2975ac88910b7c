"""Tiny tensors in plain torch: a mapping by one sort, in as few operations as can be.

On a few dozen scores one operation costs as much as another, and the general path, with its search and its checks,
takes three times as many. A tensor with a NaN, an infinity or a forbidden entry goes that way all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .modes import derivative_is_observed

LARGE = 1e100


@dataclass(frozen=True)
class Tiny:
    """``map(z, best, rank)`` is p of finite rows z with maximum 0, and ``best`` is z in falling order, all in float64,
    with room to write to; ``backward(p, g)`` is its derivative, and ``rule(p, g)`` that of any row, differentiable;
    ``whole(x)`` is the mapping of any rows."""

    map: Callable[[Tensor, Tensor, Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    rule: Callable[[Tensor, Tensor], Tensor]
    whole: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        if not (x.requires_grad and torch.is_grad_enabled()):
            return self.run(x)[0]
        out: Tensor = _Tiny.apply(self, x)  # type: ignore[no-untyped-call]
        return out

    def run(self, x: Tensor) -> tuple[Tensor, bool]:
        """p, and whether all scores are finite."""
        wide = x.double()
        best = wide.sort(dim=-1, descending=True)[0]
        top = best[..., :1]
        best = best - top
        if not best.sum().item() > -LARGE:  # nor do squares overflow
            return self.whole(x), False
        return self.map(wide - top, best, _ranks(x.shape[-1])).to(x.dtype), True


@lru_cache(maxsize=64)
def _ranks(n: int) -> Tensor:
    return torch.arange(1, n + 1, dtype=torch.float64)


class _Tiny(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tiny: Tiny, x: Tensor) -> Tensor:
        p, ctx.finite = tiny.run(x)
        ctx.tiny = tiny
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        (p,) = ctx.saved_tensors
        run = ctx.tiny.backward if ctx.finite and not derivative_is_observed(g) else ctx.tiny.rule
        return None, run(p, g)
