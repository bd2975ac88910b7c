"""The truth in fifty digits: every mapping on one row, straight from its definition.

A row is a list of Python floats, taken exactly. ``-inf`` forbids an entry; a row with nothing allowed gives zeros.
Nothing here shares an idea with the library's solvers: supports are found by testing breakpoints, and the equation that
remains, smooth and in one unknown, is solved by bracketed Newton steps.
"""

import functools
import math
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from mpmath import MPContext

mp = MPContext()  # a context of our own: no other user of mpmath can change its precision
mp.prec = 384  # 115 digits: fifty remain even where scores of 1e30 cancel

Row = Sequence[float]
Point = list[Any]


def over_allowed(truth: Callable[..., Point]) -> Callable[..., Point]:
    """Run ``truth`` on the allowed entries as exact numbers and put zeros elsewhere."""

    @functools.wraps(truth)
    def scattered(row: Row, *parameters: float) -> Point:
        allowed = [i for i, score in enumerate(row) if score != -math.inf]
        point = [mp.zero] * len(row)
        if allowed:
            values = truth([mp.mpf(row[i]) for i in allowed], *map(mp.mpf, parameters))
            for i, value in zip(allowed, values, strict=True):
                point[i] = value
        return point

    return scattered


def increasing_root(equation: Callable[[Any], tuple[Any, Any]], low: Any, high: Any, power: Any) -> Any:
    """The root in [low, high] of an increasing function that returns (value, slope), with a slope of at least one.

    ``power`` is the largest power taken inside: it multiplies the rounding errors that the value can show.
    """
    guess, rounding = high, mp.ldexp(1 + abs(power), 32 - mp.prec)
    for _ in range(10 * mp.prec):
        value, slope = equation(guess)
        if abs(value) <= rounding:
            return guess
        low, high = (low, guess) if value > 0 else (guess, high)
        step = guess - value / slope
        guess = step if low < step < high else (low + high) / 2
    raise ArithmeticError(f"no root between {low} and {high} to {rounding}: raise mp.prec")


def normalised(weights: Point) -> Point:
    total = mp.fsum(weights)
    return [weight / total for weight in weights]


def uniform_over_maxima(z: Point) -> Point:
    top = max(z)
    return normalised([mp.mpf(score == top) for score in z])


@over_allowed
def softmax(z: Point) -> Point:
    top = max(z)
    return normalised([mp.exp(score - top) for score in z])


@over_allowed
def sparsemax(z: Point) -> Point:
    threshold, total = mp.zero, mp.zero
    for k, score in enumerate(sorted(z, reverse=True), start=1):
        total += score
        if 1 + k * score > total:
            threshold = (total - 1) / k
    return [max(score - threshold, mp.zero) for score in z]


def _entmax_bases(z: Point, alpha: Any) -> Point:
    """1 + (α−1)(z_i − θ), with zero in the place of what is not positive; α is finite and not 1.

    With b = α−1 and a pivot score z_k in the support, p_i = [p_k^b + b(z_i − z_k)]^(1/b), so p_k is the only unknown
    and Σp increases in it, with slope Σ(p_i/p_k)^(1−b). That slope lies in [1, n] when the pivot is the largest score
    for b < 1 and the smallest of the support for b ≥ 1; other choices have unbounded slopes at the threshold.
    """
    b = alpha - 1
    distinct = sorted(set(z), reverse=True)

    def mass_at_breakpoint(score: Any) -> Any:
        """Σp when the threshold is such that ``score`` is just at the border of the support."""
        return mp.fsum((b * (other - score)) ** (1 / b) for other in z if other > score)

    inside, outside = (0 if b > 0 else len(distinct) - 1), len(distinct)
    while outside - inside > 1:  # the mass at a breakpoint grows down the sorted scores
        middle = (inside + outside) // 2
        inside, outside = (inside, middle) if mass_at_breakpoint(distinct[middle]) >= 1 else (middle, outside)
    edge = distinct[inside]
    support = [score for score in z if score >= edge]
    pivot = edge if b >= 1 else distinct[0]

    def excess(p: Any) -> tuple[Any, Any]:
        bases = [p**b + b * (score - pivot) for score in support]
        points = [base ** (1 / b) if base > 0 else mp.zero for base in bases]
        slope = mp.fsum((point / base for point, base in zip(points, bases, strict=True) if base > 0)) * p ** (b - 1)
        return mp.fsum(points) - 1, slope

    # The largest probability is at least 1/n; the smallest of the support may be anything down to 0.
    pivot_mass = increasing_root(excess, mp.zero if b >= 1 else mp.one / (len(z) + 1), mp.one, 1 / b)
    return [pivot_mass**b + b * (score - pivot) if score >= edge else mp.zero for score in z]


