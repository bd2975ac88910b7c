"""The C++ kernels against the reference, on random shapes, dtypes, masks and offsets, and under threads and forks.

``make test-kernels`` draws ten thousand cases, ``make test`` five hundred.
"""

import math
import multiprocessing
import os
import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fresh
import parsimax
from parsimax.bench.check import over_ties
from parsimax.kernels import dispatch, library

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason=str(library.PROBLEM))
CASES = int(os.environ.get("PARSIMAX_KERNEL_CASES", "500"))
BLOCKS = 20
# The tests that a subprocess runs for each lower instruction set.
LOWER = "reference or asked or unwritten or alone or random_rows or (values_and_gradients and float32)"
ATTENTION = ("mapped_attention", "dropout")
# the parameter of each mapping with a kernel that has one
RANGES = {
    "entmax": (1.0, 2.0),
    "rsoftmax": (0.0, 1.0),
    "tsoftmax": (0.05, 9.0),
    "sparsegen": (-3.0, 0.95),
    "sparsehourglass": (0.05, 12.0),
    "normmax": (1.1, 2.0),
    "budget_sparsemax": (0.0, 6.0),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.float16: 2e-6}


def reference(f, *args):
    with dispatch.use("torch"):
        return f(*args)


def scores(draw: random.Random, dtype: torch.dtype) -> torch.Tensor:
    n = draw.choice([1, 2, 3, draw.randrange(1, 80), draw.randrange(80, 400), draw.randrange(400, 3000)])
    lead = draw.choice([(), (1,), (draw.randrange(1, 40),), (draw.randrange(1, 5), draw.randrange(1, 5))])
    if n > 400 and dtype == torch.float64:
        lead = lead[:1]
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    x = torch.randn(*lead, n, generator=generator, dtype=torch.float64) * draw.choice([0.01, 0.3, 1, 3, 30])
    x += draw.choice([0, 0, 5, -100, 1e4 if dtype in (torch.float32, torch.float64) else 0])
    if draw.random() < 0.3:
        x = x.round()
    if draw.random() < 0.3:
        x[torch.rand(x.shape, generator=generator) < draw.choice([0.1, 0.6, 1.0])] = -torch.inf
    if draw.random() < 0.1:
        x.flatten()[draw.randrange(x.numel())] = draw.choice([torch.nan, torch.inf])
    x = x.to(dtype)
    if draw.random() < 0.2 and x.dim() > 1:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    return x


def function(draw: random.Random, x: torch.Tensor):
    """The name of a mapping with a kernel, the mapping, and its parameter: one number or one per row."""
    rows = (*x.shape[:-1], 1)
    name = draw.choice(["softmax", "sparsemax", "entmax15", "topk_sparsemax", "sigsoftmax", *RANGES])
    if name == "topk_sparsemax":
        k = draw.randrange(1, 12)
        return name, lambda x, _: parsimax.topk_sparsemax(x, k), None
    if name not in RANGES:
        return name, lambda x, _: getattr(parsimax, name)(x), None
    low, high = RANGES[name]
    shape = draw.choice([(), rows])
    value = torch.empty(shape, dtype=torch.float64).uniform_(
        low, high, generator=torch.Generator().manual_seed(draw.randrange(1 << 30))
    )
    return name, lambda x, v: getattr(parsimax, name)(x, v), value


def close(ours: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> bool:
    """To the tolerance, or for half types to an ulp; NaN where the truth has NaN."""
    ulp = torch.finfo(dtype).eps * truth.abs() if dtype in (torch.bfloat16, torch.float16) else 0
    near = (ours.double() - truth.double()).abs() <= TOLERANCE[dtype] + ulp
    return bool((near | (ours.isnan() & truth.isnan())).all())


@pytest.mark.parametrize("block", range(BLOCKS))
def test_mappings_equal_the_reference(block):
    for case in range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS):
        draw = random.Random(case)
        dtype = draw.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
        x = scores(draw, dtype)
        name, f, value = function(draw, x)
        p, truth = f(x, value), reference(f, x, value)
        assert p.dtype == truth.dtype and p.shape == truth.shape
        if name == "topk_sparsemax":  # of tied scores any may be taken
            p, truth = p.sort(-1).values, truth.sort(-1).values
        assert close(p, truth, dtype), case


