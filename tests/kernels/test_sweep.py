"""Structured rows through every kernel, against a bisection in float64: what random scores do not find.

``make test-kernels`` takes every α and every length, ``make test`` a part of them.
"""

import math
import os

import mpmath
import pytest
import torch
from torch import Tensor

import fresh
import parsimax
from parsimax.kernels import library
from sweep import (
    ALPHAS,
    LENGTHS,
    Truth,
    budget_rows,
    budget_truth,
    cases,
    cut_plateau,
    cut_truth,
    hourglass_truth,
    low_plateau,
    near,
    normmax_truth,
    quantile_truth,
    rows,
    stairs,
    truth,
)

WHOLE = int(os.environ.get("PARSIMAX_KERNEL_CASES", "500")) >= 10_000
LOWER = "PARSIMAX_CPU" in os.environ
# Lower instruction sets: before, at or after each length at which a kernel changes, in turn.
SOME = LENGTHS if WHOLE or not LOWER else [LENGTHS[3 * k + k % 3] for k in range(len(LENGTHS) // 3)]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.float16: 2e-6}


def alphas(n: int, some: int) -> list[float]:
    """All of them, or 1.5, 2 and ``some`` that differ from length to length; fewer of long rows and on lower levels."""
    some = 1 + some // (1 + (n > 10_000) + 3 * LOWER)
    own = [ALPHAS[(7 * LENGTHS.index(n) + 5 * k) % len(ALPHAS)] for k in range(some)]
    return ALPHAS if WHOLE else list(dict.fromkeys([*own, 1.5, 2.0]))  # which have paths of their own


def count(n: int) -> int:
    return 64 if n < 2000 else 24 if n < 10_000 else 6 if n < 50_000 else 4


def settled(t: Truth) -> Tensor:
    """Above α = 2 p is steep at its edge: rows where no score is so close to it that an ulp shows."""
    y = (1 + t.b * t.z / t.E).abs().amin(-1) if t.b > 1 else torch.ones(len(t.z), dtype=torch.float64)
    return y > 1e-3


@pytest.mark.parametrize("n", SOME)
def test_probabilities_and_their_sum(n):
    for alpha, x in cases(n, alphas(n, 8), count(n)):
        t = truth(x, alpha)
        for form in (alpha, torch.tensor(alpha, dtype=torch.float64)):
            p = parsimax.entmax(x, form)
            total = (p.sum(-1, dtype=torch.float64) - 1).abs().max()
            assert total <= 1e-6, f"α = {alpha}: the sum is off by {total:.2e}"
            near(p, t.p, 2e-6, f"α = {alpha}", settled(t))


@pytest.mark.parametrize("n", [n for n in SOME if n < 10_000])
def test_stairs_just_above_the_edge(n):
    for alpha in (2.0, 1.5, 1.9, 1.4):
        x = stairs(n, alpha, count(n), n)
        t = truth(x, alpha)
        for form in (alpha, torch.tensor(alpha, dtype=torch.float64)):
            p = parsimax.entmax(x, form)
            total = (p.sum(-1, dtype=torch.float64) - 1).abs().max()
            assert total <= 1e-6, f"α = {alpha}: the sum is off by {total:.2e}"
            near(p, t.p, 2e-6, f"α = {alpha}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", LENGTHS[1::3])
def test_other_types(n, dtype):
    for alpha, x in cases(n, alphas(n, 6), count(n) // 2):
        x = x.clamp(-3e4, 3e4).to(dtype)
        t = truth(x, alpha)
        p = parsimax.entmax(x, alpha)
        ulp = torch.finfo(dtype).eps * t.p if dtype != torch.float64 else 0 * t.p
        slack = (
            TOLERANCE[dtype] if alpha < 2.1 or dtype != torch.float64 else 1e-9
        )  # the bisection itself, where p is steep
        near(p, t.p, slack + ulp, f"α = {alpha}", settled(t))


@pytest.mark.parametrize("n", [257, 32_000, 100_000])
@pytest.mark.parametrize("alpha", [1.3, 1.9, 1.95, 1.999])
def test_float64_with_a_plateau_just_above_the_threshold(alpha, n):
    """Half an ulp of the threshold, times the plateau, must not go to the leader."""
    for above in (1e-6, 1e-4, 1e-2, 0.5):
        x = torch.full((n,), -(1 - above) / (alpha - 1), dtype=torch.float64)
        x[0] = 0
        with mpmath.workdps(40):
            b, gap, low, high = mpmath.mpf(alpha) - 1, mpmath.mpf(x[1].item()), mpmath.mpf(0), mpmath.mpf(1)
            for _ in range(130):
                edge = (low + high) / 2
                total = edge ** (1 / b) + (n - 1) * max(edge + b * gap, 0) ** (1 / b)
                low, high = (low, edge) if total > 1 else (edge, high)
            leader, rest = float(low ** (1 / b)), float(max(low + b * gap, 0) ** (1 / b))
        p = parsimax.entmax(x, alpha)
        assert abs(p[0] - leader) <= 1e-14 and (p[1:] - rest).abs().max() <= 1e-15
        assert abs(math.fsum(p.tolist()) - 1) <= 1e-13


@pytest.mark.parametrize("n", SOME)
def test_gradients(n):
    for alpha, x in cases(n, [a for a in alphas(n, 5) if a <= 2], count(n) // 2):
        t = truth(x, alpha)
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(n))
        dx, da, slack_x, slack_a = t.derivatives(g.double())
        size = g.abs().amax()
        leaf = x.clone().requires_grad_()
        (fixed,) = torch.autograd.grad(parsimax.entmax(leaf, alpha), leaf, g)
        near(fixed, dx, 2e-5 * size + slack_x, f"dx, α = {alpha}", t.clear)
        leaves = [leaf, torch.full((len(x), 1), alpha, dtype=torch.float64, requires_grad=True)]
        ours, by_alpha = torch.autograd.grad(parsimax.entmax(*leaves), leaves, g)
        near(ours, dx, 2e-5 * size + slack_x, f"dx by a tensor α = {alpha}", t.clear)
        scale = size * (1 + torch.tensor(n).log())
        near(by_alpha[:, 0], da, 2e-5 * scale + slack_a, f"dα, α = {alpha}", t.clear)


@pytest.mark.parametrize("n", SOME)
def test_losses(n):
    for alpha, x in cases(n, alphas(n, 4), count(n) // 2):
        t = truth(x, alpha)
        good = settled(t)
        target = torch.randint(n, x.shape[:1], generator=torch.Generator().manual_seed(n))
        expected = t.loss(target)
        allowed = 2e-6 * (1 + expected.abs())
        hot = torch.nn.functional.one_hot(target, n)
        leaf = x.clone().requires_grad_()
        loss = parsimax.entmax_loss(leaf, target, alpha, reduction="none")
        near(loss, expected, allowed, f"loss, α = {alpha}")
        (dx,) = torch.autograd.grad(loss.sum(), leaf)
        near(dx, t.p - hot, 4e-6, f"its gradient, α = {alpha}", good)
        hidden, weight = torch.eye(len(x)).requires_grad_(), x.t().contiguous().requires_grad_()
        loss = parsimax.linear_entmax_loss(hidden, weight, target, alpha, reduction="none")
        near(loss, expected, allowed, f"fused loss, α = {alpha}")
        (dweight,) = torch.autograd.grad(loss.sum(), weight)
        near(dweight.t(), t.p - hot, 4e-6, f"its gradient, α = {alpha}", good)


@pytest.mark.parametrize("n", [n for n in LENGTHS if n < 10_000])
def test_attention(n):
    """The scores come as a bias; the gradient by the bias is that of the mapping."""
    draw = torch.Generator().manual_seed(n)
    for alpha, x in cases(n, alphas(n, 4), count(n) // 2):
        t = truth(x, alpha)
        q, k, v, g = (torch.randn(*s, generator=draw) for s in ((len(x), 8), (n, 8), (n, 8), (len(x), 8)))
        bias = x.clone().requires_grad_()
        wide = torch.full((1,), alpha, dtype=torch.float64, requires_grad=True)
        for form in (alpha, wide):
            out = parsimax.entmax_attention(0 * q, k, v, alpha=form, attn_mask=bias)
            near(out, t.p @ v.double(), 4e-6 * v.abs().max(), f"α = {alpha}", settled(t))
            if alpha <= 2:
                by_p = (g @ v.t()).double()
                dx, da, slack_x, slack_a = t.derivatives(by_p)
                size = by_p.abs().amax()
                (ours, *by_alpha) = torch.autograd.grad(out, [bias, *([wide] if form is wide else [])], g)
                near(ours, dx, 2e-5 * size + slack_x, f"dmask, α = {alpha}", t.clear)
                for each in by_alpha if t.clear.all() else ():
                    scale = size * (1 + torch.tensor(n).log()) * len(x) ** 0.5
                    near(each, da.sum(), 2e-5 * scale + slack_a.sum(), f"dα, α = {alpha}")


@pytest.mark.parametrize("budget", [0.5, 2.0, 7.3])
@pytest.mark.parametrize("n", [16, 65, 1000])
def test_budgets(n, budget):
    x = budget_rows(n, budget, 64, n)
    true = budget_truth(x, budget)
    near(parsimax.budget_sparsemax(x, budget), true, 1e-12, f"budget {budget}")
    near(
        parsimax.budget_sparsemax(x.float(), budget), budget_truth(x.float().double(), budget), 2e-6, f"budget {budget}"
    )


def others(n: int, seed: int):
    """(what, the kernel's p, the truth) of the other mappings, on rows around the thresholds that they come down to."""
    half, two = rows(n, 1.5, count(n) // 2, seed), rows(n, 2.0, count(n) // 2, seed)
    for lam in (-4.0, -0.3, 0.25, 0.9):
        x = (two.double() * (1 - lam)).float()
        yield f"sparsegen {lam}", parsimax.sparsegen(x, lam), truth(x.double() / (1 - lam), 2.0).p
    for q in (0.1, 10.0):
        yield f"sparsehourglass {q}", parsimax.sparsehourglass(two, q), hourglass_truth(two, q)
    for alpha in (1.2, 1.6, 2.0):
        x = half.clamp(-1e4, 1e4) * (1 - 1 / alpha)
        yield f"normmax {alpha}", parsimax.normmax(x, alpha), normmax_truth(x, alpha)
    for t in (0.01, 1.5, 40.0):
        yield f"tsoftmax {t}", parsimax.tsoftmax(half, t), cut_truth(half, t)
    for rate in (0.0, 0.1, 0.5, 0.9, 0.997, 1.0):
        yield f"rsoftmax {rate}", parsimax.rsoftmax(half, rate), quantile_truth(half, rate)


@pytest.mark.parametrize("n", LENGTHS[1::3] if not WHOLE else LENGTHS)
def test_other_mappings(n):
    for what, p, true in others(n, n):
        total = (p.sum(-1, dtype=torch.float64) - 1).abs().max()
        assert total <= 1e-6, f"{what}: the sum is off by {total:.2e}"
        near(p, true, 2e-6, what)


@pytest.mark.parametrize("n", [20, 65, 192, 193, 257, 300, 1000, 4096, 8193])
def test_normmax_with_a_low_plateau(n):
    """Its sum moves with every score of the plateau, by more than the rounding of the leader's p lets the proof see."""
    x = low_plateau(n)
    near(parsimax.normmax(x, 2.0), normmax_truth(x, 2.0), 2e-6, "normmax")


@pytest.mark.parametrize("alpha", [1.3, 1.9, 2.0])
@pytest.mark.parametrize("n", [100, 1000, 4096])
def test_attention_by_normmax_with_a_low_plateau(alpha, n):
    x = low_plateau(n)[::3]
    true = normmax_truth(x, alpha)
    values = torch.eye(n)[:, :2]  # of the leader and of one of the others
    for queries in (x, x.clone().requires_grad_()):
        out = parsimax.attention(
            torch.zeros(len(x), 8), torch.zeros(n, 8), values, attn_mask=queries, mapping="normmax", alpha=alpha
        )
        near(out, true[:, :2], 2e-6, f"α = {alpha}")


@pytest.mark.parametrize("t", [0.5, 1.01, 1.3, 4.0])
@pytest.mark.parametrize("n", [20, 300, 4096])
def test_attention_cut_off_in_a_plateau(n, t):
    """By scores just above the cut that are nearly equal: p, which of them are 0, and the gradient."""
    x = cut_plateau(n, t)
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(n))
    calls = {("tsoftmax", "t", t): cut_truth(x, t)}
    calls |= {("rsoftmax", "rate", rate): quantile_truth(x, rate) for rate in (0.3, 0.97)}
    for (name, key, value), true in calls.items():
        leaf, row = x.clone().requires_grad_(), x.clone().requires_grad_()
        nothing = torch.zeros(len(x), 8), torch.zeros(n, 8), torch.eye(n)
        p = parsimax.attention(*nothing, attn_mask=leaf, mapping=name, **{key: value})
        near(p, true, 2e-6, name)
        assert (p.sum(-1, dtype=torch.float64) - 1).abs().max() <= 2e-6, name
        assert ((p > 0) == (true > 0)).all(), name
        (ours,) = torch.autograd.grad(p, leaf, g)
        (same,) = torch.autograd.grad(getattr(parsimax, name)(row, value), row, g)
        near(ours, same.double(), 3e-5 * (1 + same.double().abs().amax(-1, keepdim=True)), f"{name}, gradient")


def test_the_rows_that_were_wrong():
    x = torch.zeros(4096)
    x[0] = 2.25
    assert abs(float(parsimax.entmax(x, 1.4)[0]) - 0.8086) < 1e-4
    for n, low, alpha in [(4000, -1.1, 1.9), (192, -1.85, 1.54), (255, -1.85, 1.54)]:
        x = torch.full((1, n), low)
        x[0, 0] = 0
        p = parsimax.entmax(x, alpha)
        assert abs(float(p.double().sum()) - 1) <= 1e-6
        near(p, truth(x, alpha).p, 2e-6, f"{n} at {low}")


@pytest.mark.skipif(LOWER, reason="runs inside itself")
@pytest.mark.skipif(not library.AVAILABLE, reason=str(library.PROBLEM))
@pytest.mark.parametrize("level", library.LEVELS[: library.LEVELS.index(library.level()) if library.AVAILABLE else 0])
def test_lower_instruction_sets_pass_the_same_sweep(level):
    env = {**os.environ, "PARSIMAX_CPU": level}
    run = fresh.run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, env=env)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]
