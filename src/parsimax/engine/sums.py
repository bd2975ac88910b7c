"""Sums and thresholds that formulas can trust in float32 as in float64.

In float64 these are what their names say. In float32, which is all that some devices have (``kernels/backends.py``),

* many equal numbers err alike in a plain sum, so a sum is taken in two parts: multiples of 2^-22, whose sum is exact
  while it is below 4, and the rests, which are so small that the rounding of their sum does not show;
* a plateau of a million scores lies closer to its threshold than float32 can tell, so a threshold is the sum of two
  numbers, (..., 2), and a score minus the first of them is exact where it matters.

All are ordinary operations, so that derivatives of every kind go through them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SHIFT = 3.0  # numbers from 0 to 1 are moved to [3, 4], where floats are 2^-22 apart


def is_lean(x: Tensor) -> bool:
    return x.dtype != torch.float64


def total(x: Tensor, less: float | Tensor = 0) -> Tensor:
    """The sum of rows of numbers in [0, 1], minus ``less``, which may be nearly all of it; (..., 1)."""
    if not is_lean(x):
        return x.sum(-1, keepdim=True) - less
    most = (x + _SHIFT) - _SHIFT
    return (most.sum(-1, keepdim=True) - less) + (x - most).sum(-1, keepdim=True)


def signed_total(x: Tensor) -> Tensor:
    """The sum of rows of any numbers."""
    if not is_lean(x):
        return x.sum(-1, keepdim=True)
    size = (x.detach().abs().amax(-1, keepdim=True) * x.shape[-1]).clamp(1e-30, 1e37)
    unit = size.log2().ceil().exp2()
    y = x / unit
    most = (y + _SHIFT) - _SHIFT
    rest = y - most
    more = (rest + _SHIFT * 2**-22) - _SHIFT * 2**-22
    parts = (rest - more).sum(-1, keepdim=True) + more.sum(-1, keepdim=True)
    return (most.sum(-1, keepdim=True) + parts) * unit


def square_total(z: Tensor, tau: Tensor) -> Tensor:
    """The sum of (z - tau)^2 over the entries above tau, minus 1, in float32 to 1e-11."""
    first, second = tau.chunk(2, -1)
    on = over(z, tau) > 0
    most = torch.where(on, z - first, 0)
    rest = torch.where(on, (z - most) - first - second, 0)
    wide = 4097 * most  # the upper half of the bits, whose square is exact
    upper = wide - (wide - most)
    lower = most - upper
    return total(upper * upper, 1) + (
        total(2 * upper * lower) + (lower * lower + 2 * most * rest).sum(-1, keepdim=True)
    )


def power_total(z: Tensor, tau: Tensor, power: Tensor) -> Tensor:
    """The sum of d^(power + 1), d = z - tau above 0, minus 1, in float32 the better the nearer ``power`` is to 1.

    Of the large d, whose squares sum to at most 4, it takes d^2 exactly, and what is between that and the power.
    """
    share = over(z, tau).clamp(min=0)
    least = (-math.log(4) / (power - 1).clamp(min=1e-3)).exp().clamp(min=0.25)
    large = share > torch.where(power == 1, 0, least)
    change = share * share * ((power - 1) * torch.where(large, share, 1).log()).expm1()
    rest = torch.where(large, change, share.pow(power) * share)
    return square_total(z.masked_fill(~large, -math.inf), tau) + total(rest)


def normalised(mass: Tensor) -> Tensor:
    """Rows divided by their sums."""
    p = mass / mass.sum(-1, keepdim=True)
    return p / total(p) if is_lean(p) else p


def threshold(at: Tensor) -> Tensor:
    """A threshold (..., 1) as a search begins with it."""
    return torch.cat([at, torch.zeros_like(at)], -1) if is_lean(at) else at


def over(z: Tensor, tau: Tensor) -> Tensor:
    """z - tau."""
    if not is_lean(z):
        return z - tau
    first, second = tau.chunk(2, -1)
    return (z - first) - second


def moved(tau: Tensor, by: Tensor) -> Tensor:
    """tau + by, without an error that shows."""
    if not is_lean(tau):
        return tau + by
    first, second = tau.chunk(2, -1)
    second = second + by
    near = first + second
    back = near - first
    return torch.cat([near, (first - (near - back)) + (second - back)], -1)


def apart(one: Tensor, other: Tensor) -> Tensor:
    """The difference of two thresholds, (..., 1)."""
    return over(one[..., :1], other) + one[..., 1:] if is_lean(one) else one - other


def below(tau: Tensor) -> Tensor:
    """A number that is not above the threshold, and hardly below it."""
    return tau if not is_lean(tau) else tau[..., :1] - 2e-7 * tau[..., :1].abs() - 1e-30
