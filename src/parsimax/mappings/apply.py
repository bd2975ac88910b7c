"""The face that all mappings share: dim, dtype, mask, parameters, and what forbidden, NaN and infinite scores mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .._arguments import Interval, check_dim, check_mask, check_number, check_parameter, check_scores
from .rows import Formula, Solve, Traced, evaluate, work_dtype


class Clean(NamedTuple):
    """Rows in the working precision that any formula can take."""

    z: Tensor  # finite; maximum 0; 0 where not allowed
    allowed: Tensor  # the entries that are not forbidden
    live: Tensor  # the same, but everything in a row where nothing is allowed: formulas need not divide by 0
    top: Tensor  # what was subtracted, (..., 1)
    broken: Tensor  # rows with NaN or +inf, (..., 1)


def clean(x: Tensor, *, shift: bool = True, traced: bool = True) -> Clean:
    x = x.to(work_dtype(x.device))
    peak = x.detach().amax(-1, keepdim=True)  # NaN if there is one
    broken, empty = ~(peak < math.inf), peak == -math.inf
    top = peak.masked_fill(broken | empty, 0)
    allowed = x.detach() > -math.inf
    z = x - top if shift else x
    if traced or not allowed.all() or broken.any():
        # A broken row becomes 0 but stays connected, so that NaN comes back in its gradient, and in no other row's.
        z = torch.where(allowed, z * (~broken).to(x.dtype), 0)
    return Clean(z, allowed, allowed | empty, top, broken)


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
    if torch.is_autocast_enabled(scores.device.type):
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
        p = torch.where(rows.allowed, p, 0) * torch.where(broken, math.nan, 1.0)
    return p


def apply(
    formula: Formula,
    scores: Tensor,
    *parameters: Parameter,
    dim: int,
    mask: Tensor | None,
    dtype: torch.dtype | None,
    where: str,
) -> Tensor:
    """``formula`` as a function of any tensor, over any dimension."""
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
    domains = tuple((p.domain, _fallback(p.domain)) for p in parameters)
    rows = x.movedim(dim, -1)
    p = evaluate(partial(_on_rows, formula, domains), rows, *values, width=rows.shape[-1], dtype=out)
    return p.movedim(-1, dim)


def _fallback(domain: Interval) -> float:
    """A harmless value for rows that will be NaN."""
    return domain.low + min(1.0, (domain.high - domain.low) / 2) if math.isfinite(domain.low) else domain.high - 1


def unshifted(formula: Formula) -> Formula:
    """Mark a formula that depends on the scores themselves and not only on their differences."""
    formula.shift = False  # type: ignore[attr-defined]
    return formula


Mapping = Callable[..., Tensor]
