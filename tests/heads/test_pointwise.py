"""PLIF and the monotonic net: increasing, invertible, differentiable; the same bits for any number of threads."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import parsimax
from cases import NAN, normal

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, in forward mode

RAW = normal(40)
WEIGHTS = (normal(6), normal(6, seed=1), normal(6, seed=2))
X = torch.cat([7 * normal(200, seed=3), torch.tensor([-20.0, 20.0, 0.0, -60.0, 60.0], dtype=torch.float64)])


def integral(x, raw, bound):
    """PLIF as the integral of its slope from 0."""
    width = 2 * bound / len(raw)
    knots = torch.linspace(-bound, bound, len(raw) + 1, dtype=torch.float64).tolist()
    knots[0], knots[-1] = -math.inf, math.inf
    total = torch.zeros_like(x)
    for left, right, slope in zip(knots, knots[1:], F.softplus(raw), strict=False):
        covered = x.clamp(max(left, -1e9), min(right, 1e9)) - min(max(0.0, left), right)
        total = total + slope * covered
    assert width > 0
    return total


def test_plif_is_the_integral_of_its_slopes():
    torch.testing.assert_close(parsimax.plif(X, RAW, 10.0), integral(X, RAW, 10.0), rtol=0, atol=1e-12)
    assert parsimax.plif(torch.zeros(1), RAW.float()).item() == 0


def test_plif_is_increasing_and_has_an_inverse():
    x = X.sort().values
    y = parsimax.plif(x, RAW)
    assert (y.diff() > 0).all()
    torch.testing.assert_close(parsimax.plif_inverse(y, RAW), x, rtol=0, atol=1e-11)
    special = parsimax.plif(torch.tensor([math.inf, -math.inf, NAN]), RAW.float())
    assert special[0] == math.inf and special[1] == -math.inf and special[2].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bound", [1e-6, 20.0, 1e6])
@pytest.mark.parametrize("raw", [-80.0, -90.0, -200.0, -800.0, -math.inf])
def test_plif_increases_however_small_its_slopes_are(raw, bound, dtype):
    """The least slope that a piece can have counts in the values at the knots as well."""
    slopes = torch.full((10,), raw, dtype=dtype)
    x = torch.arange(-500, 501).to(dtype) * (bound * 0.003)
    y = parsimax.plif(x, slopes, bound)
    assert y[0] < 0 == y[500] < y[-1] and (y.sign() == x.sign()).all()
    assert (y.diff() >= -1e-6 * y[-1]).all(), "beyond rounding"
    ends = parsimax.plif(torch.tensor([-math.inf, math.inf], dtype=dtype), slopes, bound)
    assert ends.tolist() == [-math.inf, math.inf]
    (by_slopes,) = torch.autograd.grad(parsimax.plif(x, slopes.requires_grad_(), bound).sum(), slopes)
    assert by_slopes.isfinite().all()


def test_gradients_of_plif_and_its_inverse():
    x = (X[::5] + 1e-3).requires_grad_()  # away from the knots
    raw = RAW.clone().requires_grad_()
    assert torch.autograd.gradcheck(parsimax.plif, (x, raw))
    assert torch.autograd.gradgradcheck(lambda r: parsimax.plif(x.detach(), r), (raw,))
    assert torch.autograd.gradcheck(parsimax.plif_inverse, (x, raw))
    x = (X + 1e-3).requires_grad_()
    mine = torch.autograd.grad(parsimax.plif(x, raw).square().sum(), (x, raw))
    true = torch.autograd.grad(integral(x, raw, 20.0).square().sum(), (x, raw))
    torch.testing.assert_close(mine, true, rtol=1e-10, atol=1e-10)


def test_the_monotonic_net_is_increasing_and_has_an_inverse():
    u, v = F.softplus(WEIGHTS[0]), F.softplus(WEIGHTS[2])
    x = X.clamp(-30, 30).sort().values.unique()
    y = parsimax.monotonic(x, *WEIGHTS)
    naive = (v * torch.sigmoid(u * x.unsqueeze(-1) + WEIGHTS[1])).sum(-1)
    torch.testing.assert_close(y, naive, rtol=0, atol=1e-13)
    inner = x.abs() < 12
    assert (y[inner].diff() > 0).all()
    torch.testing.assert_close(parsimax.monotonic_inverse(y[inner], *WEIGHTS), x[inner], rtol=0, atol=1e-6)
    ends = parsimax.monotonic_inverse(torch.tensor([-1.0, 0.0, v.sum() + 1, NAN], dtype=torch.float64), *WEIGHTS)
    assert ends[0] == ends[1] == -math.inf and ends[2] == math.inf and ends[3].isnan()


def test_gradients_of_the_monotonic_net_and_its_inverse():
    leaves = [normal(3, seed=4).requires_grad_(), *(w[:4].clone().requires_grad_() for w in WEIGHTS)]
    assert torch.autograd.gradcheck(parsimax.monotonic, leaves)
    assert torch.autograd.gradgradcheck(parsimax.monotonic, leaves)
    y = parsimax.monotonic(leaves[0], *leaves[1:]).detach().requires_grad_()
    assert torch.autograd.gradcheck(parsimax.monotonic_inverse, [y, *leaves[1:]], atol=1e-6)
    assert torch.autograd.gradgradcheck(parsimax.monotonic_inverse, [y, *leaves[1:]], atol=1e-5)
    inverse = partial(parsimax.monotonic_inverse, raw_scale=WEIGHTS[0], shift=WEIGHTS[1], raw_height=WEIGHTS[2])
    torch.testing.assert_close(torch.vmap(inverse)(y.detach()), inverse(y.detach()))
    torch.testing.assert_close(torch.compile(inverse, fullgraph=True, backend="eager")(y.detach()), inverse(y.detach()))


@pytest.mark.parametrize("function", ["PLIF", "Monotonic"])
def test_a_number_alone_is_a_number(function):
    f = getattr(parsimax, function)(10)
    x = torch.tensor(1.5)
    torch.testing.assert_close(f(x), f(x[None])[0])
    torch.testing.assert_close(f.inverse(f(x)), x)


@pytest.mark.parametrize("function", ["PLIF", "Monotonic"])
def test_transforms_see_the_same_function(function):
    f = getattr(parsimax, function)(10).double()
    x = normal(4, 3, seed=5)
    torch.testing.assert_close(torch.func.vmap(f)(x), f(x), rtol=0, atol=1e-12)
    _, tangent = torch.func.jvp(f, (x,), (torch.ones_like(x),))
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(tangent, torch.autograd.grad(f(leaf).sum(), leaf)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(f.inverse(f(x)), x, rtol=0, atol=1e-7)


def test_any_number_of_threads_gives_the_same_bits():
    """The function and its gradient by the slopes, with a size that no share divides."""
    torch.manual_seed(0)
    raw = torch.randn(100_000)
    x, g = 8 * torch.randn(70_003), torch.randn(70_003)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 2):
            torch.set_num_threads(threads)
            leaf, slopes = x.clone().requires_grad_(), raw.clone().requires_grad_()
            y = parsimax.plif(leaf, slopes)
            found.append((y.detach(), *torch.autograd.grad(y, (leaf, slopes), g)))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        for mine, first in zip(others, found[0], strict=True):
            assert torch.equal(mine, first)


@pytest.mark.parametrize(("kind", "more"), [("plif", {}), ("mixture-plif", {"components": 3})])
def test_a_training_repeats_bit_for_bit(kind, more):
    def trained():
        torch.manual_seed(0)
        head = parsimax.make_head(kind, 8, 700, knots=1000, **more)
        optimiser = torch.optim.SGD(head.parameters(), 1.0)
        hidden, target = torch.randn(600, 8), torch.randint(700, (600,))
        for _ in range(2):
            optimiser.zero_grad()
            head.loss(hidden, target).backward()
            optimiser.step()
        return head.state_dict()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for (name, one), other in zip(trained().items(), trained().values(), strict=True):
            assert torch.equal(one, other), name
    finally:
        torch.set_num_threads(before)


def test_float32_with_many_knots_is_near_float64():
    torch.manual_seed(0)
    raw = math.log(math.e - 1) + torch.linspace(-14, 14, 100_000).sin()
    x = torch.cat([8 * torch.randn(20_000), torch.linspace(-60, 60, 999)])
    leaves, exact = [x, raw], [x.double(), raw.double()]
    for some in (leaves, exact):
        for leaf in some:
            leaf.requires_grad_()
    mine = parsimax.plif(*leaves)
    true = parsimax.plif(*exact)
    torch.testing.assert_close(mine.double(), true, rtol=2e-6, atol=2e-6)
    up = torch.randn(len(x))
    for a, b in zip(torch.autograd.grad(mine, leaves, up), torch.autograd.grad(true, exact, up.double()), strict=True):
        assert ((a - b).norm() / b.norm()).item() < 1e-5


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="an even number from 2"):
        parsimax.plif(X, RAW[:3])
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        parsimax.PLIF(3)
    for knots in (1e5, "10"):
        with pytest.raises(TypeError, match=f"PLIF: knots must be an int, got {knots!r}"):
            parsimax.PLIF(knots)
    with pytest.raises(TypeError, match=r"plif: scores must be floating point, got torch.int64; convert them, as"):
        parsimax.plif(X.long(), RAW)
    with pytest.raises(ValueError, match="bound"):
        parsimax.PLIF(4, bound=0.0)
    with pytest.raises(TypeError, match="raw_slopes must be a floating-point tensor, got list"):
        parsimax.plif(X, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"must have one shape \(K,\), got \(6,\), \(6,\), \(5,\)"):
        parsimax.monotonic(X, WEIGHTS[0], WEIGHTS[1], WEIGHTS[2][:5])
    with pytest.raises(ValueError, match="units must be at least 1, got 0"):
        parsimax.Monotonic(0)
    with pytest.raises(TypeError, match=r"bound must be a number, got a tensor of shape \(1,\)"):
        parsimax.plif(X, RAW, torch.ones(1))


@pytest.mark.parametrize("bound", [1e-4, 1.0, 1e5])
def test_a_monotonic_net_starts_as_the_line_x_plus_bound_whatever_its_bound(bound):
    height = torch.nn.functional.softplus(parsimax.Monotonic(100, bound).raw_height.double())
    torch.testing.assert_close(height, torch.full_like(height, 2 * bound / 100), rtol=1e-5, atol=0)


def test_many_numbers_are_taken_from_a_table():
    torch.manual_seed(0)
    f, x = parsimax.Monotonic(100), 6 * torch.randn(50_000)
    with torch.no_grad():
        f.raw_scale += torch.randn(100)
    leaf, up = x.clone().requires_grad_(), torch.randn(50_000)
    y = f(leaf)
    for _ in range(2):
        mine = torch.autograd.grad(y, [leaf, *f.parameters()], up, retain_graph=True)
    exact, wide = f.double(), x.double().requires_grad_()
    true = exact(wide)
    torch.testing.assert_close(y.double(), true, rtol=1e-6, atol=1e-6)
    for a, b in zip(mine, torch.autograd.grad(true, [wide, *exact.parameters()], up.double()), strict=True):
        assert ((a - b).norm() / b.norm()).item() < 1e-5


def test_the_table_of_a_monotonic_net_is_as_near_as_rounding():
    """Where the loss of float32 takes the net from a table of cubics, however steep the net has become."""
    for steep in (0.5, 2.0, 20.0):
        torch.manual_seed(0)
        head = parsimax.MonotonicHead(6, 50)
        with torch.no_grad():
            head.function.raw_scale.add_(steep * torch.rand(100))
            head.weight.mul_(5)
        hidden, target = torch.randn(30, 6), torch.randint(50, (30,))
        mine = torch.autograd.grad(head.loss(hidden, target), [*head.parameters()])
        loss = head.loss(hidden, target)
        exact = head.double()
        true = exact.loss(hidden.double(), target)
        torch.testing.assert_close(loss.double(), true, rtol=1e-6, atol=1e-6)
        for a, b in zip(mine, torch.autograd.grad(true, [*exact.parameters()]), strict=True):
            assert ((a - b).norm() / b.norm()).item() < 2e-5
