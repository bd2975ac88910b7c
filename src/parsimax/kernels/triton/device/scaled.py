"""Mappings that bend the scores and come down to softmax or sparsemax: t-softmax, sigsoftmax, sparsegen,
sparsehourglass. Rows are held on chip."""

import triton
import triton.language as tl

from .entmax import curve, load, peak, relative, root_fixed
from .numbers import any_of, exp, log, total
from .order import weights
from .steps import SPARSEMAX


@triton.jit
def put(p, bad, P, rows, count, n, B: tl.constexpr):
    at = tl.arange(0, B)[None, :]
    p = tl.where(bad, float("nan"), p)
    tl.store(P + rows * n + at, p.to(P.dtype.element_ty), mask=(rows < count) & (at < n))


@triton.jit
def shares(w):
    """Weights over their sum, which is rounded: once more, from a sum near 1."""
    some = tl.sum(w, 1, keep_dims=True)
    p = w / tl.where(some > 0, some, 1.0)
    f = total(p).to(tl.float32)
    return p / tl.where(f > 0, f, 1.0)


@triton.jit
def cut_weights(z, live, t):
    """(1 + z/t)_+ e^z, where that is above 0, and 1/t; t may be infinite."""
    whole = t == float("inf")
    w, on = weights(z, live, -tl.where(whole, 1.0, t))
    w = tl.where(whole, tl.where(live, exp(z), 0.0), w)
    inverse = tl.where(whole, 0.0, 1.0 / tl.maximum(t, 1e-37)).to(tl.float32)
    return w, tl.where(whole, live, on), inverse