def away_from_the_threshold(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Rows where no score lies within 1e-6 of the threshold, so that rounding cannot move the support."""
    p = reference(parsimax.entmax, x.double(), alpha)
    up = reference(parsimax.entmax, x.double() + torch.where(p == 0, 1e-5, 0), alpha)
    return ((up > 0) == (p > 0)).all(-1, keepdim=True) & ~((p > 0) & (p < 1e-7)).any(-1, keepdim=True)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_gradients_equal_the_reference(block):
    for case in range(block * CASES // BLOCKS // 4, (block + 1) * CASES // BLOCKS // 4):
        draw = random.Random(case)
        dtype = draw.choice([torch.float32, torch.float64])
        x = scores(draw, dtype).nan_to_num(nan=0.0, posinf=1.0, neginf=-torch.inf)
        alpha = torch.empty((*x.shape[:-1], 1), dtype=torch.float64).uniform_(
            1, 2, generator=torch.Generator().manual_seed(case)
        )
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(case), dtype=dtype)
        good = away_from_the_threshold(x, alpha)

        def both(x=x, alpha=alpha, g=g):
            leaves = [x.clone().requires_grad_(), alpha.clone().requires_grad_()]
            return torch.autograd.grad(parsimax.entmax(*leaves), leaves, g)

        (dx, da), (rx, ra) = both(), reference(both)
        scale = 10 if dtype == torch.float32 else 1000  # sums of many terms of size 1
        assert close(dx.where(good, 0) / scale, rx.where(good, 0) / scale, dtype), case
        size = g.abs().amax(-1, keepdim=True).double() * (1 + torch.tensor(x.shape[-1]).log())
        assert close((da / size).where(good, 0) / scale, (ra / size).where(good, 0) / scale, dtype), case


SETTINGS = [("rsoftmax", "rate", 0.4), ("tsoftmax", "t", 1.5), ("sparsegen", "lam", 0.3), ("normmax", "alpha", 2.0)]
SETTINGS += [("budget_sparsemax", "budget", 2.5), ("normmax", "alpha", 1.6)]
OTHERS = ["sigsoftmax", *(name for name in RANGES if name != "entmax")]


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_of_other_mappings_equal_the_reference(name):
    """By the scores and by the parameter, with masks, offsets and equal scores that lie in or out together."""
    for case in range(max(20, CASES // 50)):
        draw = random.Random(f"{name} {case}")
        dtype = draw.choice([torch.float32, torch.float64])
        x = scores(draw, dtype).nan_to_num(nan=0.0, posinf=1.0, neginf=-torch.inf).contiguous()
        if name in ("rsoftmax", "tsoftmax"):
            x = x + torch.linspace(0, 1e-3 * x.isfinite().sum().clamp(min=1), x.shape[-1]).to(dtype)
        value = torch.empty((*x.shape[:-1], 1), dtype=torch.float64).uniform_(
            *RANGES.get(name, (0, 1)), generator=torch.Generator().manual_seed(case)
        )
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(case), dtype=dtype)

        def run(x=x, g=g, value=value):
            leaves = [x.clone().requires_grad_(), value.clone().requires_grad_()][: 1 + (name in RANGES)]
            p = getattr(parsimax, name)(*leaves)
            return p.detach(), *torch.autograd.grad(p, leaves, g)

        (p, dx, *change), (rp, rx, *r_change) = run(), reference(run)
        if name == "rsoftmax":  # of equal scores each side takes its own for the quantile
            rows = x.reshape(-1, x.shape[-1])
            dx, rx = (over_ties(rows, d.reshape(rows.shape)).view_as(x) for d in (dx, rx))
        good = ((p > 0) == (rp > 0)).all(-1, keepdim=True) & ~((rp > 0) & (rp < 1e-6)).any(-1, keepdim=True)
        size = 1 + rx.abs().amax(-1, keepdim=True).double() + g.abs().amax()
        scale = 20 if dtype == torch.float32 else 1000  # sums of many terms
        assert close((dx / size).where(good, 0) / scale, (rx / size).where(good, 0) / scale, dtype), case
        for a, r in zip(change, r_change, strict=True):
            size = (1 + r.abs() + torch.tensor(x.shape[-1])) * scale
            assert close((a / size).where(good, 0), (r / size).where(good, 0), dtype), case


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [1, 17, 64, 300, 1000, 5000])
def test_nearly_dense_rows_have_a_precise_gradient_by_alpha(n, dtype):
    """p differs little between the entries, and its rounding must not show in what α moves, in half types too."""
    draw = torch.Generator().manual_seed(n)
    spread = torch.logspace(-4, -0.5, 33, dtype=torch.float64)[:, None]  # rows of every kind within one block
    x = (torch.randn(33, n, generator=draw, dtype=torch.float64) * spread).to(dtype)
    x[5] = x[5, 0]  # a plateau
    if n > 1:
        x[7, 0] = -torch.inf
    g = torch.randn(33, n, generator=draw).to(dtype)
    alpha = torch.linspace(1.06, 1.9, 33, dtype=torch.float64)[:, None]
    leaves = [x.clone().requires_grad_(), alpha.clone().requires_grad_()]
    p = parsimax.entmax(*leaves)
    _, da = torch.autograd.grad(p, leaves, g)
    exact = [x.double().requires_grad_(), alpha.clone().requires_grad_()]
    truth = reference(parsimax.entmax, *exact)
    dx, ra = torch.autograd.grad(truth, exact, g.double(), retain_graph=True)
    assert close(p, truth, dtype)
    if dtype == torch.float32:
        assert ((p.sum(-1, dtype=torch.float64) - 1).abs() < 1e-6).all()
    flat = (truth > 0.65 * truth.amax(-1, keepdim=True)).all(-1, keepdim=True)
    assert flat.sum() >= 8
    size = (dx.square() * (exact[0] - exact[0].mean(-1, keepdim=True)).square()).sum(-1, keepdim=True).sqrt() + 1e-9
    assert ((da - ra).abs() / size)[flat].nan_to_num(0).max() < 1e-5 * (1 + torch.tensor(n).log())


def test_nearly_dense_attention_has_a_precise_gradient_by_alpha():
    draw = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(1, 3, 130, 16, generator=draw) for _ in range(4))
    q = q * 0.01
    alpha = torch.tensor([1.1, 1.4, 1.6]).view(3, 1, 1).requires_grad_()
    for causal in (False, True):
        (ours,) = torch.autograd.grad(parsimax.entmax_attention(q, k, v, alpha=alpha, is_causal=causal), alpha, g)
        exact = [t.double() for t in (q, k, v)]
        wide = alpha.detach().double().requires_grad_()
        truth = reference(lambda a, t=exact, c=causal: parsimax.entmax_attention(*t, alpha=a, is_causal=c), wide)
        (true,) = torch.autograd.grad(truth, wide, g.double())
        assert ((ours - true).abs() < 1e-5 * true.abs().amax()).all()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_losses_equal_the_reference(dtype):
    for case in range(max(20, CASES // 10)):
        draw = random.Random(case)
        x = scores(draw, dtype)
        x = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y = torch.randint(x.shape[-1], x.shape[:1], generator=torch.Generator().manual_seed(case))
        y[y % 7 == 3] = -100
        alpha = draw.choice([1.0, 1.5, 2.0, 1.3, torch.tensor(1.7)])

        def loss(x=x, y=y, alpha=alpha):
            return parsimax.entmax_loss(x, y, alpha, reduction="none")

        ours, truth = loss(), reference(loss)
        same = ours == truth  # infinities
        size = truth.abs().nan_to_num(posinf=0) + 1
        assert close((ours / size).where(~same, 0), (truth / size).where(~same, 0), dtype), case


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_smoothed_losses_equal_the_reference(dtype):
    """With class weights, some of them 0, forbidden classes and ignored rows: the loss, and its gradients with α's."""
    for case in range(max(25, CASES // 20)):
        draw = random.Random(case)
        x = scores(draw, dtype)
        x = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        n = x.shape[-1]
        generator = torch.Generator().manual_seed(case)
        y = torch.randint(n, x.shape[:1], generator=generator)
        y[y % 7 == 3] = -100
        weight = torch.rand(n, generator=generator).round(decimals=1) if draw.random() < 0.5 else None
        if weight is not None and draw.random() < 0.5:  # what is forbidden has no weight: the loss is finite
            weight[(x == -torch.inf).any(0)] = 0
        alpha = draw.choice([1.0, 1.5, 2.0, 1.3, torch.tensor(1.7), torch.rand(x.shape[0], 1, generator=generator) + 1])
        smoothing = draw.choice([0.1, 0.3, 1.0])

        def run(x=x, y=y, alpha=alpha, weight=weight, smoothing=smoothing):
            leaves = [t.clone().requires_grad_() for t in (x, alpha) if isinstance(t, torch.Tensor)]
            given = leaves[1] if isinstance(alpha, torch.Tensor) else alpha
            options = {"weight": weight, "label_smoothing": smoothing, "reduction": "none"}
            loss = parsimax.entmax_loss(leaves[0], y, given, **options)
            assert ("LossesBackward" in _graph(loss)) == (dispatch.wanted() != "torch")
            return [loss.detach(), *torch.autograd.grad(loss.sum(), leaves)]

        (ours, dx, *by_alpha), (truth, rx, *r_alpha) = run(), reference(run)
        same = (ours == truth).to(ours.dtype)  # infinities
        size = truth.abs().nan_to_num(posinf=0) + 1
        assert close((ours / size).where(same == 0, 0), (truth / size).where(same == 0, 0), dtype), case
        good = torch.ones_like(y, dtype=torch.bool).unsqueeze(-1)
        if not x.isnan().any() and x.max() < torch.inf:
            good = away_from_the_threshold(x, torch.as_tensor(alpha).double())
        assert close(dx.where(good, 0), rx.where(good, 0), dtype), case
        for a, r in zip(by_alpha, r_alpha, strict=True):
            assert close(a / (10 * r.abs() + 10), r / (10 * r.abs() + 10), torch.float32), case


def test_smoothing_of_empty_rows_and_forbidden_targets():
    x = torch.tensor([[-torch.inf] * 4, [0.0, -torch.inf, 1.0, 2.0], [0.0, 3.0, 1.0, -torch.inf]])
    y = torch.tensor([1, 1, 1])
    for smoothing in (0.0, 0.1, 1.0):
        for weight in (None, torch.tensor([1.0, 0.0, 2.0, 0.5]), torch.zeros(4)):

            def run(smoothing=smoothing, weight=weight):
                leaf = x.clone().requires_grad_()
                loss = parsimax.sparsemax_loss(leaf, y, weight=weight, label_smoothing=smoothing, reduction="none")
                return loss.detach(), *torch.autograd.grad(loss.sum(), leaf)

            for ours, truth in zip(run(), reference(run), strict=True):
                torch.testing.assert_close(ours, truth, rtol=0, atol=2e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rows_of_forbidden_classes_alone_do_not_move_alpha(smoothing, dtype):
    """Their loss is infinite whatever α is: only the other rows count in α's gradient, in kernel and reference."""
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1], x[3] = -torch.inf, -torch.inf
    y, alpha = torch.tensor([0, 1, 2, -100, 4]), torch.linspace(1.0, 1.9, 5, dtype=torch.float64)[:, None]

    def run(rows):
        leaves = [x[rows].clone().requires_grad_(), alpha[rows].clone().requires_grad_()]
        loss = parsimax.entmax_loss(leaves[0], y[rows], leaves[1], reduction="none", label_smoothing=smoothing)
        return [loss.detach(), *torch.autograd.grad(loss.sum(), leaves)]

    every, some = torch.arange(5), torch.tensor([0, 2, 4])
    ours, truth, others = run(every), reference(run, every), run(some)
    for a, r, o in zip(ours, truth, others, strict=True):
        torch.testing.assert_close(a.double(), r.double(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a[some], o, rtol=0, atol=0)
    for loss, _, by_alpha in (ours, truth):
        assert loss[1] == torch.inf and loss[3] == 0 and (by_alpha[[1, 3]] == 0).all() and (by_alpha[some] != 0).all()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_fused_loss_of_forbidden_classes_alone(dtype):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(n, 8, generator=generator).to(dtype) for n in (3, 20)]
    y, bias = torch.tensor([1, 2, -100]), torch.full((20,), -torch.inf, dtype=dtype)

    def run(*given):
        leaves = [t.clone().requires_grad_() for t in (*given, torch.tensor(1.3, dtype=torch.float64))]
        loss = parsimax.linear_entmax_loss(leaves[0], leaves[1], y, leaves[2], bias=bias.to(given[0]), reduction="none")
        return [loss.detach(), *torch.autograd.grad(loss.sum(), leaves)]

    for a, r in zip(run(*given), reference(run, *(t.double() for t in given)), strict=True):
        torch.testing.assert_close(a.double(), r.double(), rtol=0, atol=1e-6)


def test_a_plateau_close_to_the_threshold_equals_the_reference():
    """All of its weights move together: an ulp of the threshold is more than the tolerance."""
    x = torch.full((320, 60), -1.0)
    x[:, 7] = 0
    alpha = torch.linspace(1.9, 1.98, 320, dtype=torch.float64)[:, None]
    truth = reference(parsimax.entmax, x.double(), alpha)
    assert ((truth > 0).sum(-1) == 60).all()
    assert (parsimax.entmax(x, alpha).double() - truth).abs().max() < 5e-7


def exact_steep(x: list[float], alpha: int) -> list[float]:
    """entmax at α = 3 or 5, whose powers are roots, in 80 digits."""
    with localcontext() as context:
        context.prec = 80
        z, b = [Decimal(v) - Decimal(max(x)) for v in x], alpha - 1

        def probabilities(edge: Decimal) -> list[Decimal]:
            powers = [max(b * v + edge, Decimal(0)).sqrt() for v in z]
            return powers if alpha == 3 else [p.sqrt() for p in powers]

        low, high = Decimal(0), Decimal(1)
        for _ in range(260):
            middle = (low + high) / 2
            if sum(probabilities(middle)) > 1:
                high = middle
            else:
                low = middle
        return [float(p) for p in probabilities(high)]


@pytest.mark.parametrize("alpha", [3, 5])
def test_above_2_entries_at_the_very_edge_are_exact_in_float64(alpha):
    """p leaves the edge with an infinite slope: scores a few ulps apart there have weights that differ a lot."""
    draw = random.Random(alpha)
    for _ in range(40):
        x = [0.0, *(-0.3 * draw.random() for _ in range(draw.randrange(3)))]
        p = exact_steep(x, alpha)
        edge = x[0] - p[0] ** (alpha - 1) / (alpha - 1)
        ulps = [draw.choice([-100, -1, 0, 0, 1, 2, 3, 10, 10**4]) for _ in range(draw.randrange(1, 6))]
        x += [edge + k * math.ulp(edge) for k in ulps]
        draw.shuffle(x)
        ours = parsimax.entmax(torch.tensor([x], dtype=torch.float64), float(alpha))
        assert (ours - torch.tensor([exact_steep(x, alpha)], dtype=torch.float64)).abs().max() < 1e-15


def test_above_2_float64_equals_the_reference():
    for case in range(max(40, CASES // 10)):
        draw = random.Random(case)
        x = scores(draw, torch.float64)
        alpha = draw.choice([2.0001, 2.5, 3.0, 8.0, 100.0, 1e4, 2 + 6 * draw.random()])
        assert close(parsimax.entmax(x, alpha), reference(parsimax.entmax, x, alpha), torch.float64), case


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("n", [2, 10, 64, 191, 300])
def test_a_row_alone_has_the_same_bits(n, dtype):
    """Whatever the rows beside it hold, whatever their α is, and however many there are."""
    draw = torch.Generator().manual_seed(n)
    x, g = ((torch.randn(37, n, generator=draw) * 2).to(dtype) for _ in range(2))
    x[20:] /= 100  # nearly dense
    x[5], x[11] = torch.nan, -torch.inf
    alpha = torch.rand(37, 1, generator=draw, dtype=torch.float64) + 1
    alpha[::7], alpha[1::7], alpha[2::7], alpha[13] = 1.5, 2.0, 1.0, -1.0
    alpha[30] = 2.2

    def run(f, rows, *more):
        leaves = [x[rows].clone().requires_grad_(), *(t[rows].clone().requires_grad_() for t in more)]
        p = f(*leaves)
        return [p.detach(), *torch.autograd.grad(p, leaves, g[rows])]

    choices = [[r] for r in range(37)] + [[3, 7, 36], [*range(4, 21)], [*range(36, -1, -1)]]
    functions = [parsimax.softmax, parsimax.sparsemax, parsimax.entmax15, lambda x: parsimax.entmax(x, 1.3)]
    others = [parsimax.sigsoftmax, lambda x: parsimax.topk_sparsemax(x, 3), parsimax.sparsehourglass]
    others += [partial(getattr(parsimax, name), **{s: v}) for name, s, v in SETTINGS]
    for f, more in [*((f, ()) for f in (*functions, *others)), (parsimax.entmax, (alpha,))]:
        every = run(f, [*range(37)], *more)
        for rows in choices if f not in others else [*choices[5::9], *choices[-3:]]:
            for whole, part in zip(every, run(f, rows, *more), strict=True):
                assert torch.equal(whole[rows].nan_to_num(9), part.nan_to_num(9)), rows


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(40, 3, 7), (5, 33, 70), (300, 130), (2, 1, 17, 3), (1, 9)], ids=str)
def test_another_dimension_has_the_same_bits(shape, dtype):
    """Rows that lie apart go through tiles: the same kernel, the same p and gradients, and the layout of the scores."""
    draw = torch.Generator().manual_seed(0)
    x, g = ((torch.randn(shape, generator=draw) * 2).to(dtype) for _ in range(2))
    x.flatten()[3], x.flatten()[8] = torch.nan, -torch.inf
    functions = [parsimax.entmax15, parsimax.sigsoftmax, parsimax.sparsehourglass]
    functions += [partial(getattr(parsimax, name), **{s: v}) for name, s, v in SETTINGS]
    for dim in range(len(shape) - 1):
        alpha = torch.rand([n if d != dim else 1 for d, n in enumerate(shape)], generator=draw) + 1
        for f in (*functions, partial(parsimax.entmax, alpha=alpha)):

            def run(x, g, dim, f=f):
                leaf = x.clone().requires_grad_()
                p = f(leaf, dim=dim)
                return p.detach(), *torch.autograd.grad(p, leaf, g)

            p, dx = run(x, g, dim)
            if f.keywords.get("alpha") is alpha if isinstance(f, partial) else False:
                f = partial(parsimax.entmax, alpha=alpha.movedim(dim, -1))
            moved = run(x.movedim(dim, -1).contiguous(), g.movedim(dim, -1).contiguous(), -1, f)
            for ours, wanted in zip((p, dx), moved, strict=True):
                assert torch.equal(ours.movedim(dim, -1).nan_to_num(9), wanted.nan_to_num(9)), dim
            assert p.is_contiguous()


def test_an_odd_layout_gives_the_same_bits():
    """Parts of a larger tensor and dimensions in another order are packed first."""
    x = torch.randn(6, 9, 20, 4, generator=torch.Generator().manual_seed(0))
    for view in (x[:, ::2], x[..., 1:3], x.transpose(0, 2), x.permute(3, 1, 0, 2), x[:, :, :, 0].expand(2, 6, 9, 20)):
        for dim in range(-view.dim(), 0):
            p = parsimax.sparsemax(view, dim)
            assert torch.equal(p, parsimax.sparsemax(view.movedim(dim, -1).contiguous()).movedim(-1, dim))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_soft_targets_equal_the_reference(dtype):
    for case in range(max(20, CASES // 20)):
        draw = random.Random(case)
        x = scores(draw, dtype)
        x = x.reshape(-1, x.shape[-1]).contiguous()
        generator = torch.Generator().manual_seed(case)
        y = torch.rand(x.shape, generator=generator).square().to(dtype)
        y[torch.rand(x.shape, generator=generator) < 0.3] = 0
        if draw.random() < 0.8:  # no forbidden class has a share: the loss is finite
            y[x == -torch.inf] = 0
        alpha = draw.choice([1.0, 1.5, 2.0, 1.3, torch.tensor(1.7), torch.rand(x.shape[0], 1, generator=generator) + 1])
        options = draw.choice([{}, {"label_smoothing": 0.2}, {"weight": torch.rand(x.shape[1], generator=generator)}])
        options = options if dtype in (torch.float32, torch.float64) and x.isfinite().all() else {}

        def run(x=x, y=y, alpha=alpha, options=options):
            leaves = [t.clone().requires_grad_() for t in (x, alpha) if isinstance(t, torch.Tensor)]
            given = leaves[1] if isinstance(alpha, torch.Tensor) else alpha
            loss = parsimax.entmax_loss(leaves[0], y, given, reduction="none", **options)
            assert ("LossesBackward" in _graph(loss)) == (dispatch.wanted() != "torch")
            return [loss.detach(), *torch.autograd.grad(loss.sum(), leaves)]

        (ours, dx, *by_alpha), (truth, rx, *r_alpha) = run(), reference(run)
        same = (ours == truth).to(ours.dtype)  # infinities
        size = truth.abs().nan_to_num(posinf=0) + y.double().sum(-1) + 1
        assert close((ours / size).where(same == 0, 0), (truth / size).where(same == 0, 0), dtype), case
        good = torch.ones_like(ours, dtype=torch.bool).unsqueeze(-1)
        if not x.isnan().any() and x.max() < torch.inf:
            good = away_from_the_threshold(x, torch.as_tensor(alpha).double())
        share = 1 + y.double().sum(-1, keepdim=True)
        assert close((dx / share).where(good, 0), (rx / share).where(good, 0), dtype), case
        for a, r in zip(by_alpha, r_alpha, strict=True):
            size = 10 * r.abs() + 10 * share.sum()
            assert close(a / size, r / size, torch.float32), case


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_soft_targets_pass_nan_on(dtype):
    """As cross-entropy does, even where the target has no mass; forbidden classes count for nothing there."""
    x = torch.tensor([[torch.nan, 1.0], [-torch.inf, -torch.inf], [torch.nan, 1.0]], dtype=dtype)
    y = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.5, 0.5]], dtype=dtype)

    def run():
        leaf = x.clone().requires_grad_()
        loss = parsimax.entmax15_loss(leaf, y, reduction="none")
        return loss.detach(), *torch.autograd.grad(loss.sum(), leaf)

    for loss, dx in (run(), reference(run)):
        assert loss.isnan().tolist() == [True, False, True] and loss[1] == 0
        assert dx.isnan().any(-1).tolist() == [True, False, True]


def work(threads: int) -> list[torch.Tensor]:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1000, generator=generator).requires_grad_()
    alpha = (torch.rand(300, 1, generator=generator) + 1).requires_grad_()
    q = torch.randn(2, 4, 200, 16, generator=generator).requires_grad_()
    w = torch.randn(900, 16, generator=generator).requires_grad_()
    y = torch.randint(900, (400,), generator=generator)
    results = [parsimax.sparsemax(x), parsimax.entmax(x, alpha), parsimax.entmax_attention(q, q, q)]
    results.append(parsimax.linear_entmax_loss(q.reshape(-1, 16)[:400], w, y, 1.5))
    results.append(parsimax.entmax15_loss(x, y[:300]))
    total = sum(r.square().sum() for r in results)
    return [*results, *torch.autograd.grad(total, [x, alpha, q, w])]


def test_the_same_bits_for_any_number_of_threads():
    one, two = work(1), work(2)
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_two_python_threads_at_once():
    expected = work(1)
    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(lambda _: work(1), range(6)):
            assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


class Sparse(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return parsimax.sparsemax(torch.arange(50.0).roll(i) / 20)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12 on any fork
def test_a_forked_worker_beside_its_parent():
    parsimax.sparsemax(torch.randn(100, 1000))
    loader = torch.utils.data.DataLoader(Sparse(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    for i, batch in enumerate(loader):
        parsimax.entmax15(torch.randn(64, 512))
        assert torch.equal(batch, torch.stack([Sparse()[2 * i], Sparse()[2 * i + 1]]))


def test_no_output_is_left_unwritten():
    """With fresh memory filled with NaN an element that nobody wrote would show."""
    torch.use_deterministic_algorithms(True)
    try:
        for n in (1, 5, 16, 17, 63, 200, 1000, 5000):
            x = torch.randn(37, n, requires_grad=True)
            p = parsimax.entmax(x, 1.3)
            (g,) = torch.autograd.grad(p.square().sum(), x)
            assert p.isfinite().all() and g.isfinite().all()
        q = torch.randn(1, 2, 33, 7, requires_grad=True)
        (g,) = torch.autograd.grad(parsimax.entmax_attention(q, q, q).sum(), q)
        assert g.isfinite().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif("PARSIMAX_CPU" in os.environ, reason="runs inside itself")
@pytest.mark.parametrize("level", library.LEVELS[: library.LEVELS.index(library.level()) if library.AVAILABLE else 0])
def test_lower_instruction_sets_pass_the_same_tests(level):
    env = {**os.environ, "PARSIMAX_CPU": level, "PARSIMAX_KERNEL_CASES": "40"}
    here = Path(__file__).parent
    files = [__file__, here / "test_other_kernels.py", *(here.parent / "attention" / f"test_{x}.py" for x in ATTENTION)]
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", *files, "-k", LOWER]
    run = fresh.run("-m", "pytest", *words, env=env)
    assert run.returncode == 0, run.stdout


def test_the_level_is_the_one_asked_for():
    wanted = os.environ.get("PARSIMAX_CPU", library.LEVELS[-1])
    assert library.LEVELS.index(library.level()) <= library.LEVELS.index(wanted)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_attention_and_the_fused_loss_equal_the_reference(dtype):
    """In float64 of the same inputs; the tolerance is that of float32 sums, and of one rounding to half types."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 20, generator=generator).to(dtype) for n in (70, 90, 90))
    hidden, weight = (torch.randn(n, 20, generator=generator).to(dtype) for n in (40, 300))
    bias, y = torch.randn(300, generator=generator).to(dtype), torch.randint(300, (40,), generator=generator)

    def run(size, *tensors):
        q, k, v, hidden, weight, bias = leaves = [t.clone().requires_grad_() for t in tensors]
        out = parsimax.entmax_attention(q * size, k, v)
        loss = parsimax.linear_entmax_loss(hidden * size, weight, y, bias=bias * size, softcap=30.0)
        return [out, loss, *torch.autograd.grad(out.square().sum() + 40 * loss.double(), leaves)]

    for size in (0.0625, 1.0):  # dense and sparse
        given = [q, k, v, hidden, weight, bias]
        truth = reference(run, size, *(t.double() for t in given))
        for ours, wanted in zip(run(size, *given), truth, strict=True):
            scale = wanted.abs().amax().clamp(min=1)
            near = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2 * torch.finfo(dtype).eps)
            torch.testing.assert_close(ours.double() / scale, wanted / scale, rtol=0, atol=near)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dim", [7, 16, 48, 64])
def test_the_fused_loss_of_any_width_equals_the_reference(dim, dtype):
    """Sparse rows alone and beside dense ones, of a weight that is whole or a part with odd strides; any threads."""
    generator = torch.Generator().manual_seed(dim)
    wide = torch.randn(200, dim + 1 + dim % 2, generator=generator).to(dtype)
    hidden = torch.randn(30, dim, generator=generator).to(dtype)
    bias, y = torch.randn(200, generator=generator).to(dtype), torch.randint(200, (30,), generator=generator)
    y[3] = -100

    def run(hidden, weight, bias):
        leaves = [t.detach().requires_grad_() for t in (hidden, weight, bias)]
        loss = parsimax.linear_entmax_loss(leaves[0], leaves[1], y, bias=leaves[2], reduction="none")
        return [loss, *torch.autograd.grad(loss.sum(), leaves)]

    for dense in (False, True):
        given = [hidden.clone(), wide[:, 1 : dim + 1], bias * 0.0625]
        given[0][::3] *= 0.03125 if dense else 1
        torch.set_num_threads(2)
        two = run(*given)
        torch.set_num_threads(1)
        for weight in (given[1], given[1].contiguous()):
            ours, truth = run(given[0], weight, given[2]), reference(run, *(t.double() for t in given))
            for a, r, b in zip(ours, truth, two, strict=True):
                near = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2 * torch.finfo(dtype).eps)
                scale = r.abs().amax().clamp(min=1)
                torch.testing.assert_close(a.double() / scale, r / scale, rtol=0, atol=near)
                assert torch.equal(a, b) or weight is not given[1]


@pytest.mark.parametrize("wanted", ["auto", "cpu", "torch", "fast"])
def test_without_the_library(wanted, tmp_path):
    """It works in torch and says so once; asked for the kernels it raises; a wrong word is refused."""
    code = (
        "import pathlib, warnings, torch; exists = pathlib.Path.exists;"
        "pathlib.Path.exists = lambda p: p.name != '_cpu.so' and exists(p);"
        "import parsimax; warnings.simplefilter('always');"
        "print(parsimax.sparsemax(torch.tensor([1.0, 0.5, -1.0])), parsimax.entmax15(torch.zeros(2)))"
    )
    run = fresh.run("-c", code, env={**os.environ, "PARSIMAX_KERNELS": wanted})
    if wanted in ("auto", "torch"):
        assert "tensor([0.7500, 0.2500, 0.0000])" in run.stdout
        assert run.stderr.count("plain torch") == (wanted == "auto") and ("pip install" in run.stderr) == (
            wanted == "auto"
        )
    else:
        words = "one of auto, cpu, triton, torch, lean, got 'fast'"
        expected = "RuntimeError: PARSIMAX_KERNELS=cpu" if wanted == "cpu" else words
        assert run.returncode and expected in run.stderr


def test_a_loss_is_no_slower_path_in_disguise():
    """The kernel is really called: the reference gives the same but through another function."""
    x, y = torch.randn(4, 9, requires_grad=True), torch.tensor([1, 2, 3, 4])
    assert "LossesBackward" in _graph(parsimax.entmax15_loss(x, y))
    assert "RowsBackward" in _graph(parsimax.entmax15(x).sum())
    assert "ChunkedBackward" in reference(lambda: _graph(parsimax.entmax15_loss(x, y)))
    assert F.cross_entropy(x, y).item() == pytest.approx(parsimax.entmax_loss(x, y, 1.0).item(), rel=1e-6)


def _graph(tensor: torch.Tensor) -> str:
    names, todo = [], [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            names.append(node.name())
            todo += [n for n, _ in node.next_functions]
    return " ".join(names)
