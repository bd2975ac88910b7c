"""Mappings that need a place in the order of a row: top-k and budget sparsemax, r-softmax.

A place is found in the bits of integers that are ordered as the floats are: bit by bit by 32 counts in a row that is
held, eight at a time by four histograms in a longer one, each a pass. That is exact, and ties need no care.
"""

import triton
import triton.language as tl

from .entmax import curve, load, peak, relative, root_fixed
from .numbers import LOWEST, any_of, parts
from .shares import CUT, means, moved, put, tile, write
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
def place(X, x, rows, stride, count, n, k, B: tl.constexpr, ONE: tl.constexpr):
    """The k-th largest key of each row, k from 1 to the number of scores."""
    if ONE:
        return place_held(keys_of(x), k)
    else:
        return place_by_tiles(X, rows, stride, count, n, k, B)


@triton.jit
def place_by_tiles(X, rows, stride, count, n, k, B: tl.constexpr):
    """Eight bits a pass, of the keys that agree with those found before."""
    digits = tl.arange(0, 256)
    left = tl.max(k)
    found = left * 0
    for i in range(4):
        shift = 24 - 8 * i
        counts = tl.zeros([256], tl.int32)
        for start in range(0, n, B):
            keys = tl.reshape(keys_of(load(X, rows, stride, start, count, n, B)), [B])
            # The first digit has the sign in it; a shift by all of 32 bits would be none.
            digit = tl.where(i == 0, (keys >> 24) + 128, (keys >> shift) & 255)
            agree = (i == 0) | ((keys >> tl.minimum(shift + 8, 31)) == (found >> tl.minimum(shift + 8, 31)))
            counts += tl.histogram(digit, 256, mask=agree & (start + tl.arange(0, B) < n))
        least = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts  # how many have this digit or a larger one
        digit = tl.sum((least >= left).to(tl.int32), 0) - 1
        left -= tl.sum(tl.where(digits > digit, counts, 0), 0)
        found = found | (tl.where(i == 0, digit - 128, digit) << shift)
    return found + tl.where(rows < count, 0, 0)


@triton.jit
def place_held(keys, k):
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
    nan = bad | (proved == 0)
    size = tl.zeros([R, B], tl.int32)
    for start in range(0, B if ONE else n, B):
        z, live = relative(tile(X, x, rows, stride, start, count, n, B, ONE), top)
        p, u = curve(z, live, E, E, top, SPARSEMAX)
        size += (p > 0).to(tl.int32)
    certain = dead | (tl.sum(size, 1, keep_dims=True) <= k)
    least = tl.where(dead, -2147483648, -2147483648).to(tl.int32)
    left = tl.where(dead, n, n).to(tl.int32)
    missing = tl.where(dead, 0.0, 0.0)
    if tl.min(certain.to(tl.int32)) == 0:
        least = place(X, x, rows, stride, count, n, tl.where(dead, k, k), B, ONE)
        above = tl.zeros([R, B], tl.int32)
        for start in range(0, B if ONE else n, B):
            above += (keys_of(tile(X, x, rows, stride, start, count, n, B, ONE)) > least).to(tl.int32)
        left = k - tl.sum(above, 1, keep_dims=True)
        whole = tl.zeros([R, B], tl.float32)
        rest = tl.zeros([R, B], tl.float32)
        before = tl.where(dead, 0, 0).to(tl.int32)
        for start in range(0, B if ONE else n, B):
            own = tile(X, x, rows, stride, start, count, n, B, ONE)
            z, live = relative(own, top)
            p, u = curve(z, live, E, E, top, SPARSEMAX)
            kept, before = first_largest(keys_of(own), least, left, before)
            p = tl.where(kept, p, 0.0)
            cut = (p + 3.0) - 3.0  # as in numbers.total
            whole += cut
            rest += p - cut
        f = tl.sum(whole, 1, keep_dims=True).to(tl.float64) + tl.sum(rest, 1, keep_dims=True).to(tl.float64)
        missing = tl.where(certain, 0.0, ((1.0 - f) / k).to(tl.float32))
    before = tl.where(dead, 0, 0).to(tl.int32)
    for start in range(0, B if ONE else n, B):
        own = tile(X, x, rows, stride, start, count, n, B, ONE)
        z, live = relative(own, top)
        p, u = curve(z, live, E, E, top, SPARSEMAX)
        if tl.min(certain.to(tl.int32)) == 0:
            kept, before = first_largest(keys_of(own), least, left, before)
            p = tl.where(certain, p, tl.where(kept, p + missing, 0.0))
        put(p, nan, P, rows, start, count, n, B)
    tl.store(Certain + rows, (certain & (nan == 0)).to(tl.int8), mask=rows < count)


