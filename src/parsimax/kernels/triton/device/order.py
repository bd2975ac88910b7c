"""Mappings that need a place in the order of a row: top-k and budget sparsemax, r-softmax. Rows are held on chip.

A place is found bit by bit: as integers that are ordered as the floats are, 32 counts decide the 32 bits of the number
that stands there. That is exact, and ties need no care.
"""

import triton
import triton.language as tl

from .entmax import curve, load, peak, relative, root_fixed
from .numbers import LOWEST, exp, parts, total
from .steps import PROOF, SPARSEMAX


@triton.jit
def keys_of(x):
    """Integers in the order of the floats; -0 is 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def score_of(key):
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def place(keys, k):
    """The k-th largest key of each row, k from 1."""
    enough = tl.sum((keys >= 0).to(tl.int32), 1, keep_dims=True) >= k
    found = tl.where(enough, 0, -2147483648).to(tl.int32)
    for i in range(31):
        more = found + (1 << (30 - i))
        enough = tl.sum((keys >= more).to(tl.int32), 1, keep_dims=True) >= k
        found = tl.where(enough, more, found)
    return found


@triton.jit
def topk(X, P, Certain, stride, count, n, k, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """If the support of sparsemax has at most k entries the two are equal, and the row is certain. If not, the k
    largest lie inside it, and what the others had is shared evenly. Of equal scores the first ones are taken."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    dead = bad | (top == float("-inf"))
    E, proved, bits = root_fixed(X, x, rows, stride, count, n, top, dead, top, SPARSEMAX, B, ONE)
    z, live = relative(x, top)
    p, u = curve(z, live, E, E, top, SPARSEMAX)
    certain = dead | (tl.sum((p > 0).to(tl.int32), 1, keep_dims=True) <= k)
    if tl.min(certain.to(tl.int32)) == 0:
        keys = keys_of(x)
        least = place(keys, k)
        above = keys > least
        same = keys == least
        left = k - tl.sum(above.to(tl.int32), 1, keep_dims=True)
        kept = above | (same & (tl.cumsum(same.to(tl.int32), 1) <= left))
        missing = ((1.0 - total(tl.where(kept, p, 0.0))) / k).to(tl.float32)
        p = tl.where(certain, p, tl.where(kept, p + missing, 0.0))
    nan = bad | (proved == 0)
    at = tl.arange(0, B)[None, :]
    p = tl.where(nan, float("nan"), p)
    tl.store(P + rows * n + at, p.to(P.dtype.element_ty), mask=(rows < count) & (at < n))
    tl.store(Certain + rows, (certain & (nan == 0)).to(tl.int8), mask=rows < count)


