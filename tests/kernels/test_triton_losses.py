"""The loss kernels of Triton against float64: smoothing, weights, ignored and hostile rows, by tiles; the layer."""

import math

import pytest
import torch

import interpreted
import parsimax
from parsimax.kernels import backends, dispatch
from sweep import rows, truth

interpreted.only()
from parsimax.kernels.triton import launch, linear, losses  # noqa: E402

inf, nan = math.inf, math.nan
LEARNED = torch.tensor([1.0, 1.0001, 1.9, 2.0, 3.0, inf, 0.5, 1.5])


def reference(f, *args):
    with dispatch.use("torch"):
        return f(*args)


def hostile(n, dtype=torch.float32):
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(8, n, generator=draw) * 2
    target = torch.randint(n, (8,), generator=draw)
    target[7] = -100
    x[6, target[6]] = 40  # a sure answer has a loss of exactly 0
    if n > 3:
        x[1, (target[1] + 1) % n], x[3, (target[3] + 1) % n] = -inf, nan
        x[2, target[2]] = -inf
        x[4] = -inf
    return x.to(dtype), target


def both(loss, inputs):
    """Loss and gradients, ours and in float64."""
    ours = [t.clone().requires_grad_() for t in inputs]
    wide = [t.double().requires_grad_() for t in inputs]
    draw = torch.Generator().manual_seed(0)
    found, true = loss(*ours), reference(loss, *wide)
    g = torch.rand(found.shape, generator=draw) + 0.5
    own = torch.autograd.grad(found, ours, g.to(found.dtype))
    other = reference(lambda: torch.autograd.grad(true, wide, g.to(found.dtype).double()))
    return [found, *own], [true, *other]


def near(ours, true, dtype, tolerance=3e-6):
    for one, other in zip(ours, true, strict=True):
        same = (one.double() == other) | (one.isnan() & other.isnan())  # infinities too
        ulp = torch.finfo(dtype).eps if dtype != torch.float32 else 0
        off = (one.double() - other).abs() - (tolerance + ulp) * (1 + other.abs())
        assert (same | (off <= 0)).all(), (one, other)


@pytest.fixture
def tiled(monkeypatch):
    monkeypatch.setattr(launch, "SCORES", {**launch.SCORES, "light": 0, "heavy": 0, "backward": 0})
    monkeypatch.setattr(launch, "TILE", dict.fromkeys(launch.TILE, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses(dtype, smoothing):
    for n in (1, 7, 130):
        x, target = hostile(n, dtype)
        for alpha in (1.0, 1.5, 2.0, 1.3, inf) if dtype == torch.float32 else (1.5, 1.3):

            def loss(x, target=target, alpha=alpha):
                return parsimax.entmax_loss(x, target, alpha, reduction="none", label_smoothing=smoothing)

            near(*both(loss, [x]), dtype)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_gradient_by_alpha(smoothing):
    x, target = hostile(50)

    def loss(x, alpha):
        return parsimax.entmax_loss(x, target, alpha, reduction="none", label_smoothing=smoothing)

    keep = [0, 1, 5, 6, 7]  # rows without NaN and infinities
    near(*[[t[keep] for t in side] for side in both(loss, [x, LEARNED[:, None]])], torch.float32, 1e-5)


def test_class_weights_with_smoothing():
    x, target = hostile(50)
    weight = torch.rand(50, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    weight[[int(target[2]), int(target[1] + 1) % 50]] = 0  # what is forbidden has no weight: the loss is finite

    def loss(x):
        return parsimax.entmax_loss(x, target, 1.4, weight=weight.to(x), reduction="none", label_smoothing=0.3)

    near(*both(loss, [x]), torch.float32)
    every, plain = weight.double().repeat_interleave(2), both(loss, [x])[0]
    every[1::2] = 9
    weight = every[::2]  # in float64 it goes to the kernel as it lies in memory

    def strided(x):
        return parsimax.entmax_loss(x, target, 1.4, weight=weight, reduction="none", label_smoothing=0.3)

    near(both(strided, [x])[0], [t.double() for t in plain], torch.float32)


@pytest.mark.parametrize("path", ["held", "tiled"])
def test_target_probabilities(path, request):
    """Of each row its own, rows without any among them; weights and smoothing are in the coefficients."""
    if path == "tiled":
        request.getfixturevalue("tiled")
    x, _ = hostile(50)
    y = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)).where(x > -inf, 0)
    y[5] = 0
    weight = torch.linspace(0.5, 2, 50)
    for alpha in (1.5, LEARNED[:, None]) if path == "held" else (1.3,):
        learned = isinstance(alpha, torch.Tensor)

        def loss(x, *more, alpha=alpha):
            given = {"weight": weight.to(x)} if path == "held" else {"label_smoothing": 0.0}
            return parsimax.entmax_loss(x, y.to(x), *(more or (alpha,)), reduction="none", **given)

        keep = [0, 1, 5, 6, 7] if learned else slice(None)
        sides = both(loss, [x, alpha] if learned else [x])
        near(*[[t[keep] for t in side] for side in sides], torch.float32, 1e-5)
    x = x.bfloat16()
    near(*both(lambda x: parsimax.entmax15_loss(x, y.bfloat16().to(x), reduction="none"), [x]), torch.bfloat16)


def test_by_tiles(tiled):
    x, target = hostile(150)
    for alpha in (1.5, 1.3):

        def loss(x, alpha=alpha):
            return parsimax.entmax_loss(x, target, alpha, reduction="none", label_smoothing=0.1)

        near(*both(loss, [x]), torch.float32)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
def test_plateaus_under_leaders(alpha):
    x = rows(200, alpha, 8, 7)
    t, target = truth(x, alpha), torch.arange(8)
    leaf = x.clone().requires_grad_()
    loss = parsimax.entmax_loss(leaf, target, alpha, reduction="none")
    expected = t.loss(target)
    assert ((loss - expected).abs() <= 2e-6 * (1 + expected.abs())).all()
    (dx,) = torch.autograd.grad(loss.sum(), leaf)
    good = (1 + t.b * t.z / t.E).abs().amin(-1) > 1e-3 if alpha > 2 else slice(None)
    assert ((dx - t.p + torch.nn.functional.one_hot(target, 200)).abs()[good] <= 2e-6).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}, {"label_smoothing": 0.1}], ids=str)
