"""Attention by the C++ kernel: scores a tile at a time, and a backward pass through the support.

The kernel keeps a threshold and at most 64 weights a query for the backward pass; queries with more have their scores
computed again. So memory is linear in the sequence length. Where a derivative is itself differentiated the plain
formula takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..engine.modes import derivative_is_observed, kernels_serve
from ..engine.operators import define
from ..kernels.schemas import MAPPINGS
from ..mappings.declaration import REGISTRY
from .arguments import Call
from .dropout import draw_seed
from .formula import attend as attend_plainly
from .formula import repeated

ops = torch.ops.parsimax


@dataclass(frozen=True)
class _Fixed:
    """What has no gradient, in the order of the operators. ``value`` counts if the parameter is not a tensor."""

    value: float
    mapping: int
    causal: bool
    scale: float
    dropout: float = 0.0

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.mapping, self.causal, self.scale, self.dropout))


def can_run(call: Call, mapping: str, parameter: float | Tensor, return_weights: bool, **switches: Any) -> bool:
    """Whether kernels attend by one of ``MAPPINGS`` with this parameter: α, or what the mapping has in its place."""
    tensors = [t for t in (call.q, call.k, call.v, call.mask, parameter) if isinstance(t, Tensor)]
    name = "entmax_attention" if mapping == "entmax" else "attention"
    return kernels_serve(name, *tensors, return_weights=return_weights, dropout=call.dropout, **switches)


def attend(call: Call, mapping: str, parameter: float | Tensor) -> Tensor:
    """The context; only where :func:`can_run` says so."""
    lead = (1,) * (2 - len(call.lead)) + call.lead
    k, v = call.k, call.v
    if _heads(k) != _heads(v):
        k, v = (repeated(t, call.lead).expand(*call.lead, *t.shape[-2:]) for t in (k, v))
    heads = (lead[-1], _heads(k), _heads(k))
    inputs: list[Tensor | None] = [
        _folded(_expanded(t, (*lead[:-1], own)), lead) for t, own in zip((call.q, k, v), heads, strict=True)
    ]
    inputs += [None if t is None else _folded(t, lead) for t in (call.mask, _tensor(parameter))]
    compiling, is_entmax = torch.compiler.is_compiling(), mapping == "entmax"
    run: Any = (ops.entmax_attention if is_entmax else ops.attention) if compiling else _kernel
    value = 0.0 if isinstance(parameter, Tensor) else parameter
    own_mapping = () if compiling and is_entmax else (mapping,)
    seed = draw_seed() if call.dropout else None
    out: Tensor = run(*inputs, value, *own_mapping, call.causal, call.scale, call.dropout, seed)
    return out if len(call.lead) == 2 else out.reshape(*call.lead, *out.shape[-2:])


def _kernel(*given: Any) -> Tensor:
    inputs, (value, mapping, *rest) = given[:5], given[5:10]
    fixed, seed = _Fixed(value, MAPPINGS.index(mapping), *rest), given[10] if len(given) > 10 else None
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
    parameter: Tensor | None,
    value: float,
    mapping: str,
    causal: bool,
    scale: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    call = Call(q, k, v, mask, causal, scale, dropout, tuple(q.shape[:2]), seed)
    entry = REGISTRY[mapping]
    assert entry.setting is not None
    own: Any = value if parameter is None else parameter
    own = own if entry.setting.continuous else int(own)
    return attend_plainly(call, partial(entry.function, **{entry.setting.name: own}))[0]


def _define(schema: str, middle: tuple[str, ...]) -> None:
    """The operator for traced code; ``middle`` is the mapping, if it is not among the arguments."""

    def full(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args: function(*args[:6], *middle, *args[6:])

    define(schema, full(_kernel), full(_formula), lambda q, k, v, *_: q.new_empty((*q.shape[:-1], v.shape[-1])))


_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? {}, float value, "
_REST = "bool causal, float scale, float dropout=0.0, Tensor? seed=None) -> Tensor"
_define("entmax_attention(" + _INPUTS.format("alpha") + _REST, ("entmax",))
_define("attention(" + _INPUTS.format("parameter") + "str mapping, " + _REST, ())


class _Fused(torch.autograd.Function):
    """q (B, H, L, E), k (B, K, S, E), v (B, K, S, Ev); mask and parameter have size 1 where they repeat."""

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
        dq, dk, dv, by_parameter, dmask = grads
        by = zip((dq, dk, dv, dmask, by_parameter), inputs, wanted, strict=True)
        return (None, *(d.sum_to_size(t.shape).to(t.dtype) if w else None for d, t, w in by), None)


def _plain_backward(
    fixed: _Fixed, inputs: tuple[Any, ...], seed: Tensor | None, wanted: tuple[bool, ...], g: Tensor
) -> list[Tensor | None]:
    """The gradient as a differentiable function: for create_graph, batched gradients, forward over reverse."""
    with torch.enable_grad():
        given: list[Any] = [*inputs, *fixed, seed]
        given[6] = MAPPINGS[fixed.mapping]
        out = _formula(*given)
        at = [t for t, w in zip(inputs, wanted, strict=True) if w]
        grads = iter(torch.autograd.grad(out, at, g, create_graph=True, allow_unused=True, materialize_grads=True))
    return [next(grads) if w else None for w in wanted]


def _heads(x: Tensor) -> int:
    return x.shape[-3] if x.dim() > 2 else 1


def _tensor(parameter: float | Tensor) -> Tensor | None:
    return parameter if isinstance(parameter, Tensor) else None


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