def _entmax_of_bases(bases: Point, alpha: Any) -> Point:
    return [base ** (1 / (alpha - 1)) if base > 0 else mp.zero for base in bases]


@over_allowed
def entmax(z: Point, alpha: Any) -> Point:
    if alpha == 1:
        return softmax(z)
    if alpha == mp.inf:
        return uniform_over_maxima(z)
    return _entmax_of_bases(_entmax_bases(z, alpha), alpha)


@functools.cache  # asked for with the weights of every dtype, for every kernel
@over_allowed
def _entmax_by_alpha(z: Point, alpha: Any) -> Point:
    """dp/dα: the derivative at a fixed threshold, less what keeps the sum at one."""
    b = alpha - 1
    bases = [mp.one] * len(z) if b == 0 else _entmax_bases(z, alpha)
    p = softmax(z) if b == 0 else _entmax_of_bases(bases, alpha)
    direct, share = [], []
    for p_i, base in zip(p, bases, strict=True):
        if p_i == 0:
            log_slope = mp.zero
        elif b == 0:
            log_slope = -(mp.log(p_i) ** 2) / 2
        else:
            log_slope = ((base - 1) / base - mp.log(base)) / b**2
        direct.append(p_i * log_slope)
        share.append(p_i / base if p_i > 0 else mp.zero)  # p^(2−α)
    leak = mp.fsum(direct) / mp.fsum(share)
    return [direct_i - leak * share_i for direct_i, share_i in zip(direct, share, strict=True)]


def entmax_alpha_gradient(row: Row, alpha: float, g: Row) -> Any:
    """d/dα ⟨g, entmax(row, α)⟩."""
    return mp.fsum(mp.mpf(g_i) * d_i for g_i, d_i in zip(g, _entmax_by_alpha(tuple(row), alpha), strict=True))


@over_allowed
def tsoftmax(z: Point, t: Any) -> Point:
    if t == 0:
        return uniform_over_maxima(z)
    top = max(z)
    gaps = [score - top for score in z]
    return normalised([max(1 + gap / t, mp.zero) * mp.exp(gap) for gap in gaps])


@over_allowed
def rsoftmax(z: Point, rate: Any) -> Point:
    ascending, position = sorted(z), rate * (len(z) - 1)
    below = min(int(mp.floor(position)), len(z) - 1)
    above = min(below + 1, len(z) - 1)
    quantile = ascending[below] + (position - below) * (ascending[above] - ascending[below])
    return tsoftmax(z, max(z) - quantile)


@over_allowed
def sigsoftmax(z: Point) -> Point:
    return softmax([score + min(score, mp.zero) - mp.log1p(mp.exp(-abs(score))) for score in z])


@over_allowed
def topk_sparsemax(z: Point, k: Any) -> Point:
    """Among equal scores at the border of the k largest, the first ones are taken."""
    kept = set(sorted(range(len(z)), key=lambda i: -z[i])[: int(k)])
    return sparsemax([score if i in kept else -math.inf for i, score in enumerate(z)])


@over_allowed
def normmax(z: Point, alpha: Any) -> Point:
    power, top = 1 / (alpha - 1), max(z)

    def excess(height: Any) -> tuple[Any, Any]:
        """log Σ (z−τ)^(α/(α−1)), in the height of the largest score above τ: the logarithm tames large powers."""
        heights = [height + (score - top) for score in z]
        powers = [(h, h**power) for h in heights if h > 0]
        total = mp.fsum(h * q for h, q in powers)
        return mp.log(total), (power + 1) * mp.fsum(q for _, q in powers) / total

    # n equal scores need the height n^(1/α − 1); any others need more, and never more than one.
    height = increasing_root(excess, mp.mpf(len(z)) ** (1 / alpha - 1) / 2, mp.one, power)
    return normalised([max(height + (score - top), mp.zero) ** power for score in z])


@over_allowed
def budget_sparsemax(z: Point, budget: Any) -> Point:
    if budget >= len(z):
        return [mp.one] * len(z)

    def point(threshold: Any) -> Point:
        return [min(max(score - threshold, mp.zero), mp.one) for score in z]

    # Σp falls along the sorted breakpoints, from n to 0, and is linear between two of them.
    breakpoints = sorted({score - bend for score in z for bend in (0, 1)})
    low, high = 0, len(breakpoints) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if mp.fsum(point(breakpoints[middle])) >= budget else (low, middle)
    left, right = breakpoints[low], breakpoints[high]
    mass_left, mass_right = mp.fsum(point(left)), mp.fsum(point(right))
    return point(left + (right - left) * (mass_left - budget) / (mass_left - mass_right))


