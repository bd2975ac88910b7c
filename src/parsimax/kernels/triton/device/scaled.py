"""Mappings that bend the scores and come down to softmax or sparsemax: t-softmax, sigsoftmax, sparsegen,
sparsehourglass."""

import triton
import triton.language as tl

from .entmax import curve, load, marked, peak, relative
from .numbers import LOWEST, any_of, exp
from .shares import BENT, CUT, incoming, means, moved, put, tile, weight_of, write
from .steps import MOST, SPARSEMAX, advance_fixed


@triton.jit
def cut_of(T, rows, stride, count):
    """q = -t, -1 where t is outside; and where that is."""
    t = tl.load(T + rows * stride, mask=rows < count, other=1.0).to(tl.float64)
    outside = (t <= 0) | (t != t)
    return -tl.where(outside, 1.0, t), outside


@triton.jit
def tsoftmax(X, T, P, stride, stride_t, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    q, outside = cut_of(T, rows, stride_t, count)
    write(X, x, P, top, q, bad | outside, rows, stride, count, n, CUT, R, B, ONE)


@triton.jit
def tsoftmax_backward(X, G, T, Dx, Dt, stride, stride_g, stride_t, count, n, NEED: tl.constexpr, R: tl.constexpr,
                      B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """With h and v of ``moved``: dz = h (p + v), and the maximum, of which each of several has its share, moves all;
    dt = -sum h v z/t."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    q, outside = cut_of(T, rows, stride_t, count)
    bad = bad | outside
    some, mean = means(X, x, G, top, q, rows, stride, stride_g, count, n, CUT, R, B, ONE)
    shift = tl.zeros([R, B], tl.float32)
    slope = tl.zeros([R, B], tl.float32)
    maxima = tl.zeros([R, B], tl.float32)
    for start in range(0, B if ONE else n, B):
        own = tile(X, x, rows, stride, start, count, n, B, ONE)
        dx, hv, z, live = moved(own, G, top, q, some, mean, rows, stride_g, start, count, n, B)
        shift += hv
        slope += hv * z
        maxima += (live & (z == 0)).to(tl.float32)
    several = tl.maximum(tl.sum(maxima, 1, keep_dims=True), 1.0)
    shift = tl.sum(shift, 1, keep_dims=True) / several
    for start in range(0, B if ONE else n, B):
        own = tile(X, x, rows, stride, start, count, n, B, ONE)
        dx, hv, z, live = moved(own, G, top, q, some, mean, rows, stride_g, start, count, n, B)
        put(dx - tl.where(live & (z == 0), shift, 0.0), bad, Dx, rows, start, count, n, B)
    if NEED:
        change = tl.sum(slope, 1, keep_dims=True) / q.to(tl.float32)
        tl.store(Dt + rows, tl.where(bad, float("nan"), change).to(tl.float64), mask=rows < count)


@triton.jit
def sigsoftmax(X, P, stride, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    write(X, x, P, top, top, bad, rows, stride, count, n, BENT, R, B, ONE)


@triton.jit
def sigsoftmax_backward(X, G, Dx, stride, stride_g, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """dx = p (g - <p, g>) (1 + σ(-x))."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    some, mean = means(X, x, G, top, top, rows, stride, stride_g, count, n, BENT, R, B, ONE)
    for start in range(0, B if ONE else n, B):
        own = tile(X, x, rows, stride, start, count, n, B, ONE)
        w, on, z = weight_of(own, top, top, BENT)
        up = exp(-tl.abs(own))
        sigma = tl.where(own > 0, up, 1.0) / (1.0 + up)
        g = incoming(G, on, rows, stride_g, start, count, n, B)
        put(tl.where(on, w / some * (g - mean) * (1.0 + sigma), 0.0), bad, Dx, rows, start, count, n, B)


@triton.jit
def stretched(x, top, factor):
    """``factor`` times z, and where it is allowed."""
    z, live = relative(x, top)
    return tl.where(live, tl.maximum(factor * z, LOWEST), 0.0), live


@triton.jit
def project(X, x, P, top, factor, bad, rows, stride, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """sparsemax of ``factor`` times the scores, NaN without a proof: the search of entmax.py."""
    E = tl.where(bad, 1.0, 1.0).to(tl.float64)
    bits = tl.where(bad, 0, 0).to(tl.int64)
    done = bad | (top == float("-inf"))
    i = 0
    while (tl.min(done.to(tl.int32)) == 0) & (i < MOST):
        whole = tl.zeros([R, B], tl.float32)
        rest = tl.zeros([R, B], tl.float32)
        size = tl.zeros([R, B], tl.float32)
        for start in range(0, B if ONE else n, B):
            if ONE | (i == 0) | marked(bits, start, n, B):
                z, live = stretched(tile(X, x, rows, stride, start, count, n, B, ONE), top, factor)
                p, u = curve(z, live, E, E, E, SPARSEMAX)
                cut = (p + 3.0) - 3.0  # as in numbers.total
                whole += cut
                rest += p - cut
                size += u
                if not ONE:
                    mark = tl.full([1, 1], 1, tl.int64) << (start // B // tl.cdiv(n, 64 * B)).to(tl.int64)
                    bits = bits | tl.where(any_of(p > 0), mark, 0)
        f = tl.sum(whole, 1, keep_dims=True).to(tl.float64) + tl.sum(rest, 1, keep_dims=True).to(tl.float64)
        E, done = advance_fixed(f, tl.sum(size, 1, keep_dims=True), E, done, SPARSEMAX)
        i += 1
    for start in range(0, B if ONE else n, B):
        z, live = stretched(tile(X, x, rows, stride, start, count, n, B, ONE), top, factor)
        p, u = curve(z, live, E, E, E, SPARSEMAX)
        put(p, bad | (done == 0), P, rows, start, count, n, B)


@triton.jit
def sparsegen(X, Lam, P, stride, stride_l, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    lam = tl.load(Lam + rows * stride_l, mask=rows < count, other=0.0).to(tl.float64)
    bad = bad | (lam >= 1) | (lam != lam) | (lam == float("-inf"))
    factor = (1.0 / tl.where(bad, 1.0, 1.0 - lam)).to(tl.float32)
    project(X, x, P, top, factor, bad, rows, stride, count, n, R, B, ONE)


@triton.jit
def support_of(P, G, rows, stride_g, start, count, n, B: tl.constexpr):
    """(p, where it is above 0, g there) of a tile."""
    at = start + tl.arange(0, B)[None, :]
    p = tl.load(P + rows * n + at, mask=(rows < count) & (at < n), other=0.0).to(tl.float32)
    return p, p > 0, incoming(G, p > 0, rows, stride_g, start, count, n, B)


@triton.jit
def centre(P, G, rows, stride_g, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """(the mean of g over the support, where p is NaN)."""
    all = tl.zeros([R, B], tl.float32)
    size = tl.zeros([R, B], tl.float32)
    nans = tl.zeros([R, B], tl.int32)
    for start in range(0, B if ONE else n, B):
        p, on, g = support_of(P, G, rows, stride_g, start, count, n, B)
        all += g
        size += on.to(tl.float32)
        nans = nans | (p != p).to(tl.int32)
    mean = tl.sum(all, 1, keep_dims=True) / tl.maximum(tl.sum(size, 1, keep_dims=True), 1.0)
    return mean, any_of(nans > 0)


@triton.jit
def sparsegen_backward(P, G, Lam, Dx, Dlam, stride_g, stride_l, count, n, NEED: tl.constexpr, R: tl.constexpr,
                       B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """dx = h / (1 - λ), h = g - its mean over the support; dλ = sum dx p."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    mean, bad = centre(P, G, rows, stride_g, count, n, R, B, ONE)
    lam = tl.load(Lam + rows * stride_l, mask=rows < count, other=0.0).to(tl.float64)
    factor = (1.0 / tl.where(bad, 1.0, 1.0 - lam)).to(tl.float32)
    change = tl.zeros([R, B], tl.float32)
    for start in range(0, B if ONE else n, B):
        p, on, g = support_of(P, G, rows, stride_g, start, count, n, B)
        dx = tl.where(on, (g - mean) * factor, 0.0)
        change += dx * tl.where(on, p, 0.0)
        put(dx, bad, Dx, rows, start, count, n, B)
    if NEED:
        change = tl.sum(change, 1, keep_dims=True)
        tl.store(Dlam + rows, tl.where(bad, float("nan"), change).to(tl.float64), mask=rows < count)


@triton.jit
def hourglass_scale(X, x, bad, q, rows, stride, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """(a, the sum S, |S| + Kq, K): a = (1 + Kq) / (|S| + Kq) over the K allowed scores. S may be a small difference of
    large numbers, so it is summed in float64, one operation a score."""
    all = tl.zeros([R, B], tl.float64)
    size = tl.zeros([R, B], tl.int32)
    for start in range(0, B if ONE else n, B):
        own = tile(X, x, rows, stride, start, count, n, B, ONE)
        live = (own > float("-inf")) & (bad == 0)
        all += tl.where(live, own, 0.0).to(tl.float64)
        size += live.to(tl.int32)
    S = tl.sum(all, 1, keep_dims=True)
    K = tl.sum(size, 1, keep_dims=True).to(tl.float32)
    Kq = K.to(tl.float64) * q
    below = tl.where(K > 0, tl.abs(S) + Kq, 1.0)
    return (1.0 + Kq) / below, S, below, K


@triton.jit
def hourglass(X, Q, P, stride, stride_q, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    q = tl.load(Q + rows * stride_q, mask=rows < count, other=1.0).to(tl.float64)
    bad = bad | (q <= 0) | (q != q) | (q == float("inf"))
    a, S, below, K = hourglass_scale(X, x, bad, tl.where(bad, 1.0, q), rows, stride, count, n, R, B, ONE)
    project(X, x, P, top, a.to(tl.float32), bad, rows, stride, count, n, R, B, ONE)


@triton.jit
def hourglass_backward(X, P, G, Q, Dx, Dq, stride, stride_g, stride_q, count, n, NEED: tl.constexpr, R: tl.constexpr,
                       B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """With h = g - its mean over the support and da = sum h (x - max): dx = a h - da a sign(S)/(|S| + Kq) for every
    allowed score, dq = da K (|S| - 1)/(|S| + Kq)^2."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, broken = peak(X, x, rows, stride, count, n, B, ONE)
    mean, bad = centre(P, G, rows, stride_g, count, n, R, B, ONE)
    bad = bad | broken
    q = tl.load(Q + rows * stride_q, mask=rows < count, other=1.0).to(tl.float64)
    a, S, below, K = hourglass_scale(X, x, bad, tl.where(bad, 1.0, q), rows, stride, count, n, R, B, ONE)
    along = tl.zeros([R, B], tl.float32)
    for start in range(0, B if ONE else n, B):
        z, live = relative(tile(X, x, rows, stride, start, count, n, B, ONE), top)
        p, on, g = support_of(P, G, rows, stride_g, start, count, n, B)
        along += tl.where(on, (g - mean) * z, 0.0)
    da = tl.sum(along, 1, keep_dims=True).to(tl.float64)
    sign = tl.where(S > 0, 1.0, tl.where(S < 0, -1.0, 0.0))
    shift = (da * a * sign / below).to(tl.float32)
    for start in range(0, B if ONE else n, B):
        z, live = relative(tile(X, x, rows, stride, start, count, n, B, ONE), top)
        p, on, g = support_of(P, G, rows, stride_g, start, count, n, B)
        dx = a.to(tl.float32) * tl.where(on, g - mean, 0.0)
        put(tl.where(live, dx - shift, 0.0), bad, Dx, rows, start, count, n, B)
    if NEED:
        change = da * K.to(tl.float64) * (tl.abs(S) - 1.0) / (below * below)
        tl.store(Dq + rows, tl.where(bad, float("nan"), change), mask=rows < count)
