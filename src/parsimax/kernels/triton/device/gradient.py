"""Rows of the backward pass of entmax.

With s = p^(2-α) on the support, dx = s (g - <s, g>/sum s). By α: at a fixed threshold log p moves so that dp = s ρ,
ρ = -L^2 G(t), G(t) = (1 - e^t + t e^t)/t^2, L = log p, t = (α-1) L; with the threshold dp = s (ρ - mean of ρ under s),
so that dα = sum dx (ρ - mean): no difference of large sums in flat rows.

From p as the forward pass has stored it; or, where α is learned, from the scores and (E, w), since in a nearly dense
row the rounding of p shows in dα. There L = w + δ with a small δ, and ρ is taken from its value at w on, which the mean
takes away again: -e^(bw) (w (e^(bδ) - 1)/b + δ^2 G(bδ)), without a difference.
"""

import triton
import triton.language as tl

from .entmax import load, logarithm, peak, relative
from .numbers import LN2, exp, expm1_over, log, moved_by_alpha
from .steps import ANY, ENTMAX15, SOFTMAX, SPARSEMAX


@triton.jit
def weight_of(p, b, KIND: tl.constexpr):
    """(s, log p) on the support, NaN where p is NaN; 0 elsewhere."""
    on = p > 0
    some = tl.where(on, p, 1.0)
    l = tl.where(on, 0.0, 0.0)
    if KIND == ANY:
        l = tl.log2(some) * LN2
        s = tl.exp2(tl.minimum((1.0 - b) * tl.log2(some), 120.0))
    elif KIND == ENTMAX15:
        s = tl.sqrt(some)
    elif KIND == SPARSEMAX:
        s = tl.where(on, 1.0, 1.0)
    elif KIND == SOFTMAX:
        s = some
    else:
        s = tl.where(on, 0.0, 0.0)
    return tl.where(on, s, tl.where(p == p, 0.0, p)), l


@triton.jit
def from_scores(x, top, E, w, b, scale):
    """(s, ρ) again from the scores; ``scale`` is the logarithm of what p has to be divided by."""
    z, live = relative(x, top)
    log_r, y, on = logarithm(z, live & (E > 0), E, b)
    w = w.to(tl.float32) - scale
    b = b.to(tl.float32)
    s = exp(tl.minimum((1.0 - b) * (log_r + w), 83.0))
    rho = -exp(b * w) * (w * expm1_over(log_r, b) + log_r * log_r * moved_by_alpha(b * log_r))
    return tl.where(on, s, 0.0), tl.where(on, rho, 0.0)


@triton.jit
def sum_again(x, top, E, w, b):
    z, live = relative(x, top)
    log_r, y, on = logarithm(z, live & (E > 0), E, b)
    return tl.where(on, exp(log_r + w.to(tl.float32)), 0.0)