@triton.jit
def first_largest(keys, least, left, before):
    """(keys above ``least``, and the first ``left`` of those equal to it, of which there were ``before`` earlier; how
    many there are by now)."""
    same = (keys == least).to(tl.int32)
    kept = (keys > least) | ((same > 0) & (before + tl.cumsum(same, 1) <= left))
    return kept, before + tl.sum(same, 1, keep_dims=True)


@triton.jit
def allowed_of(X, x, rows, stride, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """How many scores of each row are allowed."""
    size = tl.zeros([R, B], tl.int32)
    for start in range(0, B if ONE else n, B):
        size += (tile(X, x, rows, stride, start, count, n, B, ONE) > float("-inf")).to(tl.int32)
    return tl.sum(size, 1, keep_dims=True)


@triton.jit
def share_of(x, pivot, d, whole):
    """x - c - d, far below 0 where the row has no threshold."""
    near = tl.where((x > float("-inf")) & (whole == 0), tl.maximum(x - pivot, LOWEST), LOWEST)
    most, rest = parts(d)
    return (near - most) - rest


@triton.jit
def budget(X, Budget, P, stride, stride_b, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """p = clip(x - c - d, 0, 1) with sum p = budget; c is the score at place ceil(budget), so that -1 <= d <= 0.

    The sum falls piecewise linearly in d: Newton inside a bracket ends on the exact piece.
    """
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    b = tl.load(Budget + rows * stride_b, mask=rows < count, other=0.0).to(tl.float64)
    size = allowed_of(X, x, rows, stride, count, n, R, B, ONE)
    bad = bad | (b < 0) | (b != b)
    whole = bad | (b == 0) | (b >= size.to(tl.float64))
    wanted = tl.where(whole, 1.0, b)
    up = wanted.to(tl.int32)
    up = tl.where(up.to(tl.float64) < wanted, up + 1, up)
    pivot = score_of(place(X, x, rows, stride, count, n, up, B, ONE))
    unit = tl.exp2(tl.ceil(tl.log2((wanted + 1.0).to(tl.float32))))
    d = tl.where(whole, -0.5, -0.5).to(tl.float64)
    low = d - 0.5
    high = d + 0.5
    done = whole
    close = PROOF * tl.maximum(0.25 * wanted.to(tl.float32), 1.0)
    i = 0
    while (tl.min(done.to(tl.int32)) == 0) & (i < 2000):
        fulls = tl.zeros([R, B], tl.int32)
        inners = tl.zeros([R, B], tl.int32)
        cuts = tl.zeros([R, B], tl.float32)
        rests = tl.zeros([R, B], tl.float32)
        for start in range(0, B if ONE else n, B):
            share = share_of(tile(X, x, rows, stride, start, count, n, B, ONE), pivot, d, whole)
            inner = (share > 0) & (share < 1.0)
            part = tl.where(inner, share, 0.0) / unit
            cut = (part + 3.0) - 3.0  # as in numbers.total
            cuts += cut
            rests += part - cut
            fulls += (share >= 1.0).to(tl.int32)
            inners += inner.to(tl.int32)
        full = tl.sum(fulls, 1, keep_dims=True).to(tl.float64)
        inner = tl.sum(inners, 1, keep_dims=True).to(tl.float64)
        some = tl.sum(cuts, 1, keep_dims=True).to(tl.float64) + tl.sum(rests, 1, keep_dims=True).to(tl.float64)
        over = (full - wanted) + some * unit.to(tl.float64)
        low = tl.where(over >= 0, d, low)
        high = tl.where(over <= 0, d, high)
        to = d + over / tl.maximum(inner, 1.0)
        to = tl.where((inner > 0) & (to > low) & (to < high), to, 0.5 * (low + high))
        done = done | (tl.abs(over).to(tl.float32) <= close)
        d = tl.where(done, d, to)
        i += 1
    for start in range(0, B if ONE else n, B):
        own = tile(X, x, rows, stride, start, count, n, B, ONE)
        p = tl.minimum(tl.maximum(share_of(own, pivot, d, whole), 0.0), 1.0)
        p = tl.where(whole, tl.where((own > float("-inf")) & (b > 0), 1.0, 0.0), p)
        put(p, bad | (done == 0), P, rows, start, count, n, B)


@triton.jit
def inner_of(P, G, rows, stride_g, start, count, n, B: tl.constexpr):
    """(where p is strictly between 0 and 1, g there, where p is NaN)."""
    at = start + tl.arange(0, B)[None, :]
    inside = (rows < count) & (at < n)
    p = tl.load(P + rows * n + at, mask=inside, other=0.0).to(tl.float32)
    on = (p > 0) & (p < 1.0)
    return on, tl.load(G + rows * stride_g + at, mask=inside & on, other=0.0).to(tl.float32), p != p


@triton.jit
def budget_backward(P, G, Dx, Dbudget, stride_g, count, n, NEED: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
                    ONE: tl.constexpr):  # fmt: skip
    """Only entries strictly between 0 and 1 move: dx = g - mean g over them, d budget = that mean."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    all = tl.zeros([R, B], tl.float32)
    size = tl.zeros([R, B], tl.float32)
    nans = tl.zeros([R, B], tl.int32)
    for start in range(0, B if ONE else n, B):
        on, g, nan = inner_of(P, G, rows, stride_g, start, count, n, B)
        all += g
        size += on.to(tl.float32)
        nans = nans | nan.to(tl.int32)
    bad = any_of(nans > 0)
    mean = tl.sum(all, 1, keep_dims=True) / tl.maximum(tl.sum(size, 1, keep_dims=True), 1.0)
    for start in range(0, B if ONE else n, B):
        on, g, nan = inner_of(P, G, rows, stride_g, start, count, n, B)
        put(tl.where(on, g - mean, 0.0), bad, Dx, rows, start, count, n, B)
    if NEED:
        tl.store(Dbudget + rows, tl.where(bad, float("nan"), mean).to(tl.float64), mask=rows < count)


@triton.jit
def quantile(X, x, top, dead, rate, rows, stride, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """(q, low, high, part, size): the quantile q = low + part (high - low) of what is allowed, below the maximum."""
    size = allowed_of(X, x, rows, stride, count, n, R, B, ONE)
    size = tl.where(dead, 1, size)
    at = tl.where(dead, 0.0, rate) * (size - 1).to(tl.float64)
    first = at.to(tl.int32)
    part = at - first.to(tl.float64)
    key = place(X, x, rows, stride, count, n, size - first, B, ONE)
    larger = tl.zeros([R, B], tl.int32)
    nexts = tl.full([R, B], 2147483647, tl.int32)
    for start in range(0, B if ONE else n, B):
        keys = keys_of(tile(X, x, rows, stride, start, count, n, B, ONE))
        larger += (keys > key).to(tl.int32)
        nexts = tl.minimum(nexts, tl.where(keys > key, keys, 2147483647))
    next = tl.min(nexts, 1, keep_dims=True)
    follows = (size - tl.sum(larger, 1, keep_dims=True) == first + 1) & (first + 1 < size)
    low = tl.maximum(score_of(key) - top, LOWEST)
    high = tl.maximum(score_of(tl.where(follows, next, key)) - top, LOWEST)
    low = tl.where(dead, 0.0, low)
    high = tl.where(dead, 0.0, high)
    q = low.to(tl.float64) + part * (high.to(tl.float64) - low.to(tl.float64))
    return q, low, high, part, size


@triton.jit
def rate_of(Rate, rows, stride, count):
    """(the rate, where it is outside)."""
    rate = tl.load(Rate + rows * stride, mask=rows < count, other=0.5).to(tl.float64)
    return rate, (rate < 0) | (rate > 1) | (rate != rate)


@triton.jit
def rsoftmax(X, Rate, P, stride, stride_r, count, n, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):
    """Weights (1 + z/t)_+ e^z over their sum, t = -q; t = 0 is uniform over the maxima."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    rate, outside = rate_of(Rate, rows, stride_r, count)
    bad = bad | outside
    dead = bad | (top == float("-inf"))
    q, low, high, part, size = quantile(X, x, top, dead, rate, rows, stride, count, n, R, B, ONE)
    write(X, x, P, top, q, bad, rows, stride, count, n, CUT, R, B, ONE)


@triton.jit
def rsoftmax_backward(X, G, Rate, Dx, Drate, stride, stride_g, stride_r, count, n, NEED: tl.constexpr,
                      R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    """With h and v of shares.moved: dx = h (p + v), dq = -sum h v, and dq goes to the two scores that q lies between;
    of equal ones to the first."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    x = load(X, rows, stride, 0, count, n, B)
    top, bad = peak(X, x, rows, stride, count, n, B, ONE)
    rate, outside = rate_of(Rate, rows, stride_r, count)
    bad = bad | outside
    dead = bad | (top == float("-inf"))
    q, low, high, part, size = quantile(X, x, top, dead, rate, rows, stride, count, n, R, B, ONE)
    some, mean = means(X, x, G, top, q, rows, stride, stride_g, count, n, CUT, R, B, ONE)
    shift = tl.zeros([R, B], tl.float32)
    lows = tl.full([R, B], 2147483647, tl.int32)
    highs = tl.full([R, B], 2147483647, tl.int32)
    for start in range(0, B if ONE else n, B):
        own = tile(X, x, rows, stride, start, count, n, B, ONE)
        dx, hv, z, live = moved(own, G, top, q, some, mean, rows, stride_g, start, count, n, B)
        shift += hv
        at = start + tl.arange(0, B)[None, :]
        lows = tl.minimum(lows, tl.where(live & (z == low), at, 2147483647))
        highs = tl.minimum(highs, tl.where(live & (z == high), at, 2147483647))
    by_q = -tl.sum(shift, 1, keep_dims=True)
    at_low = tl.min(lows, 1, keep_dims=True)
    at_high = tl.min(highs, 1, keep_dims=True)
    for start in range(0, B if ONE else n, B):
        own = tile(X, x, rows, stride, start, count, n, B, ONE)
        dx, hv, z, live = moved(own, G, top, q, some, mean, rows, stride_g, start, count, n, B)
        at = start + tl.arange(0, B)[None, :]
        dx += tl.where(at == at_low, (1.0 - part).to(tl.float32) * by_q, 0.0)
        dx += tl.where(at == at_high, part.to(tl.float32) * by_q, 0.0)
        put(dx, bad, Dx, rows, start, count, n, B)
    if NEED:
        change = by_q.to(tl.float64) * (high.to(tl.float64) - low.to(tl.float64)) * (size - 1).to(tl.float64)
        tl.store(Drate + rows, tl.where(bad, float("nan"), change), mask=rows < count)
