"""The losses: the contract of ``F.cross_entropy`` at α = 1, and what they are at every other α."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F

import oracle
import parsimax
from cases import INF, NAN, gradient, normal
from parsimax import entmax_loss

CLASSES = 5
LAYOUTS = {"C": (), "N, C": (4,), "N, C, d": (3, 2), "N, C, d1, d2": (2, 3, 2)}
REDUCTIONS = ["mean", "sum", "none"]
ALPHAS = [0.5, 0.99, 1.0, 1.01, 1.25, 1.5, 1.75, 2.0, 2.5, 4.0]


def batch(layout: str, soft: bool, dtype=torch.float64):
    lead = LAYOUTS[layout]
    shape = (*lead[:1], CLASSES, *lead[1:])
    dim = 1 if lead else 0
    scores = 2 * normal(*shape, dtype=dtype)
    if soft:
        return scores, torch.softmax(normal(*shape, seed=1), dim).to(dtype)
    return scores, torch.randint(CLASSES, lead, generator=torch.Generator().manual_seed(2))


def one(kind: str, dtype=torch.float64):
    return 1.0 if kind == "float" else torch.ones((), dtype=dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", ["indices", "probabilities"])
@pytest.mark.parametrize("alpha", ["float", "tensor"])
def test_at_one_it_is_cross_entropy(layout, target, alpha):
    """Every combination of the options, with the gradients by scores and by target probabilities."""
    scores, y = batch(layout, target == "probabilities")
    weights = [None, torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)]
    ignored = [-100, 0, 3] if target == "indices" else [-100]
    for weight, ignore, smoothing, reduction in itertools.product(weights, ignored, [0.0, 0.1, 1.0], REDUCTIONS):
        options = {"weight": weight, "ignore_index": ignore, "label_smoothing": smoothing, "reduction": reduction}
        inputs = (scores, y) if y.is_floating_point() else (scores,)

        def ours(x, q=y, options=options):
            return entmax_loss(x, q, one(alpha), **options)

        def theirs(x, q=y, options=options):
            return F.cross_entropy(x, q, **options)

        value, truth = ours(*inputs), theirs(*inputs)
        assert value.shape == truth.shape and value.dtype == truth.dtype
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12, equal_nan=True, msg=str(options))
        for mine, their in zip(gradient(ours, *inputs), gradient(theirs, *inputs), strict=True):
            torch.testing.assert_close(mine, their, rtol=1e-12, atol=1e-12, equal_nan=True, msg=str(options))


OURS = {kind: functools.partial(entmax_loss, alpha=one(kind)) for kind in ("float", "tensor")}


@pytest.mark.parametrize("alpha", ["float", "tensor"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_empty_and_ignored_batches(reduction, alpha):
    everything_ignored = torch.full((3,), -100)
    for x, y in [
        (normal(3, CLASSES), everything_ignored),
        (normal(CLASSES), torch.tensor(-100)),
        (normal(0, CLASSES), torch.zeros(0, dtype=torch.long)),
        (normal(0, CLASSES), torch.zeros(0, CLASSES, dtype=torch.float64)),
        (normal(0, CLASSES, 2), torch.zeros(0, 2, dtype=torch.long)),
        (normal(2, CLASSES, 0), torch.zeros(2, 0, dtype=torch.long)),
    ]:
        ours = entmax_loss(x, y, one(alpha), reduction=reduction)
        theirs = F.cross_entropy(x, y, reduction=reduction)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        if x.numel():
            mine, their = (
                gradient(lambda t, f=f, y=y: f(t, y, reduction=reduction), x)[0] for f in (OURS[alpha], F.cross_entropy)
            )
            torch.testing.assert_close(mine, their, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", [-1, CLASSES, CLASSES + 7, -99])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_targets_out_of_range(layout, bad):
    scores, y = batch(layout, soft=False)
    y.view(-1)[0] = bad
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        F.cross_entropy(scores, y)
    with pytest.raises(theirs.type, match=rf"{bad}.*out of bounds"):
        entmax_loss(scores, y)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_values_are_those_of_the_oracle(alpha):
    for label, row in oracle.rows().items():
        allowed = [c for c, score in enumerate(row) if score != -INF]
        if not allowed:
            continue
        x = torch.tensor(row, dtype=torch.float64)
        conjugate = oracle.conjugate(row, alpha)
        exact = torch.tensor([float(conjugate - oracle.mp.mpf(row[c])) for c in allowed], dtype=torch.float64)
        rows = x.expand(len(allowed), -1)
        for a in (alpha, torch.full((len(allowed), 1), alpha, dtype=torch.float64)):
            ours = entmax_loss(rows, torch.tensor(allowed), a, reduction="none")
            torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12, msg=f"{label}: {ours} not {exact}")
        ours = entmax_loss(rows.float(), torch.tensor(allowed), alpha, reduction="none")
        torch.testing.assert_close(ours.double(), exact, rtol=2e-7, atol=2e-6, msg=f"{label}, float32")


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zero_exactly_at_the_margin(alpha, dtype):
    margin = 1 / (alpha - 1)
    gaps = torch.tensor([margin, margin * 1.001, margin + 10, 1e9, margin * 0.97], dtype=dtype)
    scores = torch.zeros(5, 4, dtype=dtype)
    scores[:, 2] = gaps
    for a in (alpha, torch.tensor(alpha, dtype=torch.float64)):
        loss = entmax_loss(scores, torch.full((5,), 2), a, reduction="none")
        assert (loss[:4] == 0).all() and loss[4] > 1e-10
        (g,) = gradient(lambda t, a=a: entmax_loss(t, torch.full((5,), 2), a, reduction="none"), scores)
        assert (g[1:4].abs() <= 1e-15).all() and (g[4].abs() > 1e-10).all()
    assert (entmax_loss(scores, torch.full((5,), 2), 1.0, reduction="none")[:2] > 0).all()


@pytest.mark.parametrize("alpha", [*ALPHAS, INF])
def test_the_gradient_is_p_minus_y(alpha):
    x, y = normal(6, CLASSES), torch.arange(6) % CLASSES
    q = torch.softmax(normal(6, CLASSES, seed=1), -1)
    p = parsimax.entmax(x, alpha)
    for target, point in [(y, F.one_hot(y, CLASSES)), (q, q)]:
        for a in (alpha, torch.tensor(alpha, dtype=torch.float64)):
            (g,) = gradient(lambda t, a=a, y=target: entmax_loss(t, y, a, reduction="sum"), x, weights=torch.ones(()))
            torch.testing.assert_close(g, p - point, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradient_by_alpha(dtype):
    """Against differences of the oracle, across 1 too."""
    rows = [[0.5, -0.25, 1.5, 0.0], [0.1, 0.2, 0.3, 0.25], [3.0, -2.0, 0.0, 2.5]]
    x, y = torch.tensor(rows, dtype=dtype), torch.tensor([0, 3, 1])
    for alpha in [0.5, 0.9, 0.999, 1 - 1e-6, 1.0, 1 + 1e-6, 1.0005, 1.002, 1.3, 1.5, 2.0, 2.5, 4.0]:
        a = torch.full((3, 1), alpha, dtype=torch.float64)
        g = gradient(lambda a: entmax_loss(x, y, a, reduction="none"), a, weights=torch.ones(3, dtype=dtype))[0]
        h = oracle.mp.mpf(10) ** -20
        exact = [
            (oracle.conjugate(x[i].tolist(), alpha + h) - oracle.conjugate(x[i].tolist(), alpha - h)) / (2 * h)
            for i in range(3)
        ]
        exact = torch.tensor([[float(e)] for e in exact], dtype=torch.float64)
        torch.testing.assert_close(g, exact, rtol=1e-5 if dtype == torch.float32 else 1e-8, atol=1e-9)


@pytest.mark.parametrize("alpha", [*ALPHAS, INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_infinities_and_nan(alpha, dtype):
    x, y = normal(5, CLASSES, dtype=dtype), torch.zeros(5, dtype=torch.long)
    plain = entmax_loss(x, y, alpha, reduction="none")
    x[1, 3], x[2, 0], x[3, 2], x[4, 1] = -INF, -INF, NAN, INF
    loss = entmax_loss(x, y, alpha, reduction="none")
    assert torch.equal(loss[0], plain[0]) and loss[1].isfinite()
    assert loss[2] == INF and loss[3].isnan() and loss[4].isnan()
    (g,) = gradient(lambda t: entmax_loss(t, y[:2], alpha, reduction="none"), x[:2])
    assert g.isfinite().all() and g[1, 3] == 0
    for bad in (x[3:], torch.full_like(x[3:], NAN)):  # a loss of NaN must not come with a gradient that looks right
        (g,) = gradient(lambda t: entmax_loss(t, y[3:], alpha, reduction="none"), bad)
        assert g.isnan().any(-1).all()
    smooth = entmax_loss(x[1:2], y[1:2], alpha, label_smoothing=0.1)
    assert smooth == INF  # the forbidden class has a share of the target
    soft = entmax_loss(x[1], torch.tensor([0.5, 0.5, 0, 0, 0], dtype=dtype), alpha)
    assert soft.isfinite()
    without = entmax_loss(
        x[2], torch.tensor(0), alpha, weight=torch.tensor([0.0, 1, 1, 1, 1]).to(dtype), reduction="sum"
    )
    assert without == 0  # a coefficient of zero is zero, never 0·∞


@pytest.mark.parametrize("alpha", [*ALPHAS, INF])
def test_far_out(alpha):
    """Scores of 1e9, and offsets that cost float32 nothing but the rounding of its input."""
    x, y = torch.tensor([[1e9, 0.0, -1e9]]), torch.tensor([0])
    assert entmax_loss(x, y, alpha) == 0 or alpha < 1
    torch.testing.assert_close(
        entmax_loss(x, torch.tensor([2]), alpha).double(), torch.tensor(2e9).double(), rtol=1e-6, atol=0
    )
    near = (normal(20, 9) * 8).round().float() / 64  # on a grid that the offset leaves exact
    target = torch.arange(20) % 9
    for offset in (1e5, -1e5):
        moved = entmax_loss(near + offset, target, alpha, reduction="none")
        torch.testing.assert_close(moved, entmax_loss(near, target, alpha, reduction="none"), rtol=0, atol=1e-6)


def test_the_siblings_are_the_family_at_their_alpha():
    options = {"weight": torch.rand(CLASSES).double(), "label_smoothing": 0.1, "reduction": "none"}
    for layout, soft in itertools.product(LAYOUTS, [False, True]):
        x, y = batch(layout, soft)
        options["ignore_index"] = -100 if soft else 2
        for alpha, sibling in [(2.0, parsimax.sparsemax_loss), (1.5, parsimax.entmax15_loss)]:
            same = entmax_loss(x, y, torch.tensor(alpha, dtype=torch.float64), **options)
            torch.testing.assert_close(sibling(x, y, **options), same, rtol=0, atol=1e-12)


def test_alpha_for_each_row():
    x, y = batch("N, C, d", soft=False)
    alpha = torch.tensor([[1.2, 1.0], [2.0, 3.0], [0.5, 1.7]], dtype=torch.float64).unsqueeze(1)
    loss = entmax_loss(x, y, alpha, reduction="none")
    for n, d in itertools.product(range(3), range(2)):
        own = entmax_loss(x[n, :, d], y[n, d], alpha[n, 0, d].item())
        torch.testing.assert_close(loss[n, d], own, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["EntmaxLoss", "Entmax15Loss", "SparsemaxLoss"])
def test_modules(name):
    if not hasattr(parsimax, name):
        pytest.skip(f"{name} is not there yet")
    function = {
        "EntmaxLoss": entmax_loss,
        "Entmax15Loss": parsimax.entmax15_loss,
        "SparsemaxLoss": parsimax.sparsemax_loss,
    }[name]
    options = {"weight": torch.rand(CLASSES).double(), "label_smoothing": 0.1, "reduction": "sum", "ignore_index": 2}
    x, y = batch("N, C", soft=False)
    assert torch.equal(getattr(parsimax, name)()(x, y), function(x, y))
    module = getattr(parsimax, name)(**options)
    assert torch.equal(module(x, y), function(x, y, **options))
    assert repr(module).startswith(f"{name}(") and "label_smoothing=0.1" in repr(module)


def test_probabilities_have_no_ignored_class():
    x, y = batch("N, C", soft=True)
    with pytest.raises(RuntimeError):
        F.cross_entropy(x, y, ignore_index=1)
    with pytest.raises(ValueError, match="ignore_index"):
        entmax_loss(x, y, ignore_index=1)


def test_a_coefficient_of_zero_gives_zero():
    x, inf = torch.tensor([[-INF, 1.0, 0.0]]), torch.tensor(INF)
    assert torch.equal(entmax_loss(x, torch.tensor([0]), label_smoothing=1.0), inf)
    none = torch.tensor([1.0, 0.0, 1.0])
    loss = parsimax.fenchel_young_loss(
        x, torch.tensor([1]), "sparsemax", weight=none, label_smoothing=0.1, reduction="sum"
    )
    assert loss == 0
    target = torch.tensor([[0.0, 0.5, 0.5]], requires_grad=True)
    entmax_loss(x, target).backward()
    assert target.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_mean_does_not_depend_on_the_default_dtype(dtype):
    x, y = torch.randn(70000, 3), torch.randint(3, (70000,))
    expected = F.cross_entropy(x, y)
    torch.set_default_dtype(dtype)
    try:
        torch.testing.assert_close(entmax_loss(x, y, 1.0), expected, rtol=1e-5, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)
