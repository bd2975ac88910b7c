"""Rows of the entmax loss against a class, and of its gradient.

With z = x - max, the loss against class c is (max - x_c) + Ω*(z), Ω*(z) = (b p.z + θ)/α, θ = (1 - E)/b. With smoothing
e and class weights v: (1 - e) v_c loss_c + e/n sum_k v_k loss_k = own Ω* - hit z_c - rest sum_k v_k z_k; the gradient
is own p - hit e_c - rest v. Target probabilities (SOFT) are weights v of each row's own, with own = sum v, hit = 0 and
rest = 1. By α the loss moves as the entropy does at fixed p: with L = log p, t = b L,
H = -(1/α) sum p L ψ(t), ψ(t) = (e^t - 1)/t, and ψ'(t) is moved_by_alpha.

The forward pass keeps five numbers a row (max, E, w, dloss/dα, E at the other end of an open bracket); the backward
pass computes p from the scores and these. A row that does not count has the target -1; with any other target that is
no class its loss and gradient are NaN, as nothing can be raised here without waiting for the GPU.
"""

import triton
import triton.language as tl

from .entmax import beta_of, load, marked, peak, probabilities, search, sums, ties
from .numbers import LN2, exp, expm1_over, log, moved_by_alpha
from .steps import ANY, ARGMAX, SOFTMAX


@triton.jit
def within(c, n):
    """The class, or another one where there is no such class."""
    return tl.minimum(tl.maximum(c, 0), n - 1)


@triton.jit
def mix(Target, Weight, WeightSum, rows, count, n, smoothing, SMOOTH: tl.constexpr, SOFT: tl.constexpr):
    """(class, own, hit, rest)."""
    if SOFT:
        c = tl.where(rows < count, 0, -1)
        own = tl.load(WeightSum + rows, mask=rows < count, other=0.0).to(tl.float32)
        hit = own * 0.0
        rest = hit + 1.0
    else:
        c = tl.load(Target + rows, mask=rows < count, other=-1)
        hit = tl.where(c >= 0, 1.0, 1.0)
        own = hit
        rest = hit * 0.0
        if SMOOTH:
            rest = rest + smoothing / n
            if Weight is None:
                hit = hit * (1.0 - smoothing)
                own = hit + smoothing
            else:
                hit = (1.0 - smoothing) * tl.load(Weight + within(c, n)).to(tl.float32)
                own = hit + rest * tl.load(WeightSum).to(tl.float32)
    return c, own, hit, rest


@triton.jit
def class_weight(Weight, rows, at, count, n, SOFT: tl.constexpr):
    if SOFT:
        return tl.load(Weight + rows * n + at, mask=(rows < count) & (at < n), other=0.0).to(tl.float32)
    elif Weight is None:
        return tl.where(at < n, 1.0, 0.0)
    else:
        return tl.load(Weight + at, mask=at < n, other=0.0).to(tl.float32)


@triton.jit
def tile_sums(x, p, top, v, b, BY_ALPHA: tl.constexpr, SMOOTH: tl.constexpr):
    """By entry: p z, the two sums of the slope by α, and v z."""
    on = p > 0
    z = tl.where(on, x - top, 0.0)
    first = z * 0.0
    second = first
    spread = first
    if BY_ALPHA:
        l = tl.log2(tl.where(on, p, 1.0)) * LN2
        t = b.to(tl.float32) * l
        slope = moved_by_alpha(t)
        first = p * l * (exp(t) - t * slope)
        second = p * l * l * slope
    if SMOOTH:
        spread = tl.where(v != 0, v * (x - top), 0.0)
    return p * z, first, second, spread


