"""A function of each score as a table of polynomials, which is what the kernels of the losses read.

PLIF is such a table. A monotonic net becomes one: cubic pieces that meet in value and slope, so narrow that they differ
from it by less than the rounding of float32 does. A hundred sigmoids a score become one look into a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..engine.precision import in_float64

MOST = 1 << 16  # pieces of a monotonic net; beyond, the sigmoids are computed themselves
FOURTH = 0.128  # no less than the fourth derivative of the sigmoid is anywhere
SLOPE = 2.0**-22  # error of the slope, in units of the largest slope that the weights allow


@dataclass(frozen=True)
class Pieces:
    """At u = x scale + offset, piece i = floor(u), it is sum_k table[i, k] (u - i)^k.

    ``backward`` takes the sums of the kernels (8, pieces, coefficients) to (parameter, gradient) pairs.
    """

    table: Tensor
    scale: float
    offset: float
    backward: Callable[[Tensor], Iterable[tuple[Tensor, Tensor]]]


def plif_table(raw_slopes: Tensor, bound: float) -> Tensor:
    """The value at the left end of each piece of PLIF, and what it rises by, (pieces, 2), for the kernels."""
    # A rise below the least normal number is lifted to it by the kernel, after the values were summed without that:
    # they would not fit together. So such slopes are lifted before, by a bit more than they are rounded by.
    kind = torch.finfo(raw_slopes.dtype)
    slope = max(kind.tiny * raw_slopes.shape[0] / (2 * bound), torch.finfo(torch.float64).smallest_normal)
    raw = slope + math.log(-math.expm1(-slope))  # whose softplus it is
    raw += 4 * kind.eps * abs(raw)
    table: Tensor = torch.ops.parsimax._plif_table(raw_slopes.clamp(min=min(raw, kind.max)), bound)
    return table


def plif_pieces(raw_slopes: Tensor, bound: float) -> Pieces:
    count = raw_slopes.shape[0]
    raw = raw_slopes.detach()
    table = plif_table(raw, bound)

    def backward(sums: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        return [(raw_slopes, torch.ops.parsimax._plif_slopes(sums, raw, bound))]

    return Pieces(table, count / (2 * bound), float(count // 2), backward)


@in_float64
def steps_of(weights: tuple[Tensor, Tensor, Tensor], reach: float) -> int | None:
    """How many cubic pieces a monotonic net takes on [-reach, reach]; None if too many.

    A cubic through values and slopes at both ends of a piece of width h has a slope that is off by at most
    h³ M √3 / 216, M the largest fourth derivative, and a value by h⁴ M / 384, which is then smaller still.
    """
    if not 0 < reach < math.inf:  # neither nothing nor what is no number
        return None
    u, v = (F.softplus(t.detach().double()) for t in (weights[0], weights[2]))
    steep, fourth = float((v * u).sum()) / 4, float((v * u**4).sum()) * FOURTH
    width = (SLOPE * steep * 216 / 3**0.5 / fourth) ** (1 / 3) if fourth > 0 else reach
    count = 2 * reach / width
    return max(1, int(count) + 1) if count < MOST else None  # not a number compares as too many


def monotonic_pieces(weights: tuple[Tensor, Tensor, Tensor], reach: float) -> Pieces:
    count = steps_of(weights, reach)
    if count is None:
        raise ValueError(f"a monotonic net on ±{reach:g} takes more than {MOST} pieces")
    leaves = [t.detach().double().requires_grad_() for t in weights]
    with torch.enable_grad():
        u, b, v = F.softplus(leaves[0]), leaves[1], F.softplus(leaves[2])
        knots = torch.linspace(-reach, reach, count + 1, dtype=torch.float64)
        s = torch.sigmoid(knots.unsqueeze(1) * u + b)
        width = 2 * reach / count
        value, slope = s @ v, (s * (1 - s)) @ (v * u) * width
        left, right, start, end = value[:-1], value[1:], slope[:-1], slope[1:]
        square, cube = 3 * (right - left) - 2 * start - end, 2 * (left - right) + start + end
        table = torch.stack((left, start, square, cube), 1)

    def backward(sums: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        grads = torch.autograd.grad(table, leaves, sums.sum(0, dtype=torch.float64), retain_graph=True)
        return [(w, g.to(w.dtype)) for w, g in zip(weights, grads, strict=True)]

    return Pieces(table.detach().to(weights[0].dtype), 1 / width, reach / width, backward)
