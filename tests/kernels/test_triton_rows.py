"""The row kernels of Triton against float64: odd sizes, every type, hostile rows, held and by tiles."""

import math
import os

import pytest
import torch

import interpreted
import parsimax
from parsimax.kernels import dispatch
from sweep import (
    ALPHAS,
    budget_rows,
    budget_truth,
    cut_truth,
    hourglass_truth,
    normmax_truth,
    quantile_truth,
    rows,
    truth,
)

interpreted.only()
from parsimax.kernels.triton import launch  # noqa: E402
from parsimax.kernels.triton import rows as kernels  # noqa: E402

inf, nan = math.inf, math.nan
WHOLE = int(os.environ.get("PARSIMAX_KERNEL_CASES", "500")) >= 10_000  # make test-triton
HALF = (torch.bfloat16, torch.float16)
MIXED = torch.tensor([1.0, 1.0001, 1.9, 2.0, 3.0, inf, -1.0, nan, 0.5])
PARAMETERS = {"rsoftmax": torch.linspace(-0.1, 1, 9), "budget_sparsemax": torch.linspace(-0.5, 7.5, 9)}
PARAMETERS |= {
    "tsoftmax": torch.tensor([1.0, 0.5, 2.0, 1.0, 3.0, 0.2, inf, -1.0, 0.01]),
    "sparsegen": torch.tensor([0.5, 0.1, 0.0, 0.9, -3.0, 0.3, -1.0, 1.0, 0.95]),
    "sparsehourglass": torch.tensor([1.0, 0.5, 2.0, 1.0, 0.1, 3.0, 10.0, 0.0, 30.0]),
    "normmax": torch.tensor([2.0, 1.3, 1.6, 2.0, 1.01, 1.8, 1.2, 1.0, 2.0]),
}


@pytest.fixture
def tiled(monkeypatch):
    """All rows by tiles of 64 columns, as if they were longer than what is held on chip."""
    monkeypatch.setattr(launch, "SCORES", dict.fromkeys(launch.SCORES, 0))
    monkeypatch.setattr(launch, "TILE", dict.fromkeys(launch.TILE, 64))


@pytest.fixture(params=["held", "tiled"])
def path(request):
    """Either way."""
    if request.param == "tiled":
        request.getfixturevalue("tiled")
    return request.param


def reference(f, *args):
    with dispatch.use("torch"):
        return f(*args)


def hostile(n, dtype=torch.float32, count=9, scale=2.0):
    """Rows of random scores, with one forbidden entry, a NaN, nothing allowed, +inf, ties, far from 0."""
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(count, n, generator=draw) * scale
    x[4] = x[4].round()
    x[5] = 3.0
    x[6] += 1000
    if n > 3:
        x[0, 1], x[1, 2], x[3, 2] = -inf, nan, inf
        x[2] = -inf
    return x.to(dtype)


def near(ours, true, tolerance=1e-6, what=""):
    """NaN where the truth has NaN; half types to an ulp."""
    assert torch.equal(ours.isnan(), true.isnan()), what
    ulp = torch.finfo(ours.dtype).eps * true.abs() if ours.dtype in HALF else 0
    off = ((ours.double() - true).abs() - ulp).nan_to_num(0)
    assert (off <= tolerance).all(), (what, off.max())


ROWS = [0, 1, 2, 4, 6]  # of hostile(): by tiles each row is a program of its own, which takes the interpreter long


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_entmax(dtype):
    for n in (1, 5, 200) if dtype == torch.float32 or WHOLE else (200,):
        x = hostile(n, dtype)
        for alpha in (1.0, 1.5, 2.0, inf, 1.3, 0.0, 2.5, MIXED[:, None]):
            near(parsimax.entmax(x, alpha), reference(parsimax.entmax, x.double(), alpha), what=f"{n}, {alpha}")


