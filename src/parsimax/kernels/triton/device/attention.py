"""entmax attention in memory linear in the length.

forward   one pass over all keys finds each query's largest score, and the key blocks that may hold support: those not
          below every query's largest score so far by 1/(α-1). Passes over these find the thresholds, each looking only
          at blocks that held support in the one before, as it only shrinks; the last one adds up the values.
queries   one pass over the live blocks for the sums of the gradient, one for dq, dα and the gradient by the mask
keys      dk and dv of a key block, from the query tiles for which it is live

Tiles are BM queries by BN keys everywhere. Live says for each of them whether it may hold support. One thread writes a
byte of it and all threads branch on it later: a barrier stands between, as Triton puts none of its own between accesses
to global memory, and threads that took different branches would wait for each other for ever. A query keeps its
largest score and E, or w for α near 1: see entmax.py, whose searches these are.
"""

import triton
import triton.language as tl

from .dropout import factors
from .entmax import curve, logarithm, relative
from .numbers import exp, expm1_over, log, moved_by_alpha
from .steps import ANY, ENTMAX15, MOST, SPARSEMAX, advance_any, advance_fixed

NEAR = tl.constexpr(0.05)  # |α - 1| below which w says more than E


@triton.jit
def fixed_beta(KIND: tl.constexpr):
    return 1.0 if KIND == SPARSEMAX else 0.5


@triton.jit
def load_beta(Alpha, sab, sah, sal, b, h, rows, L, KIND: tl.constexpr, BM: tl.constexpr):
    """α - 1 of each query in float64, harmless where α is infinite or outside; and where it is that."""
    if KIND == ANY:
        at = Alpha + b * sab + h * sah + rows * sal
        alpha = tl.load(at, mask=rows < L, other=1.5).to(tl.float64)
        hard = alpha == float("inf")
        outside = (alpha < 0) | (alpha != alpha)
        return tl.where(hard | outside, 0.5, alpha - 1.0), hard, outside
    else:
        no = rows < 0
        return tl.where(no, 0.0, fixed_beta(KIND)).to(tl.float64), no, no


@triton.jit
def load_rows(P, stride, rows, n, D: tl.constexpr, DIM: tl.constexpr):
    """(rows, D) of a matrix whose rows have DIM <= D numbers; 0 outside."""
    c = tl.arange(0, D)[None, :]
    return tl.load(P + rows.to(tl.int64) * stride + c, mask=(rows < n) & (c < DIM), other=0.0)


