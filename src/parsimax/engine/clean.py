"""What forbidden, NaN and infinite scores mean, and parameters outside their domain."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import Interval, check_number, check_parameter
from .precision import formula_dtype, work_dtype

LARGE = {torch.float64: 1e300, torch.float32: 1e38}


class Clean(NamedTuple):
    """Rows in the working precision that any formula can take."""

    z: Tensor  # finite; maximum 0; 0 where not allowed
    allowed: Tensor  # the entries that are not forbidden
    live: Tensor  # the same, but everything in a broken row or where nothing is allowed: no formula divides by 0
    top: Tensor  # what was subtracted, (..., 1)
    broken: Tensor  # rows with NaN or +inf, (..., 1)


def clean(x: Tensor, *, shift: bool = True, traced: bool = True, dtype: torch.dtype | None = None) -> Clean:
    """``dtype`` is what to compute in; that of formulas here if not given."""
    work = dtype or formula_dtype(x)
    narrow = x.dtype != work == torch.float64
    x = x.to(work)
    peak = x.detach().amax(-1, keepdim=True)  # NaN if there is one
    broken, empty = ~(peak < math.inf), peak == -math.inf
    top = peak.masked_fill(broken | empty, 0)
    allowed = x.detach() > -math.inf
    z = x - top if shift else x
    z = z if narrow else z.clamp(min=-LARGE[work])  # a difference can overflow
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
        value = value.to("meta") if scores.is_meta else value  # torch before 2.7 mixes no devices there
        return check_parameter(value, scores, dim, name, where)
    number = check_number(value, domain, name, where)
    return torch.full((1,) * scores.dim(), number, dtype=work_dtype(scores.device), device=scores.device)


def inside(value: Tensor, domain: Interval, fallback: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The parameter in that precision, ``fallback`` where it is outside its domain; and where that is."""
    value = value.to(dtype)
    good = domain.holds(value)
    return torch.where(good, value, fallback), ~good


def poisoned(out: Tensor, x: Tensor, broken: Tensor) -> Tensor:
    """``out`` with NaN in the broken rows, and in the gradients by ``x`` and by parameters that come back from them."""
    own = torch.where(broken, x, 0) * torch.where(broken, math.nan, 0.0)
    if out.shape[-1] != x.shape[-1]:
        own = own.sum(-1, keepdim=True)
    return out * torch.where(broken, math.nan, 1.0) + own


def fallback(domain: Interval) -> float:
    """A harmless value for rows that will be NaN."""
    return domain.low + min(1.0, (domain.high - domain.low) / 2) if math.isfinite(domain.low) else domain.high - 1