def test_entmax_by_tiles(tiled):
    x = hostile(150)[ROWS]
    for alpha in (1.0, 1.5, 2.0, inf, MIXED[:5, None]):
        near(parsimax.entmax(x, alpha), reference(parsimax.entmax, x.double(), alpha), what=str(alpha))
    x = x.bfloat16()
    near(parsimax.entmax15(x), reference(parsimax.entmax15, x.double()))


@pytest.mark.parametrize("n", [17, 257, 1025] if not WHOLE else [15, 16, 17, 129, 257, 1025, 4095, 4097])
def test_plateaus_under_leaders(n):
    count = 16 if n < 1000 or WHOLE else 4
    some = [1.001, 1.1, 1.3, 1.5, 1.98, 2.0, 2.2, 4.0]
    some = {257: some[::2], 1025: some[1::2]}.get(n, some)  # each at two lengths
    for k, alpha in enumerate(ALPHAS if WHOLE else some):
        x = rows(n, alpha, count, 1000 * n + k)
        t, p = truth(x, alpha), parsimax.entmax(x, alpha)
        assert (p.sum(-1, dtype=torch.float64) - 1).abs().max() <= 1e-6, alpha
        good = (1 + t.b * t.z / t.E).abs().amin(-1) > 1e-3 if alpha > 2 else slice(None)
        assert ((p - t.p).abs()[good] <= 1e-6).all(), alpha


def test_plateaus_by_tiles(tiled):
    for k, alpha in enumerate((1.2, 1.5, 2.0, 3.0)):
        x = rows(200, alpha, 2, k)
        t, p = truth(x, alpha), parsimax.entmax(x, alpha)
        assert (p.sum(-1, dtype=torch.float64) - 1).abs().max() <= 1e-6, alpha
        good = (1 + t.b * t.z / t.E).abs().amin(-1) > 1e-3 if alpha > 2 else slice(None)
        assert ((p - t.p).abs()[good] <= 1e-6).all(), alpha


@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0])
def test_many_equal_scores_sum_to_one(alpha, monkeypatch):
    """They all err alike: a plain sum in float32 does not show it."""
    monkeypatch.setattr(launch, "TILE", dict.fromkeys(launch.TILE, 131072))
    x = torch.zeros(1, 10**6)
    for first in (0.0, 0.999999 / max(alpha - 1, 1e-3)):
        x[0, 0] = first
        p = parsimax.entmax(x, alpha)
        assert abs(float(p.double().sum()) - 1) <= 1e-6
        assert abs(float(p[0, 0] - reference(parsimax.entmax, x.double(), alpha)[0, 0])) <= 1e-6