@triton.jit
def load_some(P, stride, rows, n, some, D: tl.constexpr, DIM: tl.constexpr):
    """The same of some rows only, 0 for the others, be they NaN."""
    c = tl.arange(0, D)[None, :]
    return tl.load(P + rows.to(tl.int64) * stride + c, mask=(rows < n) & some & (c < DIM), other=0.0)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a bᵀ. Long rows of float32 by their even and their odd columns: a thread has no registers for both as a whole."""
    if a.shape[1] > 128 and a.dtype == tl.float32:
        a_even, a_odd = tl.split(tl.reshape(a, [a.shape[0], a.shape[1] // 2, 2]))
        b_even, b_odd = tl.split(tl.reshape(b, [b.shape[0], b.shape[1] // 2, 2]))
        return dot(a_even, tl.trans(b_even), PRECISION) + dot(a_odd, tl.trans(b_odd), PRECISION)
    else:
        return dot(a, tl.trans(b), PRECISION)


@triton.jit
def scores(q, k, scale, Mask, sml, sms, rows, cols, L, S, CAUSAL: tl.constexpr, MASK: tl.constexpr,
           PRECISION: tl.constexpr):  # fmt: skip
    """q.k * scale (+ mask); -inf where not allowed. MASK is 0 (none), 1 (boolean) or 2 (added)."""
    s = product(q, k, PRECISION) * scale
    inside = (rows < L) & (cols < S)
    if CAUSAL:
        inside = inside & (rows >= cols)
    at = Mask + rows.to(tl.int64) * sml + cols.to(tl.int64) * sms
    if MASK == 1:
        allowed = tl.load(at, mask=inside, other=0)
        inside = inside & (allowed != 0)
    if MASK == 2:
        added = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
        inside = inside & (added != float("-inf"))
        s = s + added
    return tl.where(inside, s, float("-inf"))


@triton.jit
def may_live(z, E, b, KIND: tl.constexpr):
    """Whether an entry can be in the support from here on. E falls, but for rounding, which 1.001 covers; above α = 2
    it may rise again, to 1 at most."""
    at = 1.001 * E.to(tl.float32)
    if KIND == SPARSEMAX:
        return z + at > 0
    elif KIND == ENTMAX15:
        return 0.5 * z + at > 0
    else:
        small = b.to(tl.float32)
        at = tl.where(small > 1.0, 1.001, at)
        return (small <= 0) | (small * z + at > 0)


@triton.jit
def place(tiles):
    """(tile, head of the batch) of a program, on one axis of the grid: the others end at 65535 on NVIDIA's GPUs."""
    i = tl.program_id(0)
    return i % tiles, (i // tiles).to(tl.int64)


@triton.jit
def last_block(tile, S, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """How many key blocks a query tile sees."""
    if CAUSAL:
        return tl.cdiv(tl.minimum(S, (tile + 1) * BM), BN)
    else:
        return tl.cdiv(S, BN)


@triton.jit
def forward(Q, K, V, Mask, Alpha, Drop, Out, State, Live,
            sqb, sqh, sql, skb, skh, skl, svb, svh, svl, smb, smh, sml, sms, sab, sah, sal, slb, slt,
            H, L, S, scale, rescale, GROUP: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr,
            KEEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
            DV: tl.constexpr, DIMV: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """BM queries of one head. Live is bytes, (head, tile, block) by its strides; always there."""
    tile, bh = place(tl.cdiv(L, BM))
    batch, h = bh // H, bh % H
    rows = tile * BM + tl.arange(0, BM)[:, None]
    Q += batch * sqb + h * sqh
    K += batch * skb + (h // GROUP) * skh
    V += batch * svb + (h // GROUP) * svh
    Mask += batch * smb + h * smh
    Live += bh * slb + tile * slt
    b, hard, outside = load_beta(Alpha, sab, sah, sal, batch, h, rows, L, KIND, BM)
    small = b.to(tl.float32)
    q = load_rows(Q, sql, rows, L, D, DIM)
    blocks = last_block(tile, S, BM, BN, CAUSAL)
    top = tl.full([BM, 1], float("-inf"), tl.float32)
    nan = tl.full([BM, 1], 0, tl.int32)
    # From the last key on: under a causal mask the nearest ones come first, which often have the largest scores.
    for i in range(0, blocks):
        j = blocks - 1 - i
        keys = j * BN + tl.arange(0, BN)[:, None]
        cols = j * BN + tl.arange(0, BN)[None, :]
        k = load_rows(K, skl, keys, S, D, DIM)
        s = scores(q, k, scale, Mask, sml, sms, rows, cols, L, S, CAUSAL, MASK, PRECISION)
        nan = nan | (s != s).to(tl.int32).max(1, keep_dims=True)
        best = tl.max(tl.where(s == s, s, float("-inf")), 1, keep_dims=True)
        top = tl.maximum(top, best)
        reach = tl.where(small > 0, top - 1.0 / tl.where(small > 0, small, 1.0), float("-inf"))
        hit = (best >= reach - 1e-3 * tl.abs(reach)) & (best > float("-inf"))
        tl.store(Live + j, tl.max(hit.to(tl.int8)))
    bad = (nan > 0) | (top == float("inf")) | outside
    empty = (top == float("-inf")) & (bad == 0)
    dead = bad | empty | (rows >= L)
    E = tl.where(dead, 1.0, 1.0).to(tl.float64)
    w = tl.where(dead, 0.0, 0.0).to(tl.float64)
    f, high, low = E, E, E
    last = tl.where(dead, 1e30, 1e30)
    done = dead | hard
    open = dead & (dead == 0)
    least = -log(S * 1.0) - 1e-3
    if KIND == ANY:
        low = tl.exp(tl.maximum(b * least, -690.0))
    i = 0
    while (tl.min(done.to(tl.int32)) == 0) & (i < MOST):
        tl.debug_barrier()
        whole = tl.zeros([BM, 1], tl.float32)
        rest = tl.zeros([BM, 1], tl.float32)
        U = tl.zeros([BM, 1], tl.float32)
        for j in range(0, blocks):
            if tl.load(Live + j) != 0:
                keys = j * BN + tl.arange(0, BN)[:, None]
                cols = j * BN + tl.arange(0, BN)[None, :]
                k = load_rows(K, skl, keys, S, D, DIM)
                s = scores(q, k, scale, Mask, sml, sms, rows, cols, L, S, CAUSAL, MASK, PRECISION)
                z, live = relative(s, top)
                p, u = curve(z, live & (dead == 0), E, w, b, KIND)
                cut = (p + 3.0) - 3.0  # as in numbers.total()
                whole += tl.sum(cut, 1, keep_dims=True)
                rest += tl.sum(p - cut, 1, keep_dims=True)
                U += tl.sum(u, 1, keep_dims=True)
                tl.store(Live + j, tl.max((live & may_live(z, E, b, KIND)).to(tl.int8)))
        value = whole.to(tl.float64) + rest.to(tl.float64)
        f = tl.where(done, f, value)
        if KIND == ANY:
            E, w, high, low, last, done, open = advance_any(
                value, U, E, w, b, high, low, last, done, open, dead, least, i
            )
        else:
            E, done = advance_fixed(value, U, E, done, KIND)
        i += 1
    tl.debug_barrier()
    proved = done
    equal = tl.full([BM, 1], 1.0, tl.float32)
    acc = tl.zeros([BM, DV], tl.float32)
    share = tl.zeros([BM, 1], tl.float32)
    E_low, w_low = E, w
    if KIND == ANY:
        if tl.max((open | hard).to(tl.int32)) > 0:
            E = tl.where(open, high, E)
            w = tl.where(open, tl.log(high) / b, w)
            E_low = tl.where(open, low, E)
            w_low = tl.where(open, tl.log(low) / b, w)
            above = tl.zeros([BM, 1], tl.float32)
            below = tl.zeros([BM, 1], tl.float32)
            several = tl.zeros([BM, 1], tl.float32)
            for j in range(0, blocks):
                if tl.load(Live + j) != 0:
                    keys = j * BN + tl.arange(0, BN)[:, None]
                    cols = j * BN + tl.arange(0, BN)[None, :]
                    k = load_rows(K, skl, keys, S, D, DIM)
                    s = scores(q, k, scale, Mask, sml, sms, rows, cols, L, S, CAUSAL, MASK, PRECISION)
                    z, live = relative(s, top)
                    p, u = curve(z, live, E, w, b, KIND)
                    above += tl.sum(p, 1, keep_dims=True)
                    p, u = curve(z, live, E_low, w_low, b, KIND)
                    below += tl.sum(p, 1, keep_dims=True)
                    several += tl.sum((live & (z == 0)).to(tl.float32), 1, keep_dims=True)
            equal = tl.maximum(several, 1.0)
            gap = open & (below < 1.0) & (above > 1.0)
            share = tl.where(gap, (above - 1.0) / tl.where(gap, above - below, 1.0), 0.0)
            f = tl.where(open, tl.where(gap, 1.0, above.to(tl.float64)), f)
    nans = bad | (proved == 0)
    if tl.max((nans & (rows < L)).to(tl.int32)) > 0:  # a broken query reaches every key
        for j in range(0, blocks):
            tl.store(Live + j, tl.full([], 1, tl.int8))
        tl.debug_barrier()
    for j in range(0, blocks):
        if tl.load(Live + j) != 0:
            keys = j * BN + tl.arange(0, BN)[:, None]
            cols = j * BN + tl.arange(0, BN)[None, :]
            k = load_rows(K, skl, keys, S, D, DIM)
            s = scores(q, k, scale, Mask, sml, sms, rows, cols, L, S, CAUSAL, MASK, PRECISION)
            z, live = relative(s, top)
            p, u = curve(z, live & (dead == 0), E, w, b, KIND)
            if KIND == ANY:
                p = p / f.to(tl.float32)
                if tl.max((open | hard).to(tl.int32)) > 0:
                    p_low, u = curve(z, live & (dead == 0), E_low, w_low, b, KIND)
                    p = tl.where(open, p - share * (p - p_low), p)
                    p = tl.where(hard, tl.where(live & (z == 0), 1.0 / equal, 0.0), p)
            used = tl.max((p > 0).to(tl.int32), 0)[:, None] > 0
            tl.store(Live + j, tl.max(((p > 0) | (nans & (s > float("-inf")))).to(tl.int8)))
            v = load_some(V, svl, keys, S, used, DV, DIMV)  # what no query attends to is not looked at
            if Drop is not None:
                p = p * factors(Drop, rescale, bh * L + rows, cols)
            acc += dot(p.to(v.dtype), v, PRECISION)
    acc = tl.where(nans, float("nan"), acc)
    e = tl.arange(0, DV)[None, :]
    at = (bh * L + rows) * DIMV + e
    tl.store(Out + at, acc.to(Out.dtype.element_ty), mask=(rows < L) & (e < DIMV))
    if KEEP:
        kept = E
        if KIND == ANY:
            kept = tl.where(tl.abs(b) < NEAR, w - log(tl.where(f > 0, f, 1.0).to(tl.float32)).to(tl.float64), E)
            kept = tl.where(hard, float("inf"), kept)
        tl.store(State + 2 * (bh * L + rows), tl.where(dead, 0.0, top).to(tl.float64), mask=rows < L)
        kept = tl.where(nans, float("nan"), tl.where(empty, float("-inf"), kept))
        tl.store(State + 2 * (bh * L + rows) + 1, kept, mask=rows < L)


@triton.jit
def kept_search(State, bh, L, rows, b, KIND: tl.constexpr):
    """(maximum, E, w, bad, empty, hard) of each query, as the forward pass has kept them."""
    top = tl.load(State + 2 * (bh * L + rows), mask=rows < L, other=0.0).to(tl.float32)
    kept = tl.load(State + 2 * (bh * L + rows) + 1, mask=rows < L, other=float("-inf"))
    bad = kept != kept
    empty = kept == float("-inf")
    hard = kept == float("inf")
    E = tl.where(bad | empty | hard, 1.0, kept)
    w = E * 0.0
    if KIND == ANY:
        flat = tl.abs(b) < NEAR
        some = tl.where(bad | empty | hard, 0.0, kept)
        w = tl.where(flat, some, tl.log(tl.where(flat, 1.0, E)) / tl.where(flat, 1.0, b))
        E = tl.where(flat, tl.exp(b * tl.where(flat, some, 0.0)), E)
    return top, E, w, bad, empty, hard


@triton.jit
def weights(z, live, E, w, b, hard, lf, equal, KIND: tl.constexpr):
    """p and its slope, as they are: with the sum of p divided out."""
    p, u = curve(z, live, E, w, b, KIND)
    if KIND == ANY:
        small = b.to(tl.float32)
        before = w.to(tl.float32)
        p = tl.where(hard, tl.where(live & (z == 0), 1.0 / equal, 0.0), p * exp(-lf))
        u = tl.where(hard, 0.0, u * exp((1.0 - small) * (before - lf) - before))
    return p, u


@triton.jit
def moved(z, live, E, w, b, lf):
    """ρ from its value at the largest entry on: see gradient.py."""
    log_r, y, on = logarithm(z, live, E, b)
    b = b.to(tl.float32)
    w = w.to(tl.float32) - lf
    rho = -exp(b * w) * (w * expm1_over(log_r, b) + log_r * log_r * moved_by_alpha(b * log_r))
    return tl.where(on, rho, 0.0)


@triton.jit
def by_weight(g, v, Drop, rescale, rows, cols, PRECISION: tl.constexpr):
    """The gradient by the weights."""
    d = product(g, v, PRECISION)
    if Drop is not None:
        d = d * factors(Drop, rescale, rows, cols)
    return d


@triton.jit
def queries(Q, K, V, G, Mask, Alpha, Drop, State, Live, Dq, Facts, Dalpha, Dmask,
            sqb, sqh, sql, skb, skh, skl, svb, svh, svl, sgb, sgh, sgl, smb, smh, sml, sms, sab, sah, sal, slb, slt,
            H, L, S, scale, rescale, GROUP: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr,
            BY_ALPHA: tl.constexpr, BY_MASK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
            DIM: tl.constexpr, DV: tl.constexpr, DIMV: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """dq, dα and the gradient by the mask, and three facts a query for :func:`keys`: mean, log of the sum, ties."""
    tile, bh = place(tl.cdiv(L, BM))
    batch, h = bh // H, bh % H
    rows = tile * BM + tl.arange(0, BM)[:, None]
    K += batch * skb + (h // GROUP) * skh
    V += batch * svb + (h // GROUP) * svh
    Mask += batch * smb + h * smh
    Live += bh * slb + tile * slt
    b, hard, outside = load_beta(Alpha, sab, sah, sal, batch, h, rows, L, KIND, BM)
    top, E, w, bad, empty, hard = kept_search(State, bh, L, rows, b, KIND)
    dead = bad | empty
    q = load_rows(Q + batch * sqb + h * sqh, sql, rows, L, D, DIM)
    g = load_rows(G + batch * sgb + h * sgh, sgl, rows, L, DV, DIMV)
    blocks = last_block(tile, S, BM, BN, CAUSAL)
    f = tl.zeros([BM, 1], tl.float32)
    U = tl.zeros([BM, 1], tl.float32)
    Ug = tl.zeros([BM, 1], tl.float32)
    several = tl.zeros([BM, 1], tl.float32)
    for j in range(0, blocks):
        if tl.load(Live + j) != 0:
            keys = j * BN + tl.arange(0, BN)[:, None]
            cols = j * BN + tl.arange(0, BN)[None, :]
            k = load_rows(K, skl, keys, S, D, DIM)
            s = scores(q, k, scale, Mask, sml, sms, rows, cols, L, S, CAUSAL, MASK, PRECISION)
            z, live = relative(s, top)
            live = live & (dead == 0)
            p, u = curve(z, live, E, w, b, KIND)
            v = load_rows(V, svl, keys, S, DV, DIMV)
            f += tl.sum(p, 1, keep_dims=True)
            U += tl.sum(u, 1, keep_dims=True)
            d = by_weight(g, v, Drop, rescale, bh * L + rows, cols, PRECISION)
            Ug += tl.sum(tl.where(u > 0, u * d, 0.0), 1, keep_dims=True)
            several += tl.sum((live & (z == 0)).to(tl.float32), 1, keep_dims=True)
    lf = log(tl.where(f > 0, f, 1.0))
    if KIND != ANY:
        lf = lf * 0.0
    U = tl.where(U > 0, U, 1.0)
    mean = Ug / U
    equal = tl.maximum(several, 1.0)
    middle = tl.zeros([BM, 1], tl.float32)
    if BY_ALPHA:
        Ur = tl.zeros([BM, 1], tl.float32)
        for j in range(0, blocks):
            if tl.load(Live + j) != 0:
                keys = j * BN + tl.arange(0, BN)[:, None]
                cols = j * BN + tl.arange(0, BN)[None, :]
                k = load_rows(K, skl, keys, S, D, DIM)
                s = scores(q, k, scale, Mask, sml, sms, rows, cols, L, S, CAUSAL, MASK, PRECISION)
                z, live = relative(s, top)
                live = live & (dead == 0)
                p, u = curve(z, live, E, w, b, KIND)
                Ur += tl.sum(u * moved(z, live, E, w, b, lf), 1, keep_dims=True)
        middle = Ur / U
    acc = tl.zeros([BM, D], tl.float32)
    change = tl.zeros([BM, 1], tl.float32)
    for j in range(0, blocks):
        if tl.load(Live + j) != 0:
            keys = j * BN + tl.arange(0, BN)[:, None]
            cols = j * BN + tl.arange(0, BN)[None, :]
            k = load_rows(K, skl, keys, S, D, DIM)
            s = scores(q, k, scale, Mask, sml, sms, rows, cols, L, S, CAUSAL, MASK, PRECISION)
            z, live = relative(s, top)
            live = live & (dead == 0)
            p, u = weights(z, live, E, w, b, hard, lf, equal, KIND)
            used = tl.max((p > 0).to(tl.int32), 0)[:, None] > 0
            v = load_rows(V, svl, keys, S, DV, DIMV)
            k = load_some(K, skl, keys, S, used, D, DIM)
            d = by_weight(g, v, Drop, rescale, bh * L + rows, cols, PRECISION)
            ds = tl.where(u > 0, u * (d - mean), 0.0)
            if BY_ALPHA:
                change += tl.sum(ds * (moved(z, live, E, w, b, lf) - middle), 1, keep_dims=True)
            if BY_MASK:
                own = tl.where(bad & (s > float("-inf")), float("nan"), ds)
                at = Dmask + (bh * L + rows).to(tl.int64) * S + cols
                tl.store(at, own, mask=(rows < L) & (cols < S))
            acc += dot(ds.to(k.dtype), k, PRECISION)
    acc = tl.where(bad, float("nan"), acc * scale)
    c = tl.arange(0, D)[None, :]
    tl.store(Dq + (bh * L + rows) * DIM + c, acc.to(Dq.dtype.element_ty), mask=(rows < L) & (c < DIM))
    at = Facts + 3 * (bh * L + rows)
    tl.store(at, mean, mask=rows < L)
    tl.store(at + 1, lf, mask=rows < L)
    tl.store(at + 2, equal, mask=rows < L)
    if BY_ALPHA:
        change = tl.where(bad, float("nan"), tl.where(hard, 0.0, change))
        tl.store(Dalpha + bh * L + rows, change.to(tl.float64), mask=rows < L)


@triton.jit
def keys(Q, K, V, G, Mask, Alpha, Drop, State, Live, Facts, Dk, Dv,
         sqb, sqh, sql, skb, skh, skl, svb, svh, svl, sgb, sgh, sgl, smb, smh, sml, sms, sab, sah, sal, slb, slt,
         KVH, L, S, scale, rescale, GROUP: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr,
         BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr, DV: tl.constexpr, DIMV: tl.constexpr,
         PRECISION: tl.constexpr):  # fmt: skip
    """dk and dv of BN keys, from every head that reads them."""
    j, bk = place(tl.cdiv(S, BN))
    batch, kv = bk // KVH, bk % KVH
    at = j * BN + tl.arange(0, BN)[:, None]
    cols = j * BN + tl.arange(0, BN)[None, :]
    k = load_rows(K + batch * skb + kv * skh, skl, at, S, D, DIM)
    v = load_rows(V + batch * svb + kv * svh, svl, at, S, DV, DIMV)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, DV], tl.float32)
    for member in range(0, GROUP):
        h = kv * GROUP + member
        bh = batch * (KVH * GROUP) + h
        first = 0
        if CAUSAL:
            first = (j * BN) // BM
        for tile in range(first, tl.cdiv(L, BM)):
            if tl.load(Live + bh * slb + tile * slt + j) != 0:
                rows = tile * BM + tl.arange(0, BM)[:, None]
                b, hard, outside = load_beta(Alpha, sab, sah, sal, batch, h, rows, L, KIND, BM)
                top, E, w, bad, empty, hard = kept_search(State, bh, L, rows, b, KIND)
                q = load_rows(Q + batch * sqb + h * sqh, sql, rows, L, D, DIM)
                g = load_rows(G + batch * sgb + h * sgh, sgl, rows, L, DV, DIMV)
                facts = Facts + 3 * (bh * L + rows)
                mean = tl.load(facts, mask=rows < L, other=0.0)
                lf = tl.load(facts + 1, mask=rows < L, other=0.0)
                equal = tl.load(facts + 2, mask=rows < L, other=1.0)
                m = Mask + batch * smb + h * smh
                s = scores(q, k, scale, m, sml, sms, rows, cols, L, S, CAUSAL, MASK, PRECISION)
                z, live = relative(s, top)
                live = live & ((bad | empty) == 0)
                p, u = weights(z, live, E, w, b, hard, lf, equal, KIND)
                d = by_weight(g, v, Drop, rescale, bh * L + rows, cols, PRECISION)
                ds = tl.where(u > 0, u * (d - mean), 0.0)
                if Drop is not None:
                    p = p * factors(Drop, rescale, bh * L + rows, cols)
                broken = bad & (s > float("-inf")) | bad & (s != s)
                p = tl.where(broken, float("nan"), p)
                ds = tl.where(broken, float("nan"), ds)
                # Without the broken ones, or what they may not attend to would be 0 times NaN.
                q = load_some(Q + batch * sqb + h * sqh, sql, rows, L, bad == 0, D, DIM)
                dv += dot(tl.trans(p.to(g.dtype)), g, PRECISION)
                dk += dot(tl.trans(ds.to(q.dtype)), q, PRECISION)
    c = tl.arange(0, D)[None, :]
    e = tl.arange(0, DV)[None, :]
    tl.store(Dk + (bk * S + at) * DIM + c, (dk * scale).to(Dk.dtype.element_ty), mask=(at < S) & (c < DIM))
    tl.store(Dv + (bk * S + at) * DIMV + e, dv.to(Dv.dtype.element_ty), mask=(at < S) & (e < DIMV))
