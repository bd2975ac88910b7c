"""Numbers in two parts, sums that can be trusted, and functions that are smooth through 0.

Tiles are (rows, columns), and what belongs to a row is (rows, 1). float64 is kept to a handful of operations for each
row, as most GPUs have few units for it.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3e38)


@triton.jit
def parts(x):
    """A float64 number as the sum of two of float32."""
    high = x.to(tl.float32)
    return high, (x - high.to(tl.float64)).to(tl.float32)


@triton.jit
def total(p):
    """The sum of each row, in float64, of numbers in [0, 1] that add up to less than 4; of more to float32's precision.

    p + 3 cuts p to a multiple of 2^-22; of those, sums below 4 are exact in float32. What was cut off is below 2^-23,
    so that the rounding of its sum does not show. A million equal numbers err alike in a plain sum of float32.
    """
    cut = (p + 3.0) - 3.0
    return tl.sum(cut, 1, keep_dims=True).to(tl.float64) + tl.sum(p - cut, 1, keep_dims=True).to(tl.float64)


@triton.jit
def any_of(condition):
    """Whether it holds somewhere in a row."""
    return tl.max(condition.to(tl.int32), 1, keep_dims=True) > 0


@triton.jit
def log(x):
    return tl.log2(x) * LN2


@triton.jit
def exp(x):
    return tl.exp2(x * LOG2E)


@triton.jit
def log1p_over(e, b):
    """log(1 + b e)/b for 1 + b e > 0, which is e at b = 0."""
    x = b * e
    near = tl.abs(x) < 0.125
    t = tl.where(near, x, 0.0)
    series = 1.0 - t * (0.5 - t * (1.0 / 3 - t * (0.25 - t * (0.2 - t * (1.0 / 6 - t * (1.0 / 7 - t * 0.125))))))
    far = log(tl.where(near, 1.0, 1.0 + x)) / tl.where(near, 1.0, b)
    return tl.where(near, tl.where(near, e, 0.0) * series, far)


@triton.jit
def expm1_over(e, b):
    """(e^(b e) - 1)/b, which is e at b = 0."""
    x = b * e
    near = tl.abs(x) < 0.25
    t = tl.where(near, x, 0.0)
    series = 1.0 + t / 2 * (1.0 + t / 3 * (1.0 + t / 4 * (1.0 + t / 5 * (1.0 + t / 6 * (1.0 + t / 7)))))
    far = (exp(tl.where(near, 0.0, x)) - 1.0) / tl.where(near, 1.0, b)
    return tl.where(near, tl.where(near, e, 0.0) * series, far)


@triton.jit
def moved_by_alpha(t):
    """(1 - e^t + t e^t)/t^2, smooth through 0."""
    near = tl.abs(t) < 1.0
    s = tl.where(near, t, 0.0)
    tail = 1.0 / 144 + s * (1.0 / 840 + s * (1.0 / 5760 + s * (1.0 / 45360 + s * (1.0 / 403200 + s / 3991680))))
    series = 0.5 + s * (1.0 / 3 + s * (0.125 + s * (1.0 / 30 + s * tail)))
    far = tl.where(near, 1.0, t)
    grown = exp(far)
    return tl.where(near, series, (1.0 - grown + far * grown) / (far * far))