@triton.jit
def budget(X, Budget, P, stride, stride_b, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """p = clip(x - c - d, 0, 1) with sum p = budget; c is the score at place ceil(budget), so that -1 <= d <= 0.

    The sum falls piecewise linearly in d: Newton inside a bracket ends on the exact piece.
    """
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    b = tl.load(Budget + rows * stride_b, mask=rows < count, other=0.0).to(tl.float64)
    allowed = x > float("-inf")
    size = tl.sum(allowed.to(tl.int32), 1, keep_dims=True)
    bad = bad | (b < 0) | (b != b)
    whole = bad | (b == 0) | (b >= size.to(tl.float64))
    wanted = tl.where(whole, 1.0, b)
    up = wanted.to(tl.int32)
    up = tl.where(up.to(tl.float64) < wanted, up + 1, up)
    pivot = score_of(place(keys_of(x), up))
    near = tl.where(allowed & (whole == 0), tl.maximum(x - pivot, LOWEST), LOWEST)
    unit = tl.exp2(tl.ceil(tl.log2((wanted + 1.0).to(tl.float32))))
    d = tl.where(whole, -0.5, -0.5).to(tl.float64)
    low = d - 0.5
    high = d + 0.5
    done = whole
    close = PROOF * tl.maximum(0.25 * wanted.to(tl.float32), 1.0)
    i = 0
    while (tl.min(done.to(tl.int32)) == 0) & (i < 2000):
        most, rest = parts(d)
        share = (near - most) - rest
        part = tl.where((share > 0) & (share < 1.0), share, 0.0)
        full = tl.sum((share >= 1.0).to(tl.int32), 1, keep_dims=True).to(tl.float64)
        inner = tl.sum((part > 0).to(tl.int32), 1, keep_dims=True).to(tl.float64)
        over = (full - wanted) + total(part / unit) * unit.to(tl.float64)
        low = tl.where(over >= 0, d, low)
        high = tl.where(over <= 0, d, high)
        to = d + over / tl.maximum(inner, 1.0)
        to = tl.where((inner > 0) & (to > low) & (to < high), to, 0.5 * (low + high))
        done = done | (tl.abs(over).to(tl.float32) <= close)
        d = tl.where(done, d, to)
        i += 1
    most, rest = parts(d)
    p = tl.minimum(tl.maximum((near - most) - rest, 0.0), 1.0)
    p = tl.where(whole, tl.where(allowed & (b > 0), 1.0, 0.0), p)
    p = tl.where(bad | (done == 0), float("nan"), p)
    at = tl.arange(0, B)[None, :]
    tl.store(P + rows * n + at, p.to(P.dtype.element_ty), mask=(rows < count) & (at < n))


@triton.jit
def budget_backward(P, G, Dx, Dbudget, stride_g, count, n, NEED: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
                    ONE: tl.constexpr):  # fmt: skip
    """Only entries strictly between 0 and 1 move: dx = g - mean g over them, d budget = that mean."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    at = tl.arange(0, B)[None, :]
    inside = (rows < count) & (at < n)
    p = tl.load(P + rows * n + at, mask=inside, other=0.0).to(tl.float32)
    on = (p > 0) & (p < 1.0)
    g = tl.load(G + rows * stride_g + at, mask=inside & on, other=0.0).to(tl.float32)
    bad = tl.max((p != p).to(tl.int32), 1, keep_dims=True) > 0
    mean = tl.sum(g, 1, keep_dims=True) / tl.maximum(tl.sum(on.to(tl.float32), 1, keep_dims=True), 1.0)
    dx = tl.where(bad, float("nan"), tl.where(on, g - mean, 0.0))
    tl.store(Dx + rows * n + at, dx.to(Dx.dtype.element_ty), mask=inside)
    if NEED:
        tl.store(Dbudget + rows, tl.where(bad, float("nan"), mean).to(tl.float64), mask=rows < count)


@triton.jit
def quantile(x, top, dead, rate):
    """(q, low, high, part, size): the quantile q = low + part (high - low) of what is allowed, below the maximum."""
    keys = keys_of(x)
    size = tl.sum((x > float("-inf")).to(tl.int32), 1, keep_dims=True)
    size = tl.where(dead, 1, size)
    at = tl.where(dead, 0.0, rate) * (size - 1).to(tl.float64)
    first = at.to(tl.int32)
    part = at - first.to(tl.float64)
    key = place(keys, size - first)
    above = keys > key
    next = tl.min(tl.where(above, keys, 2147483647), 1, keep_dims=True)
    follows = (size - tl.sum(above.to(tl.int32), 1, keep_dims=True) == first + 1) & (first + 1 < size)
    low = tl.maximum(score_of(key) - top, LOWEST)
    high = tl.maximum(score_of(tl.where(follows, next, key)) - top, LOWEST)
    low = tl.where(dead, 0.0, low)
    high = tl.where(dead, 0.0, high)
    q = low.to(tl.float64) + part * (high.to(tl.float64) - low.to(tl.float64))
    return q, low, high, part, size


@triton.jit
def weights(z, live, q):
    """(1 + z/t)_+ e^z with t = -q, and where that is above 0."""
    most, rest = parts(q)
    above = (z - most) - rest
    on = live & (above > 0)
    return tl.where(on, above / tl.maximum(-most, 1e-37) * exp(z), 0.0), on


@triton.jit
def rsoftmax(X, Rate, P, stride, stride_r, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """Weights (1 + z/t)_+ e^z over their sum; t = 0 is uniform over the maxima."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    rate = tl.load(Rate + rows * stride_r, mask=rows < count, other=0.5).to(tl.float64)
    bad = bad | (rate < 0) | (rate > 1) | (rate != rate)
    dead = bad | (top == float("-inf"))
    z, live = relative(x, top)
    q, low, high, part, size = quantile(x, top, dead, rate)
    flat = q >= 0
    w, on = weights(z, live, q)
    w = tl.where(flat, (live & (z == 0)).to(tl.float32), w)
    some = tl.sum(w, 1, keep_dims=True)
    p = w / tl.where(some > 0, some, 1.0)
    f = total(p).to(tl.float32)  # the sum was rounded: once more, from a sum near 1
    p = p / tl.where(f > 0, f, 1.0)
    at = tl.arange(0, B)[None, :]
    p = tl.where(bad, float("nan"), p)
    tl.store(P + rows * n + at, p.to(P.dtype.element_ty), mask=(rows < count) & (at < n))


@triton.jit
def first_of(condition, B: tl.constexpr):
    """True at the first column where the condition holds."""
    at = tl.arange(0, B)[None, :]
    return at == tl.min(tl.where(condition, at, B), 1, keep_dims=True)


@triton.jit
def rsoftmax_backward(X, G, Rate, Dx, Drate, stride, stride_g, stride_r, count, n, NEED: tl.constexpr,
                      R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """With c = 1/(z - q) on the support and gbar = <p, g>: dx = p (g - gbar)(1 + c), dq = -sum p (g - gbar) c, and dq
    goes to the two scores that q lies between; of equal ones to the first."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    at = tl.arange(0, B)[None, :]
    inside = (rows < count) & (at < n)
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    rate = tl.load(Rate + rows * stride_r, mask=rows < count, other=0.5).to(tl.float64)
    bad = bad | (rate < 0) | (rate > 1) | (rate != rate)
    dead = bad | (top == float("-inf"))
    z, live = relative(x, top)
    q, low, high, part, size = quantile(x, top, dead, rate)
    w, on = weights(z, live, q)
    on = on & (q < 0)
    w = tl.where(on, w, 0.0)
    some = tl.sum(w, 1, keep_dims=True)
    some = tl.where(some > 0, some, 1.0)
    g = tl.load(G + rows * stride_g + at, mask=inside & on, other=0.0).to(tl.float32)
    p = w / some
    slope = tl.where(on, exp(z) / tl.maximum(-q.to(tl.float32), 1e-37) / some, 0.0)
    h = tl.where(on, g - tl.sum(p * g, 1, keep_dims=True), 0.0)
    dx = h * (p + slope)
    by_q = -tl.sum(h * slope, 1, keep_dims=True)
    dx += tl.where(first_of(live & (z == low), B), (1.0 - part).to(tl.float32) * by_q, 0.0)
    dx += tl.where(first_of(live & (z == high), B), part.to(tl.float32) * by_q, 0.0)
    dx = tl.where(bad, float("nan"), dx)
    tl.store(Dx + rows * n + at, dx.to(Dx.dtype.element_ty), mask=inside)
    if NEED:
        change = by_q.to(tl.float64) * (high.to(tl.float64) - low.to(tl.float64)) * (size - 1).to(tl.float64)
        tl.store(Drate + rows, tl.where(bad, float("nan"), change), mask=rows < count)
