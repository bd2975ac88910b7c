"""Rows of entmax: the threshold, the probabilities, the gradients.

A row in z = score - maximum has p_i = [b z_i + E]_+^(1/b), b = α - 1, with one unknown: E, which is p_max^b.

KIND says which α, known when the kernel is compiled where it can be:

    SPARSEMAX, ENTMAX15   E is p_max and its root; p is (z + E) and (z/2 + E)^2
    ANY                   α is read from memory, one number or one per row; any in [0, ∞]
    SOFTMAX, ARGMAX       nothing to search

ANY is written as p = e^w r, r = [1 + K z]_+^(1/b), K = b/E, w = log p_max, which stays well scaled through α = 1, where
r = e^z. E is float64, taken as two float32, since near the threshold 1 + K z is a small difference, and a million equal
scores may lie there; w may be rounded, as all probabilities are divided by their sum in the end. That alone would prove
nothing: the search ends when the sum for (w, E) is 1. If it is off by a factor e^ρ, no probability is off by more than
|ρ|, and for α <= 2 by more than p_max |ρ| (docs/gpu.md).

For 0 <= α <= 2 Newton from E = 1, where the largest entry alone gives 1, never passes the root, so what is not in the
support at the first step never is: long rows look at such tiles no more. Above 2 the search is bracketed, and ends
between two neighbouring float64 if it must: there an entry may jump from 0, and the answer lies between.
A row that a search leaves without a proof is NaN.
"""

import triton
import triton.language as tl

from .numbers import LN2, LOWEST, any_of, exp, log, parts, total
from .steps import ANY, ARGMAX, ENTMAX15, MOST, SOFTMAX, SPARSEMAX, advance_any, advance_fixed


@triton.jit
def load(X, rows, stride, start, count, n, B: tl.constexpr):
    """A tile of scores in float32, -inf outside."""
    at = start + tl.arange(0, B)[None, :]
    return tl.load(X + rows * stride + at, mask=(rows < count) & (at < n), other=float("-inf")).to(tl.float32)


@triton.jit
def relative(x, top):
    """z = x - maximum, and where it is allowed; 0 where not, and in rows without a maximum."""
    live = (x > float("-inf")) & (top > float("-inf")) & (top < float("inf"))
    return tl.where(live, tl.maximum(x - top, LOWEST), 0.0), live