def test_the_layer_with_its_loss(dtype, options, monkeypatch):
    """Three chunks of logits, a bias, ignored rows, a learned α."""
    monkeypatch.setattr(linear, "LOGITS", 16 * 37)
    draw = torch.Generator().manual_seed(0)
    shapes = [(40, 12), (37, 12), (37,)]
    tensors = [torch.randn(*shape, generator=draw).to(dtype) for shape in shapes]
    target = torch.randint(37, (40,), generator=draw)
    target[::9] = -100
    alpha = torch.linspace(1.1, 1.9, 40)[:, None]

    def loss(hidden, weight, bias, alpha):
        return parsimax.linear_entmax_loss(hidden, weight, target, alpha, bias=bias, reduction="none", **options)

    ours, true = both(loss, [*tensors, alpha])
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2  # the gradient of the logits is rounded for the products
    near(ours, true, dtype, tolerance)


def test_a_backward_pass_under_autocast_is_in_the_precision_of_the_layer():
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 12, generator=draw).requires_grad_() for n in (20, 37))
    loss = parsimax.linear_entmax_loss(hidden, weight, torch.arange(20))
    true = torch.autograd.grad(loss, [hidden, weight], retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(loss, [hidden, weight])
    assert all(map(torch.equal, found, true))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}, {"label_smoothing": 0.1}], ids=str)
def test_the_layer_with_target_probabilities(dtype, options, monkeypatch):
    """Three chunks of logits, a bias, class weights, rows without a target, a learned α. No logits are kept."""
    monkeypatch.setattr(linear, "LOGITS", 16 * 37)
    # The C++ kernel, whose place the operators have here, has no such targets.
    monkeypatch.setitem(backends.CPU.serves, "linear_entmax_loss", backends.TRITON.serves["linear_entmax_loss"])
    seen = []
    rows = linear.rows_fwd
    monkeypatch.setattr(linear, "rows_fwd", lambda z, *rest: seen.append(z.shape) or rows(z, *rest))
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(*shape, generator=draw).to(dtype) for shape in [(40, 12), (37, 12), (37,)]]
    target = torch.rand(40, 37, generator=draw).pow(8)
    target /= target.sum(-1, keepdim=True)
    target[::9] = 0
    alpha, weights = torch.linspace(1.1, 1.9, 40)[:, None], torch.linspace(0.5, 2, 37)

    def loss(hidden, weight, bias, alpha):
        given = {"bias": bias, "class_weight": weights, "reduction": "none", **options}
        return parsimax.linear_entmax_loss(hidden, weight, target, alpha, **given)

    ours, true = both(loss, [*tensors, alpha])
    near(ours, true, dtype, 1e-5 if dtype == torch.float32 else 3e-2)
    assert seen == [(16, 37), (16, 37), (8, 37)] * 2  # forward and backward


def test_outputs_are_written_and_bits_repeat(monkeypatch):
    x, target = hostile(70)
    alpha = torch.full((8, 1), 1.3)

    def run():
        leaves = [x.clone().requires_grad_(), alpha.clone().requires_grad_()]
        loss = parsimax.entmax_loss(leaves[0], target, leaves[1], reduction="none", label_smoothing=0.1)
        return [loss.detach(), *torch.autograd.grad(loss, leaves, torch.ones_like(loss))]

    clean, empty = run(), torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).view(torch.uint8).fill_(255).view(k["dtype"]))
    for one, other in zip(clean, run(), strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("value", [1.5, 1.3])
def test_a_target_that_is_no_class_is_nan_and_reads_nothing_else(value, smoothing):
    """On a GPU nothing is raised without waiting for it. -1 is a row that does not count."""
    n = 9
    x = torch.randn(6, n, generator=torch.Generator().manual_seed(0))
    target, weight = torch.tensor([3, 9, -2, 10**12, -1, 8]), torch.rand(n, dtype=torch.float64) if smoothing else None
    loss, *state = losses.loss_fwd(x, target, None, value, smoothing, weight)
    dx = losses.loss_bwd(x, target, torch.ones(6), None, value, smoothing, weight, *state)[0]
    assert loss.isnan().tolist() == [False, True, True, True, False, False]
    assert dx.isnan().all(-1).tolist() == dx.isnan().any(-1).tolist() == loss.isnan().tolist()
    assert loss[4] == 0 and not dx[4].any()
    good = target.clamp(0, n - 1)
    right = losses.loss_fwd(x, good, None, value, smoothing, weight)[0]
    assert torch.equal(loss[[0, 5]], right[[0, 5]])