@triton.jit
def tile(X, G, top, E, w, b, scale, rows, stride_g, start, count, n, KIND: tl.constexpr, BY_ALPHA: tl.constexpr,
         SCORES: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """(s, g, ρ) of a tile; g and ρ are 0 outside the support."""
    at = start + tl.arange(0, B)[None, :]
    inside = (rows < count) & (at < n)
    if SCORES:
        x = tl.load(X + rows * n + at, mask=inside, other=float("-inf")).to(tl.float32)
        s, rho = from_scores(x, top, E, w, b, scale)
    else:
        p = tl.load(X + rows * n + at, mask=inside, other=0.0).to(tl.float32)
        s, l = weight_of(p, b.to(tl.float32), KIND)
        rho = l
        if BY_ALPHA:
            rho = -l * l * moved_by_alpha(b.to(tl.float32) * l)
    g = tl.load(G + rows * stride_g + at, mask=inside & (s != 0), other=0.0).to(tl.float32)
    return s, g, rho


@triton.jit
def backward(X, G, Alpha, State, Dx, Dalpha, stride_g, stride_a, count, n, KIND: tl.constexpr, BY_ALPHA: tl.constexpr,
             SCORES: tl.constexpr, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """X is p, or the scores if SCORES; α infinite or outside has s = 0, and NaN in p says the rest."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    E = tl.where(rows < count, 1.0, 1.0).to(tl.float64)
    b, w, top, scale = E, E, E.to(tl.float32), E.to(tl.float32)
    hard = rows < 0
    nan = rows < 0
    if KIND == ANY:
        alpha = tl.load(Alpha + rows * stride_a, mask=rows < count, other=1.5).to(tl.float64)
        hard = alpha == float("inf")
        b = tl.where(hard | (alpha != alpha), 0.5, alpha - 1.0)
    if SCORES:
        x = load(X, rows, n, 0, count, n, B)
        top, bad = peak(X, x, rows, n, count, n, B, ONE)
        E = tl.load(State + 2 * rows, mask=rows < count, other=0.0)
        w = tl.load(State + 2 * rows + 1, mask=rows < count, other=0.0)
        nan = (E != E) | bad
        E = tl.where(nan, 0.0, E)
        if ONE:
            f = tl.sum(sum_again(x, top, E, w, b), 1, keep_dims=True)
        else:
            fs = tl.zeros([1, B], tl.float32)
            for start in range(0, n, B):
                fs += sum_again(load(X, rows, n, start, count, n, B), top, E, w, b)
            f = tl.sum(fs, 1, keep_dims=True)
        scale = log(tl.where(f > 0, f, 1.0))
    if ONE:
        s, g, rho = tile(X, G, top, E, w, b, scale, rows, stride_g, 0, count, n, KIND, BY_ALPHA, SCORES, B)
        s = tl.where(hard, 0.0, s)
        all = tl.sum(s, 1, keep_dims=True)
        all = tl.where(all == 0, 1.0, all)
        mean = tl.sum(s * g, 1, keep_dims=True) / all
        middle = tl.sum(s * rho, 1, keep_dims=True) / all
        dx = s * (g - mean)
        change = tl.sum(dx * (rho - middle), 1, keep_dims=True)
        at = tl.arange(0, B)[None, :]
        dx = tl.where(nan, float("nan"), dx)
        tl.store(Dx + rows * n + at, dx.to(Dx.dtype.element_ty), mask=(rows < count) & (at < n))
    else:
        ss = tl.zeros([1, B], tl.float32)
        sg = tl.zeros([1, B], tl.float32)
        sr = tl.zeros([1, B], tl.float32)
        for start in range(0, n, B):
            s, g, rho = tile(X, G, top, E, w, b, scale, rows, stride_g, start, count, n, KIND, BY_ALPHA, SCORES, B)
            s = tl.where(hard, 0.0, s)
            ss += s
            sg += s * g
            sr += s * rho
        all = tl.sum(ss, 1, keep_dims=True)
        all = tl.where(all == 0, 1.0, all)
        mean = tl.sum(sg, 1, keep_dims=True) / all
        middle = tl.sum(sr, 1, keep_dims=True) / all
        by = tl.zeros([1, B], tl.float32)
        for start in range(0, n, B):
            s, g, rho = tile(X, G, top, E, w, b, scale, rows, stride_g, start, count, n, KIND, BY_ALPHA, SCORES, B)
            dx = tl.where(hard, 0.0, s) * (g - mean)
            by += dx * (rho - middle)
            at = start + tl.arange(0, B)[None, :]
            dx = tl.where(nan, float("nan"), dx)
            tl.store(Dx + rows * n + at, dx.to(Dx.dtype.element_ty), mask=(rows < count) & (at < n))
        change = tl.sum(by, 1, keep_dims=True)
    if BY_ALPHA:
        tl.store(Dalpha + rows, tl.where(nan, float("nan"), change).to(tl.float64), mask=rows < count)