@over_allowed
def sparsegen(z: Point, lam: Any) -> Point:
    return sparsemax([score / (1 - lam) for score in z])


@over_allowed
def sparsehourglass(z: Point, q: Any) -> Point:
    scale = (1 + len(z) * q) / (abs(mp.fsum(z)) + len(z) * q)
    return sparsemax([scale * score for score in z])


def tsallis(p: Sequence[Any], alpha: float) -> Any:
    """H_α(p) for α in (0, ∞]; Shannon's entropy at 1."""
    alpha, positive = mp.mpf(alpha), [mp.mpf(p_i) for p_i in p if p_i > 0]
    if alpha == mp.inf:
        return mp.zero
    if alpha == 1:
        return -mp.fsum(p_i * mp.log(p_i) for p_i in positive)
    return mp.fsum(p_i - p_i**alpha for p_i in positive) / (alpha * (alpha - 1))


def conjugate(row: Row, alpha: float) -> Any:
    """max over the simplex of p·z + H_α(p)."""
    p = entmax(row, alpha)
    return mp.fsum(p_i * mp.mpf(score) for p_i, score in zip(p, row, strict=True) if p_i > 0) + tsallis(p, alpha)


TRUTH: dict[str, Callable[..., Point]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": lambda row: entmax(row, 1.5),
    "entmax": entmax,
    "tsoftmax": tsoftmax,
    "rsoftmax": rsoftmax,
    "sigsoftmax": sigsoftmax,
    "topk_sparsemax": topk_sparsemax,
    "normmax": normmax,
    "budget_sparsemax": budget_sparsemax,
    "sparsegen": sparsegen,
    "sparsehourglass": sparsehourglass,
}


def as_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def rows() -> dict[str, list[float]]:
    """Rows that go wrong in floating point; every number is a float32."""
    rng = random.Random(0)

    def normal(size: int, scale: float = 1.0, offset: float = 0.0) -> list[float]:
        return [offset + scale * rng.gauss(0, 1) for _ in range(size)]

    ulp = 2.0**-23
    named = {f"random {size}": normal(size) for size in (1, 2, 3, 8, 17, 50)}
    named |= {
        "random steep": normal(8, 5),
        "random flat": normal(50, 0.05),
        "tied top": [2.0, 2.0, 0.5, -1.0, 2.0, 1.75, 1.75, 0.0],
        "tied pairs": [0.25, 0.25, 0.0, 0.0, -0.25, -0.25, -0.5, -0.5],
        "tied at the threshold": [1.0, 0.5, 0.5, 0.0, 0.0, 0.0, -1.0, -1.0],
        "all equal": [0.3] * 17,
        "all zero": [0.0] * 8,
        "offset": normal(17, 1, 1e5),
        "offset below": normal(17, 1, -1e5),
        "huge": normal(8, 1e30),
        "huge tied": [1e30, 1e30, -1e30, 0.0, 1.0, 5e29, 1e30, -1.0],
        "tiny": normal(8, 1e-30),
        "tiny and one": [1.0, 1e-30, -1e-30, 0.0, 2e-30, 1e-20, -1e-10, 1e-10],
        "nearly equal": [1 + ulp * (i % 3) for i in range(8)],
        "nearly equal, far out": [1e5 + 2.0**-7 * (i % 2) for i in range(8)],
        "nearly tied top": [3.0, 3.0 - 2 * ulp, 3.0 - 4 * ulp, 2.0, 1.0, 0.0, -1.0, -2.0],
        "forbidden": [0.5, -math.inf, 1.5, -math.inf, 1.0, 0.0, -math.inf, 1.25],
        "one allowed": [-math.inf] * 3 + [-7.5] + [-math.inf] * 4,
        "none allowed": [-math.inf] * 8,
        "wide": [0.0, -1e-3, -0.1, -1.0, -10.0, -100.0, -1e4, -1e8],
        "wide upwards": [1e-3 * 3**i for i in range(17)],
        "plateau under a peak": [1.0] + [0.25] * 49,
        "plateau just under a peak": [1.0] + [0.984375] * 49,
        "plateau far under a peak": [10.0] + [0.0] * 49,
        "staircase": [-i / 16 for i in range(50)],
    }
    return {name: [as_float32(score) for score in row] for name, row in named.items()}
