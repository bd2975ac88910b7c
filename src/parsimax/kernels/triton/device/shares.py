"""Weights over their sum: t-softmax, r-softmax and sigsoftmax, forward and backward.

KIND says how a weight follows from z = score - maximum:

    CUT    (1 - z/q)_+ e^z with a cut q < 0; q = -∞ is e^z, and q >= 0 is 1 at the maxima
    BENT   e^z of x + log σ(x), which rises with x: its maximum is that of the scores

A row that is held has one tile, which is not loaded again; the loop over it is then none.
"""

import triton
import triton.language as tl

from .entmax import load, relative
from .numbers import exp, log, parts

CUT = tl.constexpr(0)
BENT = tl.constexpr(1)


@triton.jit
def tile(X, x, rows, stride, start, count, n, B: tl.constexpr, ONE: tl.constexpr):
    """Scores from ``start`` on: of a row that is held, those that are there."""
    if ONE:
        return x
    else:
        return load(X, rows, stride, start, count, n, B)


@triton.jit
def put(p, bad, P, rows, start, count, n, B: tl.constexpr):
    at = start + tl.arange(0, B)[None, :]
    p = tl.where(bad, float("nan"), p)
    tl.store(P + rows * n + at, p.to(P.dtype.element_ty), mask=(rows < count) & (at < n))


@triton.jit
def incoming(G, on, rows, stride, start, count, n, B: tl.constexpr):
    """g where ``on``, 0 elsewhere, whatever is there."""
    at = start + tl.arange(0, B)[None, :]
    return tl.load(G + rows * stride + at, mask=(rows < count) & (at < n) & on, other=0.0).to(tl.float32)


@triton.jit
def bent(x):
    """x + log σ(x)."""
    x = tl.where(x > float("-inf"), x, 0.0)
    away = exp(-tl.abs(x))
    near = away < 1e-4
    rest = tl.where(near, away * (1.0 - 0.5 * away), log(1.0 + tl.where(near, 0.0, away)))
    return x + (tl.minimum(x, 0.0) - rest)


@triton.jit
def weight_of(x, top, q, KIND: tl.constexpr):
    """(w, where it is above 0, z); at most 1, but for the rounding of ``bent``."""
    if KIND == BENT:
        z, on = relative(tl.where(x > float("-inf"), bent(x), float("-inf")), tl.where(top == top, bent(top), top))
        on = on & (top > float("-inf")) & (top < float("inf"))
        w = tl.where(on, exp(z), 0.0)
    else:
        z, live = relative(x, top)
        whole = q == float("-inf")
        flat = q >= 0
        most, rest = parts(tl.where(whole | flat, -1.0, q))
        above = (z - most) - rest
        on = tl.where(whole, live, tl.where(flat, live & (z == 0), live & (above > 0)))
        w = tl.where(flat, 1.0, tl.where(whole, 1.0, above / tl.maximum(-most, 1e-37)) * exp(z))
        w = tl.where(on, w, 0.0)
    return w, on, z


@triton.jit
def write(X, x, P, top, q, bad, rows, stride, count, n, KIND: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
          ONE: tl.constexpr):  # fmt: skip
    """Weights over their sum, which is rounded: once more, from a sum near 1, in parts as numbers.total has it."""
    all = tl.zeros([R, B], tl.float32)
    for start in range(0, B if ONE else n, B):
        w, on, z = weight_of(tile(X, x, rows, stride, start, count, n, B, ONE), top, q, KIND)
        all += w
    some = tl.sum(all, 1, keep_dims=True)
    some = tl.where(some > 0, some, 1.0)
    whole = tl.zeros([R, B], tl.float32)
    rest = tl.zeros([R, B], tl.float32)
    for start in range(0, B if ONE else n, B):
        w, on, z = weight_of(tile(X, x, rows, stride, start, count, n, B, ONE), top, q, KIND)
        p = w / some
        cut = (p + 3.0) - 3.0
        whole += cut
        rest += p - cut
    f = tl.sum(whole, 1, keep_dims=True).to(tl.float64) + tl.sum(rest, 1, keep_dims=True).to(tl.float64)
    f = tl.where(f > 0, f, 1.0).to(tl.float32)
    for start in range(0, B if ONE else n, B):
        w, on, z = weight_of(tile(X, x, rows, stride, start, count, n, B, ONE), top, q, KIND)
        put(w / some / f, bad, P, rows, start, count, n, B)


@triton.jit
def means(X, x, G, top, q, rows, stride, stride_g, count, n, KIND: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
          ONE: tl.constexpr):  # fmt: skip
    """(the sum of the weights, <p, g>)."""
    all = tl.zeros([R, B], tl.float32)
    along = tl.zeros([R, B], tl.float32)
    for start in range(0, B if ONE else n, B):
        w, on, z = weight_of(tile(X, x, rows, stride, start, count, n, B, ONE), top, q, KIND)
        all += w
        along += w * incoming(G, on, rows, stride_g, start, count, n, B)
    some = tl.sum(all, 1, keep_dims=True)
    some = tl.where(some > 0, some, 1.0)
    return some, tl.sum(along, 1, keep_dims=True) / some


@triton.jit
def moved(x, G, top, q, some, mean, rows, stride, start, count, n, B: tl.constexpr):
    """Of a tile whose weights are cut, with h = g - <p, g> and v = e^z/(-q) over the sum of the weights, the rate at
    which a weight grows with its distance from the cut and 0 where only the maxima are left: (h (p + v), h v, z, live).
    """
    w, on, z = weight_of(x, top, q, CUT)
    h = tl.where(on, incoming(G, on, rows, stride, start, count, n, B) - mean, 0.0)
    inverse = tl.where(q < 0, 1.0 / tl.maximum(-q.to(tl.float32), 1e-37), 0.0)
    v = tl.where(on, exp(z) * inverse / some, 0.0)
    return h * (w / some + v), h * v, z, (x > float("-inf")) & (top > float("-inf")) & (top < float("inf"))
