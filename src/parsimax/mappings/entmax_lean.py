"""α-entmax in float32, for devices on which float64 is slow or does not exist.

Two forms of the same, by β = α - 1:

* flat, β < 0.1: p_i = e^w (1 + x_i)^(1/β), x_i = β z_i e^(-βw), as in float64. An entry that counts has 1 + x_i far
  from 0, so that nothing cancels;
* else p_i = (β (z_i - τ))_+^(1/β), -1/β <= τ < 0, in two parts: an entry may lie closer to τ than float32 can tell.

A search ends with the Newton step from where the sum is within 3e-5 of 1; for α > 2, where p is steep at its edge,
within 3e-7, or with both ends of a bracket that τ in two parts cannot narrow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..engine.chunked import Solve, Traced
from ..engine.search import any_of, log_length, narrowed, repeat, search
from ..engine.sums import apart, below, moved, over, threshold, total

FLAT = 0.1
LEAST = 1e-37  # of -τ; a root closer to 0 leaves the maxima alone, each with an equal share
FIXED_TAU = 0.5  # from this β on
SERIES = 0.3  # |x| below which log(1 + x)/β is a series, or its derivative by β would cancel


def _powers(z: Tensor, beta: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """p, and by how much it falls as τ rises."""
    height = beta * over(z, tau)
    on = height > 0
    height = torch.where(on, height, 1)
    p = torch.where(on, (height.log() / beta).exp(), 0)
    return p, p / height


@search(width=5, lean=5)
def entmax_lean_root(z: Tensor, alpha: Tensor) -> Tensor:
    """(w, τ in two parts, the other end of an open bracket in two parts); τ is 0 where only the maxima are left."""
    beta = alpha - 1
    z = z.clamp(min=-1e38)
    zero = torch.zeros_like(z[..., :1] + beta)
    flat = zero + beta < FLAT
    b, s = torch.where(flat, beta, 0), torch.where(flat, 1, beta)
    lowest, highest = -(1 + 1e-6) / s, -((-s * log_length(z)).exp() / s * (1 - 1e-6)).clamp(min=LEAST)

    def find_w(z: Tensor, w: Tensor) -> Tensor:
        some = torch.where(b == 0, 1, b)

        def step(w: Tensor) -> tuple[Tensor, Tensor]:
            y = z * (-b * w).exp()
            x = b * y
            log_r = torch.where(b == 0, y, x.clamp(min=-0.9999999).log1p() / some)
            p = torch.where(x > -1, (w + log_r).exp(), 0)
            log_sum = total(p, 1).log1p()
            ratio = log_sum.exp() / torch.where(p > 0, p / (1 + x), 0).sum(-1, keepdim=True)
            to = torch.where(b == 0, -log_sum * ratio, ((-b * log_sum).expm1() * ratio).log1p() / some)
            done = ~flat | ~(to < -3e-7 * (1 - w))
            return torch.where(done, w, w + to), done

        return repeat(step, w)[0]

    def find_tau(z: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        close = torch.where(s > 1, 3e-7, 3e-5)

        def step(tau: Tensor, other: Tensor, low: Tensor, high: Tensor, last: Tensor) -> tuple[Tensor, ...]:
            p, slope = _powers(z, s, tau)
            excess = total(p, 1)
            log_sum = excess.log1p()
            low, high = torch.where(excess >= 0, tau, low), torch.where(excess <= 0, tau, high)
            # Newton on S^β, a norm of the heights for β <= 1, so convex and nearly straight
            newton = (s * log_sum).expm1() * ((1 - s) * log_sum).exp() / (s * slope.sum(-1, keepdim=True))
            to = moved(tau, newton)
            width = apart(high, low)
            slow = (s > 1) & (excess.abs() > last / 2)
            inside = (apart(to, low) >= 0) & (apart(high, to) >= 0) & ~slow
            exact = (excess.abs() <= close) | flat
            narrow = width <= 3e-14 * tau[..., :1].abs()
            still = (to == tau).all(-1, keepdim=True) & inside
            to = torch.where(inside, to, moved(low, width / 2))
            done = exact | narrow | still | excess.isnan()
            closed = narrow & ~exact
            new = torch.where(closed, low, torch.where(done & (s > 1), tau, to))
            return new, torch.where(closed, high, new), low, high, excess.abs(), done

        low, high = threshold(zero + lowest), threshold(highest)
        found = repeat(step, tau, tau.clone(), low, high, torch.full_like(zero, math.inf))
        return found[0], found[1]

    def find(z: Tensor, start: Tensor) -> Tensor:
        w, tau = start[..., :1], start[..., 1:3]
        other = tau
        w = find_w(z, w) if any_of(flat) else w
        if any_of(~flat):
            tau, other = find_tau(z, tau)
        return torch.cat([w, tau, other], -1)

    def edge(root: Tensor) -> Tensor:
        some = torch.where(b > 0, b, 1)
        by_w = torch.where(b > 0, -(1 + 1e-6) * (b * root[..., :1]).exp() / some, -math.inf)
        return torch.where(flat, by_w, below(root[..., 1:3]))

    begin = torch.cat([zero, threshold(zero + lowest), threshold(zero + lowest)], -1)
    root = narrowed(z, begin, find, edge, long=128)
    tied = ~flat & (total(_powers(z, s, threshold(highest))[0], 1) > 3e-7) & (highest == -LEAST)
    return torch.where(tied, 0, root)


def _log1p_over(y: Tensor, beta: Tensor) -> Tensor:
    """log(1 + βy)/β, for 1 + βy > 0, smooth through β = 0 with its derivative."""
    x = beta * y
    near = x.detach().abs() < SERIES
    few = torch.where(near, x, 0)
    series = torch.full_like(few, 1 / 16)
    for k in range(15, 0, -1):
        series = 1 / k - few * series
    some = torch.where(beta == 0, 1, beta)
    return torch.where(near, y * series, torch.where(near, 0, x).log1p() / some)


def _expm1_over(y: Tensor, beta: Tensor) -> Tensor:
    """(e^(βy) - 1)/β, smooth through β = 0 with its derivative."""
    x = beta * y
    near = x.detach().abs() < SERIES
    few = torch.where(near, x, 0)
    series = torch.ones_like(few)
    for k in range(9, 1, -1):
        series = 1 + few / k * series
    some = torch.where(beta == 0, 1, beta)
    return torch.where(near, y * series, torch.where(near, 0, x).expm1() / some)


class Powers(NamedTuple):
    p: Tensor
    slope: Tensor  # by w
    height: Tensor  # p^(α-1) on the support
    w: Tensor


def _at(z: Tensor, live: Tensor, beta: Tensor, root: Tensor, by: Tensor, *, traced: bool) -> Powers:
    """p at a root; ``by`` is added to w, and is 0 but for its derivative.

    For derivatives both forms are one, e^w (1 + x)^(1/β), where far from the maximum 1 + x is the height above τ over
    that of the maximum. The derivative by β is taken at a fixed w, or for large β at a fixed τ: the other way large
    numbers would cancel.
    """
    flat, tau = beta.detach() < FLAT, root[..., 1:]
    tied = ~flat & (tau[..., :1] == 0)
    top = torch.where(tied, 1, -tau[..., :1])  # the height of the maximum, over β
    s = torch.where(flat, 1, beta)
    by_tau = s.detach() >= FIXED_TAU
    w = torch.where(flat, root[..., :1], (s * top).log() / s)
    fixed = w.detach() + by
    w = torch.where(by_tau & ~flat, w + by, fixed)
    with torch.no_grad():
        on = live & torch.where(flat, beta * z * (-beta * w).exp() > -1, over(z, tau) > 0)
        far = on & ~flat & (z < tau[..., :1] / 2)
    z = torch.where(on, z, 0)
    y = torch.where(far, 0, z) * (-beta * w).exp()
    log_p, ratio = w + _log1p_over(y, beta), 1 + beta * y
    if traced or far.any():
        moves = torch.where(by_tau, top * (s * by).exp(), (s * fixed).exp() / s)
        moves = moves - moves.detach()
        above = torch.where(far, (over(torch.where(far, z, 0), tau) + moves) / (top + moves), 1)
        log_p, ratio = torch.where(far, w + above.log() / s, log_p), torch.where(far, above, ratio)
    p = torch.where(on, log_p.exp(), 0)
    slope, height = p / ratio, torch.where(on, (beta * w).exp() * ratio, 0)
    if traced or tied.any():
        first = (live & (z == 0)).detach().to(z.dtype)
        share = first / first.sum(-1, keepdim=True)
        p, slope = torch.where(tied, share + 0 * z, p), torch.where(tied, share, slope)
        height = torch.where(tied, beta * z * first, height)
    return Powers(p, slope, height, w)


def _polished(z: Tensor, live: Tensor, alpha: Tensor, solve: Solve) -> tuple[Powers, Tensor]:
    """What is at the root, with derivatives right to order 2^(steps - 1) - 1; and the root."""
    root = solve(entmax_lean_root, z.masked_fill(~live, -math.inf), alpha)
    by = torch.zeros_like(root[..., :1])
    for step in range(solve.steps):
        found = _at(z, live, alpha - 1, root[..., :3], by, traced=isinstance(solve, Traced))
        if step + 1 < solve.steps:  # a Newton step for the derivatives only: its value is 0
            newton = total(found.p, 1) / found.slope.sum(-1, keepdim=True)
            by = by - (newton - newton.detach())
    return found, root


def unpolished(z: Tensor, live: Tensor, alpha: Tensor, *, solve: Solve) -> tuple[Tensor, Tensor, Tensor | None]:
    """p, its slope by w, and p at the other end of a bracket that stayed open."""
    found, root = _polished(z, live, alpha, solve)
    traced, p_low = isinstance(solve, Traced), None
    if traced or (apart(root[..., 3:], root[..., 1:3]) > 0).any():
        other = torch.cat([root[..., :1], root[..., 3:]], -1)
        none = torch.zeros_like(root[..., :1])
        p_low = _at(z.detach(), live, (alpha - 1).detach(), other, none, traced=traced).p
    return found.p, found.slope, p_low


def conjugate(z: Tensor, live: Tensor, alpha: Tensor, *, solve: Solve) -> Tensor:
    """θ + (sum p^α - 1)/α, the dual, which is least at the root: see :func:`.entmax.entmax_conjugate`."""
    found, root = _polished(z, live, alpha, solve)
    beta = alpha - 1
    theta = -_expm1_over(found.w, beta)
    flat = beta.detach() < FLAT
    exact = (1 / torch.where(flat, 1, beta.detach()) + root[..., 1:2]) + root[..., 2:3]  # 1/β + τ
    theta = torch.where(flat, theta, exact + (theta - theta.detach()))
    return theta + total(found.p * found.height, 1) / alpha
