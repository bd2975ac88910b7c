"""One step of the searches for the threshold: from the sums at (E, w) to the next E and w. See entmax.py."""

import triton
import triton.language as tl

from .numbers import exp, expm1_over, log, log1p_over

# Which α, where that is known when a kernel is compiled.
ANY = tl.constexpr(0)
ENTMAX15 = tl.constexpr(1)
SPARSEMAX = tl.constexpr(2)
SOFTMAX = tl.constexpr(3)
ARGMAX = tl.constexpr(4)
PROOF = tl.constexpr(2.5e-7)  # how far a sum may be from 1
MOST = tl.constexpr(250)  # steps


@triton.jit
def advance_fixed(f, U, E, done, KIND: tl.constexpr):
    """α = 2 and 1.5: (E, done)."""
    over = (f - 1.0).to(tl.float32)
    U = tl.where(U > 0, U, 1.0)
    if KIND == SPARSEMAX:
        step = over / U
    else:  # on the root of the sum, which is convex too and nearly straight
        s = tl.sqrt(f.to(tl.float32))
        step = s * over / ((1.0 + s) * U)
    done = done | (tl.abs(over) <= PROOF)
    return tl.where(done, E, E - step.to(tl.float64)), done


@triton.jit
def advance_any(f, U, E, w, b, high, low, last, done, open, dead, least, i):
    """Any α: (E, w, the bracket, |ρ|, done, open). ``open``: the bracket is one of neighbours, without a proof."""
    small = b.to(tl.float32)
    steep = (small > 1.0) & (dead == 0)
    over = (f - 1.0).to(tl.float32)
    near = tl.abs(over) < 0.125
    far = log(tl.maximum(f.to(tl.float32), 1e-30))
    rho = tl.where(near, log1p_over(tl.where(near, over, 0.0), 1.0), far)
    size = tl.where(steep, 1.0 / (1.0 + tl.abs(w.to(tl.float32))), exp(w.to(tl.float32)))
    done = done | (size * tl.abs(rho) <= PROOF)
    ratio = f.to(tl.float32) / tl.where(U > 0, U, 1.0)
    step = log1p_over(expm1_over(-rho, small) * ratio, small)
    to = E + E * b * expm1_over(step, small).to(tl.float64)
    w = tl.where(done | steep, w, tl.maximum(w + step.to(tl.float64), least.to(tl.float64)))
    if tl.max(steep.to(tl.int32)) > 0:
        high = tl.where(steep & (done == 0) & (rho >= 0), E, high)
        low = tl.where(steep & (done == 0) & (rho <= 0), E, low)
        good = (to > low) & (to < high) & ((i < 4) | (tl.abs(rho) < 0.5 * last))
        middle = tl.sqrt(low) * tl.sqrt(high)
        to = tl.where(steep & (good == 0), middle, to)
        closed = steep & (done == 0) & ((to <= low) | (to >= high))
        open = open | closed
        done = done | closed
        w = tl.where(steep & (done == 0), tl.log(to) / b, w)
        last = tl.abs(rho)
    return tl.where(done, E, to), w, high, low, last, done, open