@triton.jit
def tsoftmax(X, T, P, stride, stride_t, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    t = tl.load(T + rows * stride_t, mask=rows < count, other=1.0).to(tl.float64)
    bad = bad | (t <= 0) | (t != t)
    z, live = relative(x, top)
    w, on, slope = cut_weights(z, live, tl.where(bad, 1.0, t))
    put(shares(w), bad, P, rows, count, n, B)


@triton.jit
def tsoftmax_backward(X, G, T, Dx, Dt, stride, stride_g, stride_t, count, n, NEED: tl.constexpr, R: tl.constexpr,
                      B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """With h = g - <p, g> and v = e^z/t over the sum of weights: dz = h (p + v), and the maximum, of which each of
    several has its share, moves all; dt = -sum h v z/t."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    at = tl.arange(0, B)[None, :]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    t = tl.load(T + rows * stride_t, mask=rows < count, other=1.0).to(tl.float64)
    bad = bad | (t <= 0) | (t != t)
    z, live = relative(x, top)
    w, on, inverse = cut_weights(z, live, tl.where(bad, 1.0, t))
    some = tl.sum(w, 1, keep_dims=True)
    some = tl.where(some > 0, some, 1.0)
    g = tl.load(G + rows * stride_g + at, mask=(rows < count) & (at < n) & on, other=0.0).to(tl.float32)
    p = w / some
    v = tl.where(on, exp(z) * inverse / some, 0.0)
    h = tl.where(on, g - tl.sum(p * g, 1, keep_dims=True), 0.0)
    first = (live & (z == 0)).to(tl.float32)
    several = tl.maximum(tl.sum(first, 1, keep_dims=True), 1.0)
    dx = h * (p + v) - first * (tl.sum(h * v, 1, keep_dims=True) / several)
    put(dx, bad, Dx, rows, count, n, B)
    if NEED:
        change = -tl.sum(h * v * z, 1, keep_dims=True) * inverse
        tl.store(Dt + rows, tl.where(bad, float("nan"), change).to(tl.float64), mask=rows < count)


@triton.jit
def bent(x):
    """x + log σ(x)."""
    x = tl.where(x > float("-inf"), x, 0.0)
    away = exp(-tl.abs(x))
    near = away < 1e-4
    rest = tl.where(near, away * (1.0 - 0.5 * away), log(1.0 + tl.where(near, 0.0, away)))
    return x + (tl.minimum(x, 0.0) - rest)


@triton.jit
def bent_shares(X, x, rows, stride, count, n, B: tl.constexpr, ONE: tl.constexpr):
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    y = tl.where((x > float("-inf")) & (bad == 0), bent(x), float("-inf"))
    z, live = relative(y, tl.max(y, 1, keep_dims=True))
    return shares(tl.where(live, exp(z), 0.0)), live, bad


@triton.jit
def sigsoftmax(X, P, stride, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    p, live, bad = bent_shares(X, load(X, rows, stride, 0, count, n, B), rows, stride, count, n, B, ONE)
    put(p, bad, P, rows, count, n, B)


@triton.jit
def sigsoftmax_backward(X, G, Dx, stride, stride_g, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """dx = p (g - <p, g>) (1 + σ(-x))."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    at = tl.arange(0, B)[None, :]
    x = load(X, rows, stride, 0, count, n, B)
    p, live, bad = bent_shares(X, x, rows, stride, count, n, B, ONE)
    g = tl.load(G + rows * stride_g + at, mask=(rows < count) & (at < n) & live, other=0.0).to(tl.float32)
    up = exp(-tl.abs(x))
    sigma = tl.where(x > 0, up, 1.0) / (1.0 + up)
    dx = tl.where(live, p * (g - tl.sum(p * g, 1, keep_dims=True)) * (1.0 + sigma), 0.0)
    put(dx, bad, Dx, rows, count, n, B)


@triton.jit
def projected(X, x, top, factor, bad, rows, stride, count, n, B: tl.constexpr, ONE: tl.constexpr):
    """sparsemax of ``factor`` times the scores; and where that has no proof."""
    z, live = relative(x, top)
    y = tl.where(live, tl.maximum(factor * z, -3e38), float("-inf"))
    zero = tl.where(bad, 0.0, 0.0)
    dead = bad | (top == float("-inf"))
    E, proved, bits = root_fixed(X, y, rows, stride, count, n, zero, dead, zero, SPARSEMAX, B, ONE)
    p, u = curve(tl.where(live, y, 0.0), live, E, E, zero, SPARSEMAX)
    return p, bad | (proved == 0)


@triton.jit
def sparsegen(X, Lam, P, stride, stride_l, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    lam = tl.load(Lam + rows * stride_l, mask=rows < count, other=0.0).to(tl.float64)
    bad = bad | (lam >= 1) | (lam != lam) | (lam == float("-inf"))
    factor = (1.0 / tl.where(bad, 1.0, 1.0 - lam)).to(tl.float32)
    p, bad = projected(X, x, top, factor, bad, rows, stride, count, n, B, ONE)
    put(p, bad, P, rows, count, n, B)


@triton.jit
def centred(P, G, rows, stride_g, count, n, B: tl.constexpr):
    """(p, g minus its mean over the support, where p is NaN)."""
    at = tl.arange(0, B)[None, :]
    inside = (rows < count) & (at < n)
    p = tl.load(P + rows * n + at, mask=inside, other=0.0).to(tl.float32)
    on = p > 0
    g = tl.load(G + rows * stride_g + at, mask=inside & on, other=0.0).to(tl.float32)
    size = tl.maximum(tl.sum(on.to(tl.float32), 1, keep_dims=True), 1.0)
    h = tl.where(on, g - tl.sum(g, 1, keep_dims=True) / size, 0.0)
    return p, h, any_of(p != p)


@triton.jit
def sparsegen_backward(P, G, Lam, Dx, Dlam, stride_g, stride_l, count, n, NEED: tl.constexpr, R: tl.constexpr,
                       B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """dx = h / (1 - λ), h = g - its mean over the support; dλ = sum dx p."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    p, h, bad = centred(P, G, rows, stride_g, count, n, B)
    lam = tl.load(Lam + rows * stride_l, mask=rows < count, other=0.0).to(tl.float64)
    dx = h * (1.0 / tl.where(bad, 1.0, 1.0 - lam)).to(tl.float32)
    put(dx, bad, Dx, rows, count, n, B)
    if NEED:
        change = tl.sum(dx * tl.where(bad, 0.0, p), 1, keep_dims=True)
        tl.store(Dlam + rows, tl.where(bad, float("nan"), change).to(tl.float64), mask=rows < count)


@triton.jit
def hourglass_scale(x, bad, q):
    """(a, the sum S, |S| + Kq, K): a = (1 + Kq) / (|S| + Kq) over the K allowed scores."""
    live = (x > float("-inf")) & (bad == 0)
    x = tl.where(live, x, 0.0)
    K = tl.sum(live.to(tl.float32), 1, keep_dims=True)
    # In parts as in numbers.total: multiples of 2^-22 of a power of 2 that no partial sum reaches, and rests of rests.
    reach = tl.maximum(tl.max(tl.abs(x), 1, keep_dims=True) * tl.maximum(K, 1.0), 1e-30)
    unit = tl.exp2(tl.ceil(tl.log2(tl.minimum(reach, 1e37))))
    y = x / unit
    most = (y + 3.0) - 3.0
    S = total(y - most) + tl.sum(most, 1, keep_dims=True).to(tl.float64)
    S = S * unit.to(tl.float64)
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
    a, S, below, K = hourglass_scale(x, bad, tl.where(bad, 1.0, q))
    p, bad = projected(X, x, top, a.to(tl.float32), bad, rows, stride, count, n, B, ONE)
    put(p, bad, P, rows, count, n, B)


@triton.jit
def hourglass_backward(X, P, G, Q, Dx, Dq, stride, stride_g, stride_q, count, n, NEED: tl.constexpr, R: tl.constexpr,
                       B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """With h = g - its mean over the support and da = sum h (x - max): dx = a h - da a sign(S)/(|S| + Kq) for every
    allowed score, dq = da K (|S| - 1)/(|S| + Kq)^2."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, broken = peak(X, x, rows, stride, count, n, B, ONE)
    p, h, bad = centred(P, G, rows, stride_g, count, n, B)
    bad = bad | broken
    q = tl.load(Q + rows * stride_q, mask=rows < count, other=1.0).to(tl.float64)
    a, S, below, K = hourglass_scale(x, bad, tl.where(bad, 1.0, q))
    z, live = relative(x, top)
    da = tl.sum(h * z, 1, keep_dims=True).to(tl.float64)
    sign = tl.where(S > 0, 1.0, tl.where(S < 0, -1.0, 0.0))
    shift = (da * a * sign / below).to(tl.float32)
    dx = tl.where(live, a.to(tl.float32) * h - shift, 0.0)
    put(dx, bad, Dx, rows, count, n, B)
    if NEED:
        change = da * K.to(tl.float64) * (tl.abs(S) - 1.0) / (below * below)
        tl.store(Dq + rows, tl.where(bad, float("nan"), change), mask=rows < count)