def test_gradients_of_entmax(path):
    some = ROWS if path == "tiled" else slice(None)
    for n in (1, 7, 150) if path == "held" else (100,):
        x = hostile(n)[some]
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(n))
        for alpha in (1.0, 1.5, 2.0, inf, 1.3, MIXED[some, None]):
            learned = isinstance(alpha, torch.Tensor)
            inputs = [
                (t.clone().requires_grad_(), t.double().requires_grad_()) for t in ([x, alpha] if learned else [x])
            ]
            ours, wide = zip(*inputs, strict=True)
            more = () if learned else (alpha,)
            found = torch.autograd.grad(parsimax.entmax(*ours, *more), ours, g)
            true = reference(lambda w=wide, m=more, g=g: torch.autograd.grad(parsimax.entmax(*w, *m), w, g.double()))
            good = true[0].isfinite().all(-1, keepdim=True)  # of broken rows the gradient by α is anybody's
            assert torch.equal(found[0].isnan(), true[0].isnan())
            for one, other in zip(found, true, strict=True):
                near(one.where(good, 0), other.where(good, 0), 3e-6 * (1 + math.log(n)), f"n = {n}, α = {alpha}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nearly_dense_rows_have_a_precise_gradient_by_alpha(dtype):
    """Its rounding to bfloat16 must not show in what α moves: that starts from the scores."""
    draw = torch.Generator().manual_seed(0)
    spread = torch.logspace(-4, -0.5, 17, dtype=torch.float64)[:, None]
    x = (torch.randn(17, 300, generator=draw, dtype=torch.float64) * spread).to(dtype)
    g = torch.randn(17, 300, generator=draw).to(dtype)
    alpha = torch.linspace(1.06, 1.9, 17, dtype=torch.float64)[:, None].requires_grad_()
    (ours,) = torch.autograd.grad(parsimax.entmax(x, alpha), alpha, g)
    wide = x.double().requires_grad_()
    p = reference(parsimax.entmax, wide, alpha)
    dx, true = torch.autograd.grad(p, [wide, alpha], g.double())
    size = (dx.square() * (wide - wide.mean(-1, keepdim=True)).square()).sum(-1, keepdim=True).sqrt() + 1e-9
    flat = (p > 0.65 * p.amax(-1, keepdim=True)).all(-1, keepdim=True)
    assert flat.sum() >= 5
    assert ((ours - true).abs() / size)[flat].max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_support(dtype, path):
    x = hostile(100, dtype)[ROWS]
    for alpha in (1.5, torch.tensor(1.3)):
        p = parsimax.entmax(x, alpha)
        index, some, count = torch.ops.parsimax._support_fwd(
            x, None if isinstance(alpha, float) else alpha, alpha if isinstance(alpha, float) else 0.0, 9
        )
        assert torch.equal(count, (p != 0).sum(-1))
        for r in range(len(x)):
            at = (p[r] != 0).nonzero()[:9, 0]
            assert torch.equal(index[r, : len(at)], at) and torch.equal(
                some[r, : len(at)].nan_to_num(), p[r, at].nan_to_num()
            )
            assert (index[r, len(at) :] == 0).all() and (some[r, len(at) :] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_topk(dtype):
    for n in (1, 5, 100):
        x = hostile(n, dtype)
        for k in (1, 3, 200):
            ours, certain = kernels.topk_sparsemax_fwd(x, k)
            true, same = reference(lambda x=x, k=k: parsimax.topk_sparsemax(x.double(), k, return_certificate=True))
            near(ours.sort(-1).values, true.sort(-1).values, what=f"{n}, {k}")  # of tied scores any may be taken
            assert torch.equal(certain, same)


def compared(f, x, parameter, tolerance, rows=slice(None)):
    """Value, and gradients by scores and parameter; NaN in the parameter's own gradient is not compared."""
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    ours = [x.clone().requires_grad_(), parameter.clone().requires_grad_()]
    wide = [x.double().requires_grad_(), parameter.double().requires_grad_()]
    p, true = f(*ours), reference(f, *wide)
    near(p, true)
    found = torch.autograd.grad(p, ours, g)
    expected = reference(lambda: torch.autograd.grad(true, wide, g.double()))
    near(found[0][rows], expected[0][rows], tolerance)
    good = p.isfinite().all(-1, keepdim=True)
    near(found[1].where(good, 0)[rows], expected[1].where(good, 0)[rows], tolerance * x.shape[-1])


@pytest.mark.parametrize("n", [1, 6, 100])
def test_budgets(n):
    compared(parsimax.budget_sparsemax, hostile(n), PARAMETERS["budget_sparsemax"][:, None], 3e-6)
    x = hostile(n, torch.bfloat16)
    near(parsimax.budget_sparsemax(x, 2.5), reference(parsimax.budget_sparsemax, x.double(), 2.5))


@pytest.mark.parametrize("budget", [0.5, 2.0, 7.3])
def test_budgets_over_plateaus(budget):
    x = budget_rows(65, budget, 16, 3).float()
    assert (parsimax.budget_sparsemax(x, budget) - budget_truth(x.double(), budget)).abs().max() <= 1e-6


@pytest.mark.parametrize("n", [1, 6, 100])
def test_rsoftmax(n):
    distinct = [0, 1, 2, 3, 7, 8]  # of ties any may have the gradient
    compared(parsimax.rsoftmax, hostile(n), PARAMETERS["rsoftmax"][:, None], 3e-5, distinct)
    x = hostile(n, torch.bfloat16)
    near(parsimax.rsoftmax(x, 0.4), reference(parsimax.rsoftmax, x.double(), 0.4))


def test_rsoftmax_over_tied_maxima(path):
    """The quantile is the maximum: softmax over the maxima, and its gradient."""
    x = torch.tensor([[0.0] * 6, [2.0, 2.0, 2.0, 1.0, 1.0, 0.0], [-inf, 1.0, 1.0, -inf, 0.0, 1.0]])
    compared(parsimax.rsoftmax, x, torch.tensor([0.5, 0.6, 0.9])[:, None], 1e-6, [0, 1, 2])


@pytest.mark.parametrize("name", ["tsoftmax", "sparsegen", "sparsehourglass", "normmax"])
def test_bent_scores(name):
    function = getattr(parsimax, name)
    for n in (1, 6, 100):
        compared(function, hostile(n), PARAMETERS[name][:, None], 3e-5)
    x, given = hostile(100, torch.bfloat16), 1.6 if name == "normmax" else 0.6
    near(function(x, given), reference(function, x.double(), given))


def test_sigsoftmax():
    for n, dtype in ((1, torch.float32), (100, torch.float32), (100, torch.bfloat16)):
        x = hostile(n, dtype)
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        ours, wide = x.clone().requires_grad_(), x.double().requires_grad_()
        p, true = parsimax.sigsoftmax(ours), reference(parsimax.sigsoftmax, wide)
        near(p, true)
        found, expected = torch.autograd.grad(p, ours, g)[0], torch.autograd.grad(true, wide, g.double())[0]
        near(found, expected, 3e-6)


def over_plateaus(n, count):
    """(p, the truth) of what is no entmax, around the thresholds that it comes down to."""
    half, two = rows(n, 1.5, count, 3), rows(n, 2.0, count, 3)
    for t in (0.01, 1.5, 40.0):
        yield parsimax.tsoftmax(half, t), cut_truth(half, t)
    for rate in (0.0, 0.5, 0.997):
        yield parsimax.rsoftmax(half, rate), quantile_truth(half, rate)
    for q in (0.1, 10.0):
        yield parsimax.sparsehourglass(two, q), hourglass_truth(two, q)
    for lam in (-4.0, 0.25, 0.9):
        x = (two.double() * (1 - lam)).float()
        yield parsimax.sparsegen(x, lam), truth(x.double() / (1 - lam), 2.0).p
    for alpha in (1.01, 1.2, 1.6, 2.0):
        x = half.clamp(-1e4, 1e4) * (1 - 1 / alpha)
        yield parsimax.normmax(x, alpha), normmax_truth(x, alpha)


@pytest.mark.parametrize("n, count", [(200, 8)] if not WHOLE else [(65, 32), (1025, 32), (4097, 16)])
def test_other_mappings_over_plateaus(n, count):
    for p, true in over_plateaus(n, count):
        assert (p.sum(-1, dtype=torch.float64) - 1).abs().max() <= 1e-6 and (p - true).abs().max() <= 1e-6


def test_other_mappings_over_plateaus_by_tiles(tiled):
    for p, true in over_plateaus(*((100, 2) if not WHOLE else (1025, 16))):
        assert (p.sum(-1, dtype=torch.float64) - 1).abs().max() <= 1e-6 and (p - true).abs().max() <= 1e-6


SOME = [0, 1, 2, 7]  # of hostile(): without ties


@pytest.mark.parametrize("name", PARAMETERS)
def test_other_mappings_by_tiles(name, tiled):
    compared(getattr(parsimax, name), hostile(100)[SOME], PARAMETERS[name][[3, 1, 2, 6], None], 3e-5)


def test_without_a_parameter_by_tiles(tiled):
    x = hostile(100)[ROWS]
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    ours, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    p, true = parsimax.sigsoftmax(ours), reference(parsimax.sigsoftmax, wide)
    near(p, true)
    near(torch.autograd.grad(p, ours, g)[0], torch.autograd.grad(true, wide, g.double())[0], 3e-6)
    for k in (1, 3):
        ours, certain = kernels.topk_sparsemax_fwd(x, k)
        true, same = reference(lambda k=k: parsimax.topk_sparsemax(x.double(), k, return_certificate=True))
        near(ours.sort(-1).values, true.sort(-1).values, what=str(k))
        assert torch.equal(certain, same)


def test_the_first_of_equal_scores_are_taken_across_tiles(tiled):
    """A tie that starts in one tile and ends in another: k of them, the first ones, as when the row is held."""
    x = torch.full((1, 150), -1.0)
    x[0, 50:120] = 0.0
    p, certain = kernels.topk_sparsemax_fwd(x, 30)
    assert torch.equal(p[0] > 0, (torch.arange(150) >= 50) & (torch.arange(150) < 80)) and not certain
    assert (p[p > 0] - 1 / 30).abs().max() <= 1e-8


@pytest.mark.parametrize("share", [1e-6, 5e-7])
def test_half_of_normmax_under_a_leader(share, monkeypatch):
    """A million scores just above the threshold: what p is off by is what that is off by, a million times."""
    monkeypatch.setattr(launch, "TILE", dict.fromkeys(launch.TILE, 131072))
    x = torch.full((1, 10**6), share - 1)
    x[0, 5] = 0.0
    p = parsimax.normmax(x, 2.0)
    assert abs(float(p.double().sum()) - 1) <= 1e-6
    assert abs(float(p[0, 5]) - float(normmax_truth(x, 2.0)[0, 5])) <= 1e-6


def everything(x):
    """Every kernel once, forward and backward."""
    alpha = torch.full((len(x), 1), 1.3, requires_grad=True)
    leaf = x.clone().requires_grad_()
    calls = [lambda x, a=a: parsimax.entmax(x, a) for a in (1.0, 1.5, 2.0, inf, 1.7)]
    calls += [lambda x: parsimax.entmax(x, alpha), lambda x: parsimax.topk_sparsemax(x, 3)]
    calls += [lambda x: parsimax.rsoftmax(x, 0.5), lambda x: parsimax.budget_sparsemax(x, 2.0), parsimax.sigsoftmax]
    calls += [lambda x: parsimax.tsoftmax(x, 1.5), lambda x: parsimax.sparsegen(x, 0.2), parsimax.sparsehourglass]
    calls += [lambda x: parsimax.normmax(x, 1.7)]
    out = []
    for call in calls:
        p = call(leaf)
        out += [p.detach(), *torch.autograd.grad(p, leaf, torch.cos(p.detach()))]
    return [*out, *parsimax.support(x, 1.5, max_size=6)]


def test_outputs_are_written_and_bits_depend_on_the_row_alone(monkeypatch, path):
    """Memory that is handed out is full of NaN: what is not written shows. A row alone has the bits it has beside
    another one, in another run."""
    x = hostile(70)[[0, 7]]
    clean = everything(x)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).view(torch.uint8).fill_(255).view(k["dtype"]))
    row = 0 if path == "held" else 1
    for one, other in zip(clean, everything(x[row : row + 1]), strict=True):
        if one.shape[:1] == x.shape[:1] and one.is_floating_point():
            width = min(one.shape[-1], other.shape[-1])  # of supports that of the largest
            assert torch.equal(one[row : row + 1, ..., :width], other[..., :width])


def test_strides_and_sizes():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    for given in (x.t(), x[:, :5], x[::2], x.reshape(2, 4, 5, 6), torch.empty(0, 5), torch.empty(3, 0)):
        near(parsimax.entmax15(given), reference(parsimax.entmax15, given.double()))
    with pytest.raises(TypeError, match=r"take .*bfloat16, torch\.float16, got torch\.float64"):
        kernels.entmax_fwd(x.double(), None, 1.5)
