"""Rows of normmax: p = d^m over its sum, d = (z + E)_+, m = 1/(α - 1), z = score - maximum; E with sum d^(m+1) = 1.

In float64, entry by entry, unlike all else here: what p is off by is what E is off by times the size of the support.
Under one leader a million scores may have d = 1e-6 and half of the probability; then E must be right to 1e-12.

The norm of d, g(E) = (sum d^(m+1))^(1/(m+1)), is convex and rises, and g(1) >= 1, as the maximum alone gives that: so
Newton from 1 never passes the root, and what is not in the support at the first step never is. The proof at its end,
for m >= 1, with D = sum d^m and M = sum d^(m-1), which both rise with E: at the root D >= 1, since d <= 1 there, and
g' = D. As g is convex, E is above the root by no more than g - 1; so D is there at least D_r = max(1, D - (g - 1) m M),
and E is above it by no more than (g - 1)/D_r. As dp/dE = m (d^(m-1) - p M)/D, a difference of two numbers above 0, no
p is off by more than (g - 1)/D_r m/D_r max(E^(m-1), E^m M/D_r). A row without that is NaN.
"""

import triton
import triton.language as tl

from .entmax import load, marked, peak
from .numbers import LN2, any_of
from .shares import incoming, tile
from .steps import MOST, PROOF


@triton.jit
def alpha_of(Alpha, rows, stride, count):
    """(α, m, where α is outside)."""
    alpha = tl.load(Alpha + rows * stride, mask=rows < count, other=2.0).to(tl.float64)
    outside = (alpha <= 1) | (alpha != alpha) | (alpha == float("inf"))
    alpha = tl.where(outside, 2.0, alpha)
    return alpha, 1.0 / (alpha - 1.0), outside


@triton.jit
def powers(x, top, E, m):
    """(d, d^m); 0 outside the support. Powers are computed where a row has another m than 1."""
    live = (x > float("-inf")) & (top > float("-inf")) & (top < float("inf"))
    d = tl.where(live, x.to(tl.float64) - top.to(tl.float64), -1.0) + tl.where(live, E, 0.0)
    on = d > 0
    d = tl.where(on, d, 0.0)
    power = d
    if tl.max((m != 1).to(tl.int32)) > 0:
        some = tl.exp2(m * tl.log2(tl.where(on, d, 1.0)))
        power = tl.where(m == 1, d, tl.where(on, some, 0.0))
    return d, power


@triton.jit
def advance(f, D, M, E, m, done):
    """(E, done): one step on the norm, and the bound."""
    log_g = tl.log(tl.where(f > 0, f, 1.0)) / (m + 1.0)
    over = tl.exp(log_g) - 1.0
    D = tl.where(D > 0, D, 1.0)
    least = tl.maximum(1.0, D - tl.abs(over) * m * M)
    high = tl.exp((m - 1.0) * tl.log(E))
    off = tl.abs(over) / least * m / least * tl.maximum(high, high * E * M / least)
    done = done | (off <= PROOF)
    return tl.where(done, E, E - over / (D * tl.exp(-m * log_g))), done


