"""From a formula on clean rows to a function of any tensor, in every derivative mode.

A formula is ordinary torch code ``formula(z, live, *parameters, solve=…)`` over the last dimension. ``z`` is finite
with maximum 0, ``live`` marks the entries that count, and ``solve`` runs a search on detached values. As everything
around the search is ordinary torch, derivatives of every kind and order are right wherever torch can take them.

Two ways to run it give the same numbers:

* plain eager code goes through the rows a chunk at a time, so that the float64 intermediates stay in cache; the
  backward pass differentiates the formula again, chunk by chunk, with the thresholds that the forward pass found;
* under compile, export, ``torch.func`` and forward mode the formula itself is traced, with the search as an opaque
  operator. (Where a kernel serves, compiled and exported graphs hold that instead: ``engine/operators.py``.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .fused import Rule, aliases
from .modes import is_plain, leaves_the_library
from .precision import WIDE, formula_dtype
from .search import Search

Formula = Callable[..., Tensor]
CHUNK = {"cpu": 1 << 18}  # elements at a time: on a CPU what fits its cache, elsewhere what is worth a launch


class Solve:
    """What a formula calls to find a root. ``steps`` is how often it has to polish the answer: each Newton step doubles
    the order up to which derivatives are right, so one step serves a gradient, two a third derivative. ``dtype`` is
    what to compute in, where that was chosen before: a backward pass keeps to the choice of its forward pass."""

    def __init__(self, steps: int = 1, known: list[Tensor] | None = None, dtype: torch.dtype | None = None) -> None:
        self.steps = steps
        self.dtype = dtype
        self.roots: list[Tensor] = []
        self._known = iter(known) if known is not None else None

    def __call__(self, find: Search, *args: Tensor) -> Tensor:
        root = next(self._known) if self._known else find.run(*(a.detach() for a in args))
        self.roots.append(root)
        return root


class Traced(Solve):
    """The same by opaque operators, or in a graph that leaves this library by ordinary ones, a fixed number of them."""

    def __init__(self) -> None:
        super().__init__(steps=2)

    def __call__(self, find: Search, *args: Tensor) -> Tensor:
        run = find.written_out if leaves_the_library() else find.opaque
        root: Tensor = run(*(a.detach() for a in args))
        return root


def settled(formula: Formula, z: Tensor, live: Tensor, *parameters: Tensor, solve: Solve) -> Tensor:
    """p, as a constant where only a first derivative of max p.z + H(p) is wanted: at the maximum p does not matter."""
    if isinstance(solve, Traced):
        return formula(z, live, *parameters, solve=solve)
    with torch.no_grad():
        return formula(z, live, *parameters, solve=solve)


def evaluate(
    formula: Formula,
    x: Tensor,
    *rest: Tensor,
    width: int,
    dtype: torch.dtype,
    cost: int = 0,
    rule: Rule | None = None,
) -> Tensor:
    """``formula`` on the rows ``x`` (..., n) with ``rest`` (..., k) or broadcast along rows, as (..., width).

    ``cost`` is how many numbers a row needs at a time, if more than its length. ``rule`` gives the gradients from the
    output, which spares a first reverse pass through the formula; not from half types, whose rounding it would keep.
    """
    if not is_plain(x, *rest):
        return formula(x, *rest, solve=Traced()).to(dtype)
    lead = x.shape[:-1]
    flat = [flat_rows(t, lead) for t in rest]
    rows = [x.reshape(-1, x.shape[-1])]
    out: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        formula, width, dtype, max(cost, x.shape[-1]), rule if dtype in WIDE else None, *rows, *flat
    )
    return out.reshape(*lead, width)


def flat_rows(t: Tensor, lead: torch.Size) -> Tensor:
    """``t`` (…, k), which broadcasts to (*lead, k), as (rows, k), or (1, k) if all rows share it."""
    shared = math.prod(t.shape[:-1]) == 1
    return t.reshape(1, t.shape[-1]) if shared else t.expand(*lead, t.shape[-1]).reshape(-1, t.shape[-1])


def _chunks(rows: int, cost: int, device: torch.device) -> Iterator[slice]:
    size = max(1, CHUNK.get(device.type, 1 << 26) // max(1, cost))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, formula: Formula, width: int, dtype: torch.dtype, cost: int, rule: Rule | None, *inputs: Tensor
    ) -> Tensor:
        x = inputs[0]
        out = x.new_empty((x.shape[0], width), dtype=dtype)
        ctx.formula, ctx.dtype, ctx.cost, ctx.rule, ctx.roots = formula, dtype, cost, rule, []
        ctx.work = formula_dtype(x)
        for part in _chunks(x.shape[0], cost, x.device):
            solve = Solve(dtype=ctx.work)
            out[part] = formula(*(rows_of(t, part) for t in inputs), solve=solve)
            if any(ctx.needs_input_grad) and rule is None:
                ctx.roots.append(solve.roots)
        ctx.save_for_backward(*inputs, *([] if rule is None else [out]))
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        wanted, inputs = ctx.needs_input_grad[5:], ctx.saved_tensors  # once: checkpointing unpacks them only once
        *inputs, out = inputs if ctx.rule else (*inputs, None)
        if torch.is_grad_enabled() or not is_plain(g, *inputs):
            grads = list(_whole_backward(ctx, tuple(inputs), g, wanted))
        elif out is not None:
            grads = _backward_by_rule(ctx, tuple(inputs), out, g, wanted)
        else:
            grads = _chunked_backward(ctx, tuple(inputs), g, wanted)
        each = iter(grads)
        return (None, None, None, None, None, *(next(each) if w else None for w in wanted))


def rows_of(t: Tensor, part: slice) -> Tensor:
    """A part of the rows; what all rows share is theirs, too."""
    return t if t.shape[0] == 1 else t[part]


def _whole_backward(ctx: Any, inputs: tuple[Tensor, ...], g: Tensor, wanted: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """The gradient as a differentiable function: for create_graph, batched gradients, forward over reverse."""
    with torch.enable_grad():
        inputs = aliases(inputs, wanted)
        y = ctx.formula(*inputs, solve=Traced()).to(ctx.dtype)
        at = [t for t, w in zip(inputs, wanted, strict=True) if w]
        return torch.autograd.grad(y, at, g, create_graph=True, allow_unused=True, materialize_grads=True)


def _backward_by_rule(
    ctx: Any, inputs: tuple[Tensor, ...], out: Tensor, g: Tensor, wanted: tuple[bool, ...]
) -> list[Tensor]:
    x, *rest = inputs
    parameter = rest[0] if rest else None
    changes, dx = [], torch.empty_like(x)
    for part in _chunks(x.shape[0], ctx.cost, x.device):
        dx[part], change = ctx.rule(out[part], g[part], None if parameter is None else rows_of(parameter, part))
        changes.append(change)
    grads = [dx] if wanted[0] else []
    if parameter is not None and wanted[1]:
        grads.append(torch.cat(changes).sum_to_size(parameter.shape).to(parameter.dtype))
    return grads


def _chunked_backward(ctx: Any, inputs: tuple[Tensor, ...], g: Tensor, wanted: tuple[bool, ...]) -> list[Tensor]:
    x = inputs[0]
    work = ctx.work
    # A parameter shared by all rows is summed over the chunks in the working precision and rounded once.
    shared = [t.shape[0] == 1 and x.shape[0] != 1 for t in inputs]
    total = [
        torch.zeros_like(t, dtype=work if s else t.dtype) for t, s, w in zip(inputs, shared, wanted, strict=True) if w
    ]
    for part, roots in zip(_chunks(x.shape[0], ctx.cost, x.device), ctx.roots, strict=True):
        with torch.enable_grad():
            leaves = [
                t.to(work).detach().requires_grad_() if w else t
                for t, w in zip((rows_of(t, part) for t in inputs), wanted, strict=True)
            ]
            y = ctx.formula(*leaves, solve=Solve(known=roots, dtype=work))
        at = [t for t, w in zip(leaves, wanted, strict=True) if w]
        grads = torch.autograd.grad(y, at, g[part].to(y.dtype), allow_unused=True, materialize_grads=True)
        for sum_, grad, is_shared in zip(
            total, grads, (s for s, w in zip(shared, wanted, strict=True) if w), strict=True
        ):
            if is_shared:
                sum_ += grad
            else:
                sum_[part] = grad
    return [t.to(i.dtype) for t, i in zip(total, (i for i, w in zip(inputs, wanted, strict=True) if w), strict=True)]