@triton.jit
def forward(X, Target, Alpha, Weight, WeightSum, Loss, State, stride_x, stride_a, count, n, smoothing,
            KIND: tl.constexpr, BY_ALPHA: tl.constexpr, SMOOTH: tl.constexpr, SOFT: tl.constexpr, R: tl.constexpr,
            B: tl.constexpr, ONE: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    c, own, hit, rest = mix(Target, Weight, WeightSum, rows, count, n, smoothing, SMOOTH, SOFT)
    used = c != -1
    x = load(X, rows, stride_x, 0, count, n, B)
    top, bad = peak(X, x, rows, stride_x, count, n, B, ONE)
    empty = (top == float("-inf")) & (bad == 0)
    b, hard, outside = beta_of(Alpha, rows, stride_a, count, KIND)
    if KIND == ANY:
        outside = outside | (b == -1.0)
    nan = bad | outside | (within(c, n) != c)
    dead = nan | empty | hard | (used == 0)
    E, w, f, E_low, w_low, f_low, equal, proved, bits = search(
        X, x, rows, stride_x, count, n, top, dead, hard, b, KIND, B, ONE
    )
    nan = (nan | (proved == 0)) & used
    at = tl.arange(0, B)[None, :]
    if ONE:
        p = probabilities(x, top, E, w, f, E_low, w_low, f_low, b, hard, equal, dead & (dead == 0), KIND)
        v = class_weight(Weight, rows, at, count, n, SOFT)
        pz, first, second, spread = tile_sums(x, p, top, v, b, BY_ALPHA, SMOOTH | SOFT)
    else:
        pz = tl.zeros([1, B], tl.float32)
        first = tl.zeros([1, B], tl.float32)
        second = tl.zeros([1, B], tl.float32)
        spread = tl.zeros([1, B], tl.float32)
        for start in range(0, n, B):
            if SMOOTH | SOFT | marked(bits, start, n, B):
                x = load(X, rows, stride_x, start, count, n, B)
                p = probabilities(x, top, E, w, f, E_low, w_low, f_low, b, hard, equal, dead & (dead == 0), KIND)
                v = class_weight(Weight, rows, start + at, count, n, SOFT)
                more_pz, more_first, more_second, more_spread = tile_sums(x, p, top, v, b, BY_ALPHA, SMOOTH | SOFT)
                pz += more_pz
                first += more_first
                second += more_second
                spread += more_spread
    pz = tl.sum(pz, 1, keep_dims=True)
    small = b.to(tl.float32)
    exact = w.to(tl.float32) - log(tl.where(f > 0, f, 1.0).to(tl.float32))
    if KIND == ARGMAX:
        conjugate = pz * 0.0
    elif KIND == SOFTMAX:
        conjugate = -exact
    else:
        wide = tl.abs(b) > 0.1
        theta = ((1.0 - E) / tl.where(wide, b, 1.0)).to(tl.float32)
        theta = tl.where(wide, theta, -expm1_over(exact, small))
        conjugate = tl.where(hard, 0.0, (small * pz + theta) / (1.0 + small))
    mine = tl.load(X + rows * stride_x + within(c, n), mask=rows < count, other=0.0).to(tl.float32)
    alone = tl.maximum((top - mine) + conjugate, 0.0)
    loss = tl.where(hit != 0, hit * alone, 0.0)
    if SOFT:
        loss = tl.where(own != 0, own * conjugate, 0.0) - tl.sum(spread, 1, keep_dims=True)
    elif SMOOTH:
        all = n * 1.0
        if Weight is not None:
            all = tl.load(WeightSum).to(tl.float32)
        loss += rest * (all * conjugate - tl.sum(spread, 1, keep_dims=True))
    loss = tl.where(empty, tl.where(own != 0, float("inf"), 0.0), loss)
    loss = tl.where(nan, float("nan"), tl.where(used, loss, 0.0))
    tl.store(Loss + rows, loss, mask=rows < count)
    by = tl.where(nan, float("nan"), 0.0)
    if BY_ALPHA:
        alpha = 1.0 + small
        slope = tl.sum(first, 1, keep_dims=True) / (alpha * alpha) - tl.sum(second, 1, keep_dims=True) / alpha
        by = tl.where(nan, float("nan"), tl.where(used & (empty == 0) & (hard == 0), own * slope, 0.0))
    tl.store(State + 5 * rows, tl.where(nan | empty, 0.0, top).to(tl.float64), mask=rows < count)
    tl.store(State + 5 * rows + 1, tl.where(nan, float("nan"), tl.where(empty, 0.0, E)), mask=rows < count)
    tl.store(State + 5 * rows + 2, w - log(tl.where(f > 0, f, 1.0).to(tl.float32)).to(tl.float64), mask=rows < count)
    tl.store(State + 5 * rows + 3, by.to(tl.float64), mask=rows < count)
    tl.store(State + 5 * rows + 4, E_low, mask=rows < count)


@triton.jit
def put_gradient(p, Dx, Weight, c, own, hit, rest, g, used, nan, rows, start, count, n, SMOOTH: tl.constexpr,
                 SOFT: tl.constexpr, B: tl.constexpr):  # fmt: skip
    at = start + tl.arange(0, B)[None, :]
    d = own * p
    if SMOOTH | SOFT:
        d = d - rest * class_weight(Weight, rows, at, count, n, SOFT)
    d = tl.where(at == c, d - hit, d)
    d = tl.where((d == 0) | (used == 0), 0.0, g * d)
    d = tl.where(nan, float("nan"), d)
    tl.store(Dx + rows * n + at, d.to(Dx.dtype.element_ty), mask=(rows < count) & (at < n))


@triton.jit
def backward(X, Target, G, Alpha, Weight, WeightSum, State, Dx, stride_x, stride_a, count, n, smoothing,
             KIND: tl.constexpr, SMOOTH: tl.constexpr, SOFT: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
             ONE: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    c, own, hit, rest = mix(Target, Weight, WeightSum, rows, count, n, smoothing, SMOOTH, SOFT)
    used = c != -1
    g = tl.load(G + rows, mask=rows < count, other=0.0).to(tl.float32)
    top = tl.load(State + 5 * rows, mask=rows < count, other=0.0).to(tl.float32)
    E = tl.load(State + 5 * rows + 1, mask=rows < count, other=0.0)
    w = tl.load(State + 5 * rows + 2, mask=rows < count, other=0.0)
    E_low = tl.load(State + 5 * rows + 4, mask=rows < count, other=0.0)
    b, hard, outside = beta_of(Alpha, rows, stride_a, count, KIND)
    nan = (E != E) & used
    none = (E == 0) | (used == 0) | (E != E)
    E = tl.where(none, 1.0, E)
    E_low = tl.where(none | (E_low != E_low), 1.0, E_low)
    top = tl.where(none, float("-inf"), top)  # nothing is live there
    f = tl.where(none, 1.0, 1.0).to(tl.float64)
    w_low, f_low = w, f
    x = load(X, rows, stride_x, 0, count, n, B)
    equal = tl.where(none, 1.0, 1.0)
    if KIND == ARGMAX:
        equal = ties(X, x, rows, stride_x, count, n, top, B, ONE)
    if KIND == ANY:
        if tl.max(hard.to(tl.int32)) > 0:
            equal = ties(X, x, rows, stride_x, count, n, top, B, ONE)
        open = (E_low < E) & (none == 0)
        if tl.max(open.to(tl.int32)) > 0:
            bits = tl.where(none, -1, -1).to(tl.int64)
            w = tl.where(open, tl.log(E) / b, w)
            w_low = tl.where(open, tl.log(E_low) / b, w)
            f_high, U, bits = sums(X, x, rows, stride_x, count, n, top, bits, False, E, w, b, ANY, B, ONE)
            f_less, U, bits = sums(X, x, rows, stride_x, count, n, top, bits, False, E_low, w_low, b, ANY, B, ONE)
            f = tl.where(open, f_high, f)
            f_low = tl.where(open, f_less, f_low)
    never = none & (none == 0)
    if ONE:
        p = probabilities(x, top, E, w, f, E_low, w_low, f_low, b, hard, equal, never, KIND)
        put_gradient(p, Dx, Weight, c, own, hit, rest, g, used, nan, rows, 0, count, n, SMOOTH, SOFT, B)
    else:
        for start in range(0, n, B):
            x = load(X, rows, stride_x, start, count, n, B)
            p = probabilities(x, top, E, w, f, E_low, w_low, f_low, b, hard, equal, never, KIND)
            put_gradient(p, Dx, Weight, c, own, hit, rest, g, used, nan, rows, start, count, n, SMOOTH, SOFT, B)
