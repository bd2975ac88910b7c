"""The face that all mappings share: dim, dtype, mask, parameters, and what forbidden, NaN and infinite scores mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .._arguments import Interval, check_dim, check_mask, check_number, check_parameter, check_scores
from ..kernels import dispatch
from ..kernels.operators import in_graph
from ..kernels.rows import RowKernel
from .rows import Formula, Solve, Traced, evaluate, is_plain, work_dtype

LARGE = 1e300


class Clean(NamedTuple):
    """Rows in the working precision that any formula can take."""

    z: Tensor  # finite; maximum 0; 0 where not allowed
    allowed: Tensor  # the entries that are not forbidden
    live: Tensor  # the same, but everything in a broken row or where nothing is allowed: no formula divides by 0
    top: Tensor  # what was subtracted, (..., 1)
    broken: Tensor  # rows with NaN or +inf, (..., 1)


def clean(x: Tensor, *, shift: bool = True, traced: bool = True) -> Clean:
    narrow = x.dtype != torch.float64
    x = x.to(work_dtype(x.device))
    peak = x.detach().amax(-1, keepdim=True)  # NaN if there is one
    broken, empty = ~(peak < math.inf), peak == -math.inf
    top = peak.masked_fill(broken | empty, 0)
    allowed = x.detach() > -math.inf
    z = x - top if shift else x
    z = z if narrow else z.clamp(min=-LARGE)  # a difference of doubles can overflow
    if traced or not allowed.all() or broken.any():
        z = torch.where(allowed & ~broken, z, 0)  # a broken row becomes 0: poisoned() sees to its answer
    return Clean(z, allowed, allowed | empty | broken, top, broken)


class Parameter(NamedTuple):
    """A parameter as the caller gave it, and where it may lie."""

    name: str
    value: float | Tensor
    domain: Interval


def as_tensor(parameter: Parameter, scores: Tensor, dim: int, where: str) -> Tensor:
    """The parameter with the rank of the scores and size 1 along ``dim``, which comes last."""
    name, value, domain = parameter
    if isinstance(value, Tensor):
        return check_parameter(value, scores, dim, name, where)
    number = check_number(value, domain, name, where)
    return torch.full((1,) * scores.dim(), number, dtype=work_dtype(scores.device), device=scores.device)


def inside(value: Tensor, domain: Interval, fallback: float) -> tuple[Tensor, Tensor]:
    """The parameter in the working precision, ``fallback`` where it is outside of its domain; and where that is."""
    value = value.to(work_dtype(value.device))
    good = domain.holds(value)
    return torch.where(good, value, fallback), ~good


def softmax_dtype(scores: Tensor) -> torch.dtype:
    """What ``torch.softmax`` would return: under autocast that is not always the dtype of the scores."""
    if not scores.is_meta and torch.is_autocast_enabled(scores.device.type):
        return torch.softmax(torch.empty(1, dtype=scores.dtype, device=scores.device), -1).dtype
    return scores.dtype


def _on_rows(
    formula: Formula, domains: tuple[tuple[Interval, float], ...], x: Tensor, *raw: Tensor, solve: Solve
) -> Tensor:
    rows = clean(x, shift=getattr(formula, "shift", True), traced=isinstance(solve, Traced))
    broken, values = rows.broken, []
    for value, (domain, fallback) in zip(raw, domains, strict=True):
        good, bad = inside(value, domain, fallback)
        broken = broken | bad
        values.append(good)
    p = formula(rows.z, rows.live, *values, solve=solve)
    if isinstance(solve, Traced) or not rows.allowed.all() or broken.any():
        p = poisoned(torch.where(rows.allowed, p, 0), x.to(p.dtype), broken)
    return p


def poisoned(out: Tensor, x: Tensor, broken: Tensor) -> Tensor:
    """``out`` with NaN in the broken rows, and in the gradients by ``x`` and by parameters that come back from them."""
    own = torch.where(broken, x, 0) * torch.where(broken, math.nan, 0.0)
    if out.shape[-1] != x.shape[-1]:
        own = own.sum(-1, keepdim=True)
    return out * torch.where(broken, math.nan, 1.0) + own


def apply(
    formula: Formula,
    scores: Tensor,
    *parameters: Parameter,
    dim: int,
    mask: Tensor | None,
    dtype: torch.dtype | None,
    where: str,
    kernel: RowKernel | None = None,
) -> Tensor:
    """``formula`` as a function of any tensor, over any dimension; by its kernel where that can run."""
    check_scores(scores, dtype, where)
    dim = check_dim(dim, scores.dim(), where)
    x = scores if dtype is None else scores.to(dtype)
    if mask is not None:
        check_mask(mask, scores, where)
        x = x.masked_fill(~mask, -math.inf)
    values = [as_tensor(p, x, dim, where) for p in parameters]
    out = dtype or softmax_dtype(scores)
    if x.shape[dim] == 0:
        return x.to(out) * 1
    domains = tuple((p.domain, fallback(p.domain)) for p in parameters)
    rows = x.movedim(dim, -1)
    if kernel is not None and kernels_serve(where, rows, *values):
        run = kernel.operator if torch.compiler.is_compiling() else kernel
        return run(rows.to(out), *values).movedim(-1, dim)
    rule = kernel.rule if kernel is not None and kernel.rule_from_output else None
    p = evaluate(partial(_on_rows, formula, domains), rows, *values, width=rows.shape[-1], dtype=out, rule=rule)
    return p.movedim(-1, dim)


def kernels_serve(name: str, *tensors: Tensor) -> bool:
    """Whether kernels run for these inputs: called at once, or as an operator of the graph that is being traced."""
    return (is_plain(*tensors) or in_graph(*tensors)) and dispatch.cpu(name, *tensors)


def fallback(domain: Interval) -> float:
    """A harmless value for rows that will be NaN."""
    return domain.low + min(1.0, (domain.high - domain.low) / 2) if math.isfinite(domain.low) else domain.high - 1


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