@triton.jit
def forward(X, Alpha, P, stride, stride_a, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    alpha, m, outside = alpha_of(Alpha, rows, stride_a, count)
    bad = bad | outside
    E = tl.where(bad, 1.0, 1.0).to(tl.float64)
    D = E
    bits = tl.where(bad, 0, 0).to(tl.int64)
    done = bad | (top == float("-inf"))
    i = 0
    while (tl.min(done.to(tl.int32)) == 0) & (i < MOST):
        f = tl.zeros([R, B], tl.float64)
        sums = tl.zeros([R, B], tl.float64)
        less = tl.zeros([R, B], tl.float64)
        for start in range(0, B if ONE else n, B):
            if ONE | (i == 0) | marked(bits, start, n, B):
                d, power = powers(tile(X, x, rows, stride, start, count, n, B, ONE), top, E, m)
                f += d * power
                sums += power
                less += power / tl.where(d > 0, d, 1.0)
                if not ONE:
                    mark = tl.full([1, 1], 1, tl.int64) << (start // B // tl.cdiv(n, 64 * B)).to(tl.int64)
                    bits = bits | tl.where(any_of(d > 0), mark, 0)
        D = tl.where(done, D, tl.sum(sums, 1, keep_dims=True))
        M = tl.sum(less, 1, keep_dims=True)
        E, done = advance(tl.sum(f, 1, keep_dims=True), D, M, E, m, done)
        i += 1
    bad = bad | (done == 0)
    for start in range(0, B if ONE else n, B):
        d, power = powers(tile(X, x, rows, stride, start, count, n, B, ONE), top, E, m)
        p = tl.where(bad, float("nan"), power / tl.where(D > 0, D, 1.0))
        at = start + tl.arange(0, B)[None, :]
        tl.store(P + rows * n + at, p.to(tl.float32).to(P.dtype.element_ty), mask=(rows < count) & (at < n))


@triton.jit
def loaded(P, G, rows, stride_g, start, count, n, B: tl.constexpr):
    """(p, log p, where p is above 0, g there, where p is NaN) of a tile; 0 elsewhere."""
    at = start + tl.arange(0, B)[None, :]
    p = tl.load(P + rows * n + at, mask=(rows < count) & (at < n), other=0.0).to(tl.float64)
    on = p > 0
    g = incoming(G, on, rows, stride_g, start, count, n, B).to(tl.float64)
    log = tl.where(on, tl.log2(tl.where(on, p, 1.0)) * LN2, 0.0)
    return tl.where(on, p, 0.0), log, on, g, p != p


@triton.jit
def backward(P, G, Alpha, Dx, Dalpha, stride_g, stride_a, count, n, NEED: tl.constexpr, R: tl.constexpr,
             B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """With S = 1/‖p‖_α, d = (p S)^(α-1), w = p/d and h = g - <p, g>: dx = m (w h - p <w, h>), as the threshold moves
    with <p, dx>; dα = -m² (<p h, log d> - m/(m+1) <p d, log d> <w, h>). In float64, as m² may be large."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    alpha, m, outside = alpha_of(Alpha, rows, stride_a, count)
    norms = tl.zeros([R, B], tl.float64)
    along = tl.zeros([R, B], tl.float64)
    nans = tl.zeros([R, B], tl.int32)
    for start in range(0, B if ONE else n, B):
        p, log, on, g, nan = loaded(P, G, rows, stride_g, start, count, n, B)
        norms += tl.where(on, tl.exp(alpha * log), 0.0)
        along += p * g
        nans = nans | nan.to(tl.int32)
    bad = outside | any_of(nans > 0)
    norm = tl.sum(norms, 1, keep_dims=True)
    size = -tl.log(tl.where(norm > 0, norm, 1.0)) / alpha  # log S
    mean = tl.sum(along, 1, keep_dims=True)
    shifts = tl.zeros([R, B], tl.float64)
    owns = tl.zeros([R, B], tl.float64)
    crosses = tl.zeros([R, B], tl.float64)
    for start in range(0, B if ONE else n, B):
        p, log, on, g, nan = loaded(P, G, rows, stride_g, start, count, n, B)
        depth = tl.where(on, (alpha - 1.0) * (log + size), 0.0)  # log d
        h = tl.where(on, g - mean, 0.0)
        shifts += p * tl.exp(-depth) * h
        if NEED:
            owns += p * h * depth
            crosses += p * tl.exp(depth) * depth
    shift = tl.sum(shifts, 1, keep_dims=True)
    for start in range(0, B if ONE else n, B):
        p, log, on, g, nan = loaded(P, G, rows, stride_g, start, count, n, B)
        depth = tl.where(on, (alpha - 1.0) * (log + size), 0.0)
        h = tl.where(on, g - mean, 0.0)
        dx = tl.where(bad, float("nan"), m * p * (tl.exp(-depth) * h - shift))
        at = start + tl.arange(0, B)[None, :]
        tl.store(Dx + rows * n + at, dx.to(tl.float32).to(Dx.dtype.element_ty), mask=(rows < count) & (at < n))
    if NEED:
        cross = tl.sum(crosses, 1, keep_dims=True)
        change = -m * m * (tl.sum(owns, 1, keep_dims=True) - m / (m + 1.0) * cross * shift)
        tl.store(Dalpha + rows, tl.where(bad, float("nan"), change), mask=rows < count)
