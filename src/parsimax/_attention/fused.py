"""entmax attention by the C++ kernel: scores a tile at a time, and a backward pass through the support.

The kernel keeps a threshold and at most 64 weights a query for the backward pass; queries with more have their scores
computed again. So memory is linear in the sequence length. Where a derivative is itself differentiated the plain
formula takes over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..engine.modes import derivative_is_observed, kernels_serve
from ..engine.operators import define
from ..mappings.entmax import entmax
from .arguments import Call
from .dropout import draw_seed
from .formula import attend as attend_plainly
from .formula import repeated

ops = torch.ops.parsimax


@dataclass(frozen=True)
class _Fixed:
    """What has no gradient, in the order of the operators. ``alpha`` counts if it is not given as a tensor."""

    alpha: float
    causal: bool
    scale: float
    dropout: float = 0.0  # torch leaves out what is a default of the schema

    def __iter__(self) -> Iterator[Any]:
        return iter((self.alpha, self.causal, self.scale, self.dropout))


def can_run(call: Call, alpha: float | Tensor, return_weights: bool) -> bool:
    tensors = [t for t in (call.q, call.k, call.v, call.mask, alpha) if isinstance(t, Tensor)]
    return kernels_serve("entmax_attention", *tensors, return_weights=return_weights)


def attend(call: Call, alpha: float | Tensor) -> Tensor:
    """The context; only where :func:`can_run` says so."""
    lead = (1,) * (2 - len(call.lead)) + call.lead
    k, v = call.k, call.v
    if _heads(k) != _heads(v):
        k, v = (repeated(t, call.lead).expand(*call.lead, *t.shape[-2:]) for t in (k, v))
    heads = (lead[-1], _heads(k), _heads(k))
    inputs: list[Tensor | None] = [
        _folded(_expanded(t, (*lead[:-1], own)), lead) for t, own in zip((call.q, k, v), heads, strict=True)
    ]
    inputs += [None if t is None else _folded(t, lead) for t in (call.mask, _tensor(alpha))]
    run = ops.entmax_attention if torch.compiler.is_compiling() else _kernel
    seed = draw_seed() if call.dropout else None
    value = 0.0 if isinstance(alpha, Tensor) else alpha
    out: Tensor = run(*inputs, value, call.causal, call.scale, call.dropout, seed)
    return out if len(call.lead) == 2 else out.reshape(*call.lead, *out.shape[-2:])


def _kernel(*given: Any) -> Tensor:
    inputs, fixed, seed = given[:5], _Fixed(*given[5:9]), given[9] if len(given) > 9 else None
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        out: Tensor = _Fused.apply(fixed, *inputs, seed)  # type: ignore[no-untyped-call]
    else:
        out = ops._attention_fwd(*inputs, *fixed, seed, False)[0]
    return out


def _formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    alpha: Tensor | None,
    value: float,
    causal: bool,
    scale: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    call = Call(q, k, v, mask, causal, scale, dropout, tuple(q.shape[:2]), seed)
    return attend_plainly(call, partial(entmax, alpha=value if alpha is None else alpha))[0]


define(
    "entmax_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? alpha, float value, bool causal, "
    "float scale, float dropout=0.0, Tensor? seed=None) -> Tensor",
    _kernel,
    _formula,
    lambda q, k, v, *_: q.new_empty((*q.shape[:-1], v.shape[-1])),
)


class _Fused(torch.autograd.Function):
    """q (B, H, L, E), k (B, K, S, E), v (B, K, S, Ev); mask and alpha with dimensions of size 1 where they repeat."""

    @staticmethod
    def forward(ctx: Any, fixed: _Fixed, *inputs: Tensor | None) -> Tensor:
        *given, seed = inputs
        out, *state = ops._attention_fwd(*given, *fixed, seed, True)
        ctx.fixed = fixed
        ctx.save_for_backward(*inputs, *state)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing unpacks them only once
        inputs, seed, state = saved[:5], saved[5], saved[6:]
        wanted = ctx.needs_input_grad[1:6]
        if derivative_is_observed(g):
            return (None, *_plain_backward(ctx.fixed, inputs, seed, wanted, g), None)
        grads = ops._attention_bwd(g, *inputs, *ctx.fixed, seed, *state, wanted[3])
        dq, dk, dv, dalpha, dmask = grads
        by = zip((dq, dk, dv, dmask, dalpha), inputs, wanted, strict=True)
        return (None, *(d.sum_to_size(t.shape).to(t.dtype) if w else None for d, t, w in by), None)


def _plain_backward(
    fixed: _Fixed, inputs: tuple[Any, ...], seed: Tensor | None, wanted: tuple[bool, ...], g: Tensor
) -> list[Tensor | None]:
    """The gradient as a differentiable function: for create_graph, batched gradients, forward over reverse."""
    with torch.enable_grad():
        out = _formula(*inputs, *fixed, seed)
        at = [t for t, w in zip(inputs, wanted, strict=True) if w]
        grads = iter(torch.autograd.grad(out, at, g, create_graph=True, allow_unused=True, materialize_grads=True))
    return [next(grads) if w else None for w in wanted]


def _heads(x: Tensor) -> int:
    return x.shape[-3] if x.dim() > 2 else 1


def _tensor(alpha: float | Tensor) -> Tensor | None:
    return alpha if isinstance(alpha, Tensor) else None


def _expanded(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    return x if x.shape[:-2] == lead else x.expand(*lead, *x.shape[-2:])


def _folded(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """``x``, which broadcasts to (*lead, m, n), with 4 dimensions (batch, heads, m, n); what repeats has size 1."""
    if x.dim() < len(lead) + 2:
        x = x.reshape((1,) * (len(lead) + 2 - x.dim()) + tuple(x.shape))
    if len(lead) == 2:
        return x
    own = tuple(x.shape[-3:])
    if math.prod(x.shape[:-3]) == 1:
        return x.reshape(1, *own)
    return x.expand(*lead[:-1], *own).reshape(math.prod(lead[:-1]), *own)
