"""The face that all mappings share: dim, dtype, mask, parameters, and what forbidden, NaN and infinite scores mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .arguments import Interval, check_dim, check_mask, check_scores
from .chunked import Formula, Solve, Traced, evaluate
from .clean import Parameter, as_tensor, clean, fallback, inside, poisoned
from .fused import RowKernel
from .modes import kernels_serve
from .modes import tiny as is_tiny
from .precision import softmax_dtype
from .tiny import Tiny


def _on_rows(
    formula: Formula, domains: tuple[tuple[Interval, float], ...], x: Tensor, *raw: Tensor, solve: Solve
) -> Tensor:
    rows = clean(x, shift=getattr(formula, "shift", True), traced=isinstance(solve, Traced), dtype=solve.dtype)
    broken, values = rows.broken, []
    for value, (domain, harmless) in zip(raw, domains, strict=True):
        good, bad = inside(value, domain, harmless, rows.z.dtype)
        broken = broken | bad
        values.append(good)
    p = formula(rows.z, rows.live, *values, solve=solve)
    if isinstance(solve, Traced) or not rows.allowed.all() or broken.any():
        p = poisoned(torch.where(rows.allowed, p, 0), x.to(p.dtype), broken)
    return p


def apply(
    formula: Formula,
    scores: Tensor,
    *parameters: Parameter,
    dim: int,
    mask: Tensor | None,
    dtype: torch.dtype | None,
    where: str,
    kernel: RowKernel | None = None,
    tiny: Tiny | None = None,
    **options: Any,
) -> Tensor:
    """``formula`` as a function of any tensor, over any dimension; by its kernel where that can run.

    ``tiny`` is the short way of short rows in plain torch; ``options`` are what a back end may not take, by the names
    of ``kernels/backends.py``.
    """
    check_scores(scores, dtype, where, least=0, has_dtype=True)
    if scores.dim() == 0:  # one entry, as for torch.softmax
        given = scores.reshape(1)
        options.update(dim=dim, mask=mask, dtype=dtype, where=where, kernel=kernel, tiny=tiny)
        return apply(formula, given, *parameters, **options).reshape(())
    dim = check_dim(dim, scores.dim(), where)
    x = scores if dtype is None else scores.to(dtype)
    if mask is not None:
        check_mask(mask, scores, where)
        x = x.masked_fill(~mask, -math.inf)
    values = [as_tensor(p, x, dim, where) for p in parameters]
    out = dtype or softmax_dtype(scores)
    if x.shape[dim] == 0:
        return _nothing(x, values, dim, out)
    last = dim == x.dim() - 1  # on a tiny tensor a view that changes nothing costs as much as the kernel
    rows = x if last else x.movedim(dim, -1)
    if kernels_serve(where, rows, *values, **options) and kernel is not None:
        rows = rows if rows.dtype == out else rows.to(out)
        graph = torch.compiler.is_compiling()  # which is compiled for packed results: packed rows give them
        p = kernel.operator(rows.contiguous(), *values) if graph else kernel(rows, *values)
        return p if last else p.movedim(-1, dim)
    if tiny is not None and out == rows.dtype and is_tiny(rows, -1):
        p = tiny(rows)
        return p if last else p.movedim(-1, dim)
    domains = tuple((p.domain, fallback(p.domain)) for p in parameters)
    rule = kernel.rule if kernel is not None and kernel.rule_from_output else None
    p = evaluate(partial(_on_rows, formula, domains), rows, *values, width=rows.shape[-1], dtype=out, rule=rule)
    return p.movedim(-1, dim)


def _nothing(x: Tensor, values: list[Tensor], dim: int, dtype: torch.dtype) -> Tensor:
    """Rows without entries, which depend on the scores and parameters as others do, for derivatives of every order."""
    p = torch.softmax(x, dim, dtype=dtype).movedim(dim, -1)
    for value in values:
        p = p * value.to(dtype)
    return p.movedim(-1, dim)


def unshifted(formula: Formula) -> Formula:
    """Mark a formula that depends on the scores themselves and not only on their differences."""
    formula.shift = False  # type: ignore[attr-defined]
    return formula


def formula_rule(
    formula: Formula, *domains: Interval
) -> Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
    """The derivative of a formula as a function of its input, for a kernel that saves its input."""
    on_rows = partial(_on_rows, formula, tuple((d, fallback(d)) for d in domains))

    def rule(x: Tensor, g: Tensor, parameter: Tensor | None) -> tuple[Tensor, Tensor | None]:
        inputs = [x] if parameter is None else [x, parameter]
        with torch.enable_grad():
            at = [t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in inputs]
            y = on_rows(*at, solve=Traced()).to(g.dtype)
            grads = torch.autograd.grad(y, at, g, create_graph=True, allow_unused=True, materialize_grads=True)
        # A parameter comes back summed to its shape, as the caller would do.
        return grads[0], grads[1] if parameter is not None else None

    return rule