@triton.jit
def marked(bits, start, n, B: tl.constexpr):
    """Whether this tile may hold support: a row has 64 marks, each for a 64th of its tiles."""
    return ((tl.max(bits) >> (start // B // tl.cdiv(n, 64 * B)).to(tl.int64)) & 1) != 0


@triton.jit
def peak(X, x, rows, stride, count, n, B: tl.constexpr, ONE: tl.constexpr):
    """The maximum of each row, and whether it holds NaN or +inf."""
    if ONE:
        top = tl.max(x, 1, keep_dims=True)
        bad = any_of(x != x)
    else:
        tops = x
        nans = (x != x).to(tl.int32)
        for start in range(B, n, B):
            more = load(X, rows, stride, start, count, n, B)
            tops = tl.maximum(tops, more)
            nans = nans | (more != more).to(tl.int32)
        top = tl.max(tops, 1, keep_dims=True)
        bad = tl.max(nans, 1, keep_dims=True) > 0
    return top, bad | (top == float("inf"))


@triton.jit
def beta_of(Alpha, rows, stride, count, KIND: tl.constexpr):
    """α - 1 in float64, harmless where α is infinite or outside; and where it is that."""
    if KIND == ANY:
        alpha = tl.load(Alpha + rows * stride, mask=rows < count, other=1.5).to(tl.float64)
        hard = alpha == float("inf")
        outside = (alpha < 0) | (alpha != alpha)
        return tl.where(hard | outside, 0.5, alpha - 1.0), hard, outside
    else:
        no = rows < 0
        return tl.where(no, 0.0, 1.0 if KIND == SPARSEMAX else 0.5).to(tl.float64), no, no


@triton.jit
def curve(z, live, E, w, b, KIND: tl.constexpr):
    """p and its slope u = p^(2-α), up to one factor a row for both."""
    if KIND == SPARSEMAX:
        high, low = parts(E)
        p = tl.where(live, tl.maximum((z + high) + low, 0.0), 0.0)
        return p, tl.where(p > 0, 1.0, 0.0)
    elif KIND == ENTMAX15:
        high, low = parts(E)
        u = tl.where(live, tl.maximum((0.5 * z + high) + low, 0.0), 0.0)
        return u * u, u
    else:
        log_r, y, on = logarithm(z, live, E, b)
        p = tl.where(on, exp(log_r) * exp(w.to(tl.float32)), 0.0)
        return p, tl.where(on, p / y, 0.0)


@triton.jit
def logarithm(z, live, E, b):
    """log r, y = 1 + K z, and whether that is above 0; 0, 1 where not."""
    K = b / E
    high, low = parts(tl.where(K > 1e37, 1e37, K))
    y = tl.where(z == 0, 1.0, tl.fma(z, high, 1.0) + z * low)
    on = live & (y > 0)
    x = z * high
    near = tl.abs(x) < 0.125
    t = tl.where(near, x, 0.0)
    series = 1.0 - t * (0.5 - t * (1.0 / 3 - t * (0.25 - t * (0.2 - t * (1.0 / 6 - t * (1.0 / 7 - t * 0.125))))))
    small = b.to(tl.float32)
    close = tl.where(near, z, 0.0) * (1.0 / E).to(tl.float32) * series
    far = tl.log2(tl.where(on & (near == 0), y, 1.0)) * (LN2 / tl.where(small == 0, 1.0, small))
    return tl.where(on, tl.where(near, close, far), 0.0), tl.where(on, y, 1.0), on


@triton.jit
def sums(
    X, x, rows, stride, count, n, top, bits, first, E, w, b, KIND: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr
):
    """The sums of p and u; at the first step of a long row also the marks of its tiles."""
    if ONE:
        z, live = relative(x, top)
        p, u = curve(z, live, E, w, b, KIND)
        return total(p), tl.sum(u, 1, keep_dims=True), bits
    else:
        whole = tl.zeros([1, B], tl.float32)
        rest = tl.zeros([1, B], tl.float32)
        us = tl.zeros([1, B], tl.float32)
        for start in range(0, n, B):
            if first | marked(bits, start, n, B):
                z, live = relative(load(X, rows, stride, start, count, n, B), top)
                p, u = curve(z, live, E, w, b, KIND)
                cut = (p + 3.0) - 3.0  # as in total()
                whole += cut
                rest += p - cut
                us += u
                mark = tl.full([1, 1], 1, tl.int64) << (start // B // tl.cdiv(n, 64 * B)).to(tl.int64)
                bits = bits | tl.where(any_of(p > 0), mark, 0)
        f = tl.sum(whole, 1, keep_dims=True).to(tl.float64) + tl.sum(rest, 1, keep_dims=True).to(tl.float64)
        return f, tl.sum(us, 1, keep_dims=True), bits


@triton.jit
def root_fixed(X, x, rows, stride, count, n, top, dead, b, KIND: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """E for α = 2 and 1.5, whether that is proved, and the marks."""
    E = tl.where(dead, 1.0, 1.0).to(tl.float64)
    bits = tl.where(dead, 0, 0).to(tl.int64)
    done = dead
    i = 0
    while (tl.min(done.to(tl.int32)) == 0) & (i < MOST):
        f, U, bits = sums(X, x, rows, stride, count, n, top, bits, i == 0, E, E, b, KIND, B, ONE)
        E, done = advance_fixed(f, U, E, done, KIND)
        i += 1
    return E, done, bits


@triton.jit
def root_any(X, x, rows, stride, count, n, top, dead, b, B: tl.constexpr, ONE: tl.constexpr):
    """(E, w, the sum there, E and w at the other end of an open bracket, the sum there, proved, marks)."""
    E = tl.where(dead, 1.0, 1.0).to(tl.float64)
    w = tl.where(dead, 0.0, 0.0).to(tl.float64)
    bits = tl.where(dead, 0, 0).to(tl.int64)
    f, high, low = E, E, E
    last = tl.where(dead, 1e30, 1e30)
    small = b.to(tl.float32)
    steep = (small > 1.0) & (dead == 0)
    least = -log(n * 1.0) - 1e-3
    if tl.max(steep.to(tl.int32)) > 0:
        low = tl.exp(tl.maximum(b * least, -690.0))
    done = dead  # by a proof, or by a bracket of neighbours
    open = dead & (dead == 0)
    i = 0
    while (tl.min(done.to(tl.int32)) == 0) & (i < MOST):
        value, U, bits = sums(X, x, rows, stride, count, n, top, bits, i == 0, E, w, b, ANY, B, ONE)
        f = tl.where(done, f, value)
        E, w, high, low, last, done, open = advance_any(value, U, E, w, b, high, low, last, done, open, dead, least, i)
        i += 1
    E_low, w_low, f_low = E, w, f
    if tl.max(open.to(tl.int32)) > 0:
        E = tl.where(open, high, E)
        w = tl.where(open, tl.log(high) / b, w)
        E_low = tl.where(open, low, E)
        w_low = tl.where(open, tl.log(low) / b, w)
        f, U, bits = sums(X, x, rows, stride, count, n, top, bits, False, E, w, b, ANY, B, ONE)
        f_low, U, bits = sums(X, x, rows, stride, count, n, top, bits, False, E_low, w_low, b, ANY, B, ONE)
    return E, w, f, E_low, w_low, f_low, done, bits


@triton.jit
def between(z, live, E, w, f, E_low, w_low, f_low, b):
    """p of an α that was read: divided by its sum, or between the ends of an open bracket."""
    p, u = curve(z, live, E, w, b, ANY)
    gap = (f_low < 1.0) & (f > 1.0) & (E_low < E)
    out = p / f.to(tl.float32)
    if tl.max(gap.to(tl.int32)) > 0:
        p_low, u = curve(z, live, E_low, w_low, b, ANY)
        share = ((f - 1.0) / tl.where(gap, f - f_low, 1.0)).to(tl.float32)
        out = tl.where(gap, p - share * (p - p_low), out)
    return out


@triton.jit
def ties(X, x, rows, stride, count, n, top, B: tl.constexpr, ONE: tl.constexpr):
    """How many entries of a row are its maximum."""
    if ONE:
        return tl.sum((x == top).to(tl.float32), 1, keep_dims=True)
    else:
        several = tl.zeros([1, B], tl.float32)
        for start in range(0, n, B):
            several += (load(X, rows, stride, start, count, n, B) == top).to(tl.float32)
        return tl.sum(several, 1, keep_dims=True)


@triton.jit
def softmax_sum(X, x, rows, stride, count, n, top, B: tl.constexpr, ONE: tl.constexpr):
    """(w, f): the logarithm of the largest p, rounded, and the sum of what that gives."""
    if ONE:
        z, live = relative(x, top)
        w = -log(tl.maximum(tl.sum(tl.where(live, exp(z), 0.0), 1, keep_dims=True), 1.0))
        return w.to(tl.float64), total(tl.where(live, exp(z) * exp(w), 0.0))
    else:
        all = tl.zeros([1, B], tl.float32)
        for start in range(0, n, B):
            z, live = relative(load(X, rows, stride, start, count, n, B), top)
            all += tl.where(live, exp(z), 0.0)
        w = -log(tl.maximum(tl.sum(all, 1, keep_dims=True), 1.0))
        whole = tl.zeros([1, B], tl.float32)
        rest = tl.zeros([1, B], tl.float32)
        for start in range(0, n, B):
            z, live = relative(load(X, rows, stride, start, count, n, B), top)
            p = tl.where(live, exp(z) * exp(w), 0.0)
            cut = (p + 3.0) - 3.0  # as in total()
            whole += cut
            rest += p - cut
        f = tl.sum(whole, 1, keep_dims=True).to(tl.float64) + tl.sum(rest, 1, keep_dims=True).to(tl.float64)
        return w.to(tl.float64), f


@triton.jit
def search(X, x, rows, stride, count, n, top, dead, hard, b, KIND: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """All that :func:`probabilities` needs: both ends of the bracket, the number of maxima, proved, and the marks."""
    equal = tl.where(dead, 1.0, 1.0)
    E = equal.to(tl.float64)
    w, f, E_low, w_low, f_low = E, E, E, E, E
    bits = tl.where(dead, -1, -1).to(tl.int64)
    proved = dead | (dead == 0)
    if KIND == ARGMAX:
        equal = ties(X, x, rows, stride, count, n, top, B, ONE)
    elif KIND == SOFTMAX:
        w, f = softmax_sum(X, x, rows, stride, count, n, top, B, ONE)
        f = tl.where(dead, 1.0, f)
    elif KIND == ANY:
        E, w, f, E_low, w_low, f_low, proved, bits = root_any(X, x, rows, stride, count, n, top, dead, b, B, ONE)
        if tl.max(hard.to(tl.int32)) > 0:
            equal = ties(X, x, rows, stride, count, n, top, B, ONE)
            bits = tl.where(hard, -1, bits)
    else:
        E, proved, bits = root_fixed(X, x, rows, stride, count, n, top, dead, b, KIND, B, ONE)
    return E, w, f, E_low, w_low, f_low, equal, proved, bits


@triton.jit
def probabilities(x, top, E, w, f, E_low, w_low, f_low, b, hard, equal, nan, KIND: tl.constexpr):
    """A tile of p, from what the search has found."""
    z, live = relative(x, top)
    if KIND == ARGMAX:
        p = tl.where(live & (z == 0), 1.0 / tl.maximum(equal, 1.0), 0.0)
    elif KIND == SOFTMAX:
        p = tl.where(live, exp(z) * exp(w.to(tl.float32)), 0.0) / f.to(tl.float32)
    elif KIND == ANY:
        p = between(z, live, E, w, f, E_low, w_low, f_low, b)
        p = tl.where(hard, tl.where(live & (z == 0), 1.0 / tl.maximum(equal, 1.0), 0.0), p)
    else:
        p, u = curve(z, live, E, w, b, KIND)
    return tl.where(nan, float("nan"), p)


@triton.jit
def put(p, P, Index, found, rows, start, count, n, cap, WRITE: tl.constexpr, R: tl.constexpr, B: tl.constexpr):
    """Store a tile of p, or the columns and p of its support behind those found before."""
    at = start + tl.arange(0, B)[None, :]
    inside = (rows < count) & (at < n)
    if WRITE == 2:
        on = ((p != 0) & inside).to(tl.int32)
        place = found + tl.cumsum(on, 1) - 1
        keep = (on > 0) & (place < cap)
        tl.store(Index + rows * cap + place, (tl.zeros([R, B], tl.int32) + at).to(tl.int64), mask=keep)
        tl.store(P + rows * cap + place, p.to(P.dtype.element_ty), mask=keep)
        found += tl.sum(on, 1, keep_dims=True)
    else:
        tl.store(P + rows * n + at, p.to(P.dtype.element_ty), mask=inside)
    return found


@triton.jit
def forward(X, Alpha, P, State, Index, Count, stride_x, stride_a, count, n, cap,
            KIND: tl.constexpr, WRITE: tl.constexpr, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """WRITE 0: p. 1: p, and (E, w) for the gradient by α. 2: the support alone: up to ``cap`` columns and p, its size.

    R rows of up to B scores a program, held on chip; or, if not ONE, one longer row, by tiles.
    """
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride_x, 0, count, n, B)
    top, bad = peak(X, x, rows, stride_x, count, n, B, ONE)
    empty = (top == float("-inf")) & (bad == 0)
    b, hard, outside = beta_of(Alpha, rows, stride_a, count, KIND)
    nan = bad | outside
    dead = nan | empty | hard
    E, w, f, E_low, w_low, f_low, equal, proved, bits = search(
        X, x, rows, stride_x, count, n, top, dead, hard, b, KIND, B, ONE
    )
    nan = nan | (proved == 0)
    if WRITE == 1:
        tl.store(State + 2 * rows, tl.where(nan, float("nan"), tl.where(empty | hard, 0.0, E)), mask=rows < count)
        tl.store(State + 2 * rows + 1, w, mask=rows < count)
    bits = tl.where(nan, -1, bits)
    found = tl.where(dead, 0, 0)
    if ONE:
        p = probabilities(x, top, E, w, f, E_low, w_low, f_low, b, hard, equal, nan, KIND)
        found = put(p, P, Index, found, rows, 0, count, n, cap, WRITE, R, B)
    else:
        for start in range(0, n, B):
            p = tl.zeros([R, B], tl.float32)
            if marked(bits, start, n, B):
                x = load(X, rows, stride_x, start, count, n, B)
                p = probabilities(x, top, E, w, f, E_low, w_low, f_low, b, hard, equal, nan, KIND)
            found = put(p, P, Index, found, rows, start, count, n, cap, WRITE, R, B)
    if WRITE == 2:
        tl.store(Count + rows, found.to(tl.int64), mask=rows < count)
