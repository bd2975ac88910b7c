"""The formulas in float32, which GPUs without kernels run, forced on the CPU: structured rows, derivatives, the choice.

The contract and fifty digits hold for them too: ``IN_FLOAT32`` in ``tests/conftest.py``. Parameters are float32 there,
and the truth takes them as they are.
"""

import os

import pytest
import torch

import parsimax
from functions import LOSSES, MAPPINGS
from parsimax import info, structured
from parsimax.engine import precision, sums
from parsimax.engine.precision import formula_dtype
from parsimax.kernels import backends, dispatch
from parsimax.structured.topk import listed
from sweep import (
    ALPHAS,
    budget_rows,
    budget_truth,
    cut_truth,
    hourglass_truth,
    low_plateau,
    near,
    normmax_truth,
    quantile_truth,
    rows,
    truth,
)

FUNCTIONS = [f for f in (*MAPPINGS, *LOSSES) if not f.name.startswith("linear")]  # its layer is float64


@pytest.fixture
def lean():
    with dispatch.use("lean"):
        yield


def single(value: float) -> float:
    return float(torch.tensor(value))


WHOLE = int(os.environ.get("PARSIMAX_KERNEL_CASES", "500")) >= 10_000  # make test-kernels
LENGTHS = (17, 129, 1025, 4096, 32000)
CASES = [(n, single(alpha)) for k, n in enumerate(LENGTHS) for alpha in ALPHAS[k :: 1 if WHOLE else 8]]


@pytest.mark.parametrize(("n", "alpha"), CASES)
def test_plateaus_under_leaders(n, alpha, lean):
    """As test_sweep.py has them for kernels: p, its sum, gradients by scores and α, the loss, attention."""
    count = 16 if n < 10_000 else 4
    x = rows(n, alpha, count, 1000 * n)
    t = truth(x, alpha)
    settled = (1 + t.b * t.z / t.E).abs().amin(-1) > 1e-3 if alpha > 2 else slice(None)
    leaves = [x.clone().requires_grad_(), torch.full((count, 1), alpha, requires_grad=True)]
    p = parsimax.entmax(*leaves)
    assert (p.sum(-1, dtype=torch.float64) - 1).abs().max() <= 1e-6
    near(p, t.p, 2e-6, "p", settled)
    target = torch.arange(count)
    expected = t.loss(target)
    loss = parsimax.entmax_loss(leaves[0], target, alpha, reduction="none")
    near(loss, expected, 2e-6 * (1 + expected.abs()), "loss")
    (dx,) = torch.autograd.grad(loss.sum(), leaves[0])
    near(dx, t.p - torch.nn.functional.one_hot(target, n), 4e-6, "its gradient", settled)
    if alpha <= 2:
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(n))
        dx, da, slack_x, slack_a = t.derivatives(g.double())
        ours, by_alpha = torch.autograd.grad(p, leaves, g)
        near(ours, dx, 2e-5 * g.abs().amax() + slack_x, "dx", t.clear)
        scale = g.abs().amax() * (1 + torch.tensor(n).log())
        near(by_alpha[:, 0], da, 2e-5 * scale + slack_a, "dα", t.clear)
    if n < 2000:
        v = torch.randn(n, 8, generator=torch.Generator().manual_seed(n))
        out = parsimax.entmax_attention(torch.zeros(count, 8), 0 * v, v, alpha=alpha, attn_mask=x)
        near(out, t.p @ v.double(), 4e-6 * v.abs().max(), "attention", settled)


@pytest.mark.parametrize("n", [65, 1024, 32000] if WHOLE else [1024])
def test_other_mappings(n, lean):
    count = 8 if n < 10_000 else 4
    half, two = rows(n, 1.5, count, n), rows(n, 2.0, count, n)
    answers = []
    for lam in map(single, (-4.0, -0.3, 0.9)):
        x = (two.double() * (1 - lam)).float()
        answers.append((f"sparsegen {lam}", parsimax.sparsegen(x, lam), truth(x.double() / (1 - lam), 2.0).p))
    for q in map(single, (0.1, 10.0)):
        answers.append((f"sparsehourglass {q}", parsimax.sparsehourglass(two, q), hourglass_truth(two, q)))
    for alpha in map(single, (1.2, 1.6, 2.0)):
        x = half.clamp(-1e4, 1e4) * (1 - 1 / alpha)
        answers.append((f"normmax {alpha}", parsimax.normmax(x, alpha), normmax_truth(x, alpha)))
    for t in map(single, (0.01, 1.5, 40.0)):
        answers.append((f"tsoftmax {t}", parsimax.tsoftmax(half, t), cut_truth(half, t)))
    for rate in map(single, (0.0, 0.1, 0.5, 0.9, 0.997, 1.0)):
        answers.append((f"rsoftmax {rate}", parsimax.rsoftmax(half, rate), quantile_truth(half, rate)))
    for what, p, true in answers:
        assert (p.sum(-1, dtype=torch.float64) - 1).abs().max() <= 1e-6, what
        near(p, true, 2e-6, what)
    for budget in map(single, (0.5, 2.0, 7.3)):
        x = budget_rows(n, budget, count, n).float()
        near(parsimax.budget_sparsemax(x, budget), budget_truth(x.double(), budget), 2e-6, f"budget {budget}")


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("n", [20, 300, 4096])
def test_normmax_with_a_low_plateau(n, alpha, lean):
    x = low_plateau(n)
    near(parsimax.normmax(x, alpha), normmax_truth(x, alpha), 2e-6, "normmax")


@pytest.mark.parametrize("large", [1e3, 1e5, 1e9])
def test_a_budget_is_shared_beside_one_score_that_is_far_above(large, lean):
    x = torch.tensor([large, 0.123, 0.456, 0.789])
    near(parsimax.budget_sparsemax(x, 2.0), budget_truth(x.double(), 2.0), 2e-6, "budget 2")


def in_float32(function):
    return tuple(t.float() if t.is_floating_point() else t for t in function.inputs)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
def test_every_derivative(function, lean):
    """Reverse, forward, and forward over reverse, beside the formula in float64; ``scalar`` bends what is linear."""
    inputs, wide = in_float32(function), function.inputs
    at = function.argnums

    def all_of(given):
        tangents = [torch.cos(torch.arange(given[i].numel())).view(given[i].shape).to(given[i].dtype) for i in at]

        def scalar(*chosen):
            out = function.call(*(dict(zip(at, chosen, strict=True)).get(i, t) for i, t in enumerate(given)))
            return (out**3).sum() + (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum()

        chosen = tuple(given[i] for i in at)
        grads, changes = torch.func.jvp(torch.func.grad(scalar, tuple(range(len(at)))), chosen, tuple(tangents))
        leaves = [t.clone().requires_grad_() for t in chosen]
        return [*torch.autograd.grad(scalar(*leaves), leaves), *grads, *changes]

    ours = all_of(inputs)
    with dispatch.use("torch"):
        true = all_of(wide)
    for one, other in zip(ours, true, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("backend", ["lean", "torch"])
@pytest.mark.parametrize("dtype, tiny", [(torch.float32, 1e-40), (torch.float64, 1e-320)])
def test_rsoftmax_of_the_smallest_numbers_has_a_gradient(dtype, tiny, backend, detach):
    """The inverse of the distance of the cut overflows, where p is one-hot and does not change."""
    for row, rate in (([1, -2], 0.0), ([1, -2, 3], 0.5)):
        scores = (torch.tensor(row, dtype=dtype) * tiny).requires_grad_()
        own = torch.tensor(rate, dtype=dtype, requires_grad=True)
        with dispatch.use(backend):
            p = parsimax.rsoftmax(scores, own, detach_threshold=detach)
            p[0].backward()
        assert p.tolist() == [float(score == max(row)) for score in row]
        assert scores.grad.tolist() == [0] * len(row) and own.grad.item() == 0


@pytest.mark.parametrize("detach", [False, True])
def test_rsoftmax_is_the_same_beside_the_unit_of_small_numbers(detach):
    """Where the cut is nearer than 2^-100 it is measured otherwise; the weights and their slopes are the same."""
    for size in (2.0**-99, 2.0**-101, 2.0**-120):
        row = torch.tensor([0.0, -3.0, 4.0, 1.5], dtype=torch.float64) * size
        found = {}
        for backend, x in (("lean", row.float()), ("torch", row)):
            x.requires_grad_()
            with dispatch.use(backend):
                p = parsimax.rsoftmax(x, 0.4, detach_threshold=detach)
            p[2].backward()
            found[backend] = p.detach().double(), x.grad.double() * size
        torch.testing.assert_close(found["lean"], found["torch"], rtol=1e-5, atol=1e-6)


def test_compiled_code_is_lean_too(lean):
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(lambda x: parsimax.rsoftmax(x, 0.3), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), parsimax.rsoftmax(x, 0.3), rtol=0, atol=1e-6)


def test_the_backward_pass_keeps_to_the_choice_of_the_forward_pass():
    x = torch.randn(4, 300).requires_grad_()
    alpha = torch.full((4, 1), 1.3, requires_grad=True)
    with dispatch.use("lean"):
        p = parsimax.entmax(x, alpha)
        inside = torch.autograd.grad(p, [x, alpha], torch.cos(p.detach()), retain_graph=True)
    outside = torch.autograd.grad(p, [x, alpha], torch.cos(p.detach()))
    assert all(map(torch.equal, inside, outside))


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Raises where float64 is made, of ``least`` numbers or more; not while ``away`` is true."""

    def __init__(self, least):
        super().__init__()
        self.least, self.away = least, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            made = isinstance(t, torch.Tensor) and t.dtype == torch.float64 and not self.away
            if made and t.untyped_storage().nbytes() >= 8 * self.least:  # an expanded view holds no more
                raise AssertionError(f"{func} made {tuple(t.shape)} numbers of float64")
        return out


ROWS, N = 3, 40
HALF = torch.arange(ROWS * N).view(ROWS, N).remainder(2).float()  # several labels a row
LOSSES_IN_FLOAT32 = {
    "classes": lambda x, y: parsimax.entmax_loss(x, y, 1.3),
    "smoothed": lambda x, y: parsimax.entmax15_loss(x, y, label_smoothing=0.1),
    "weighted": lambda x, y: parsimax.sparsemax_loss(x, y, weight=torch.linspace(0, 1, N)),
    "target probabilities": lambda x, y: parsimax.entmax_loss(x, HALF / HALF.sum(-1, keepdim=True)),
    "fenchel_young_loss": lambda x, y: parsimax.fenchel_young_loss(x, y, "sparsegen", lam=0.3),
    "log_entmax": lambda x, y: parsimax.log_entmax(x, floor=1e-3),
    **{
        f"multilabel_loss, {name}": lambda x, y, name=name: parsimax.multilabel_loss(x, HALF, name)
        for name in ("sparsemax", "softmax", "entmax", "sigsoftmax", "sparsehourglass")
    },
    "linear_entmax_loss": lambda x, y: parsimax.linear_entmax_loss(x, x.detach()[:, :N].repeat(9, 1), y),
}


@pytest.mark.parametrize("absent", [True, False], ids=["no float64", "slow float64"])
def test_nothing_on_the_way_is_float64(absent, lean, monkeypatch):
    """MPS would refuse it. Where it is merely slow, parameters and one number a row or class may be."""
    if absent:
        monkeypatch.setattr(precision, "has_float64", lambda device: False)
    x = torch.randn(ROWS, N, requires_grad=True)
    y, v = torch.arange(ROWS), torch.randn(N, 4)
    with Seen(0 if absent else N + 1):
        for entry in parsimax.mappings.REGISTRY.values():
            more = () if entry.setting is None else (entry.setting.example,)
            torch.autograd.grad(entry.function(x, *more).square().sum(), x)
        torch.autograd.grad(parsimax.entmax_attention(x[:, :4], v, v, attn_mask=x).sum(), x)
        for loss in LOSSES_IN_FLOAT32.values():
            torch.autograd.grad(loss(x, y).sum(), x)


@pytest.fixture
def elsewhere(monkeypatch):
    """A CPU that passes for a device without float64: only what was sent away may compute in it."""
    seen = Seen(0)
    monkeypatch.setattr(precision, "has_float64", lambda device: False)
    whole = precision.moved

    def moved(thing, device, narrow=False):
        out, seen.away = whole(thing, device, narrow), not narrow
        return out

    monkeypatch.setattr(precision, "moved", moved)
    return seen


SLOPES, NET = torch.linspace(-2, 2, 8), [torch.linspace(-1, 1, 5), torch.linspace(-2, 2, 5), torch.zeros(5)]
IN_FLOAT64 = {
    "plif": lambda x: parsimax.plif(x, SLOPES),
    "plif_inverse": lambda x: parsimax.plif_inverse(x, SLOPES),
    "monotonic": lambda x: parsimax.monotonic(x, *NET),
    "monotonic_inverse": lambda x: parsimax.monotonic_inverse(x.sigmoid(), *NET),
    "sparsemap": lambda x: parsimax.sparsemap(x, structured.Assignment()).marginals,
    "sparsemap, bits": lambda x: parsimax.sparsemap(x, structured.Bits()).probabilities,
    "topk": lambda x: structured.topk(x, structured.OneOf(), 2).probabilities,
    "listed": lambda x: listed(x, structured.OneOf(), parsimax.entmax15, 9).marginals,
    "sparsemap_loss": lambda x: parsimax.sparsemap_loss(x, torch.tensor([1, 2, 0]), structured.Assignment()),
    "FactorGraph": lambda x: structured.FactorGraph(3).add(structured.Xor(), [0, 1, 2]).solve(x).marginals,
}


@pytest.mark.parametrize("name", IN_FLOAT64)
def test_what_needs_float64_goes_where_it_is(name, elsewhere):
    """Tables of heads and structures are computed on the CPU, and their gradients come back."""
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with dispatch.use("torch"):
        with elsewhere:
            out = IN_FLOAT64[name](x)
        elsewhere.away = True
        (dx,) = torch.autograd.grad(out.square().sum(), x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(precision, "has_float64", lambda device: True)
            true = IN_FLOAT64[name](x)
            (expected,) = torch.autograd.grad(true.square().sum(), x)
    assert out.dtype == dx.dtype == torch.float32
    torch.testing.assert_close(out, true, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(dx, expected, rtol=1e-5, atol=1e-5)


def test_certificates_come_back_in_float32(elsewhere):
    found = parsimax.sparsemap(torch.zeros(2, 3, 3), structured.Assignment())
    assert found.gap.dtype == torch.float32 and found.structures.dtype == torch.int64
    again = parsimax.sparsemap(torch.zeros(2, 3, 3), structured.Assignment(), start=found)
    torch.testing.assert_close(again.marginals, found.marginals)


def test_who_runs_them():
    """A GPU without kernels, and nobody on a CPU who does not ask; float64 scores never."""
    assert [backends.formulas_of(d, "auto") for d in ("cpu", "cuda", "xpu", "mps")] == ["torch", *["lean"] * 3]
    assert [backends.formulas_of(d, "torch") for d in ("cpu", "cuda", "mps")] == ["torch", "torch", "lean"]
    x = torch.zeros(2, 3)
    assert formula_dtype(x) == torch.float64
    with dispatch.use("lean"):
        assert formula_dtype(x) == formula_dtype(x.half()) == torch.float32
        assert formula_dtype(x.double()) == torch.float64
        said = parsimax.explain("entmax", x)
        assert said.startswith("entmax: lean (plain torch, in float32 with sums and thresholds in two parts)")
        assert parsimax.explain("entmax", x.double()).startswith("entmax: torch")
        assert "\nsparsemax              lean" in info.text()
    assert "without kernels    plain torch, in float64, on a CPU" in info.text()


def test_sums_of_equal_numbers():
    x = torch.full((1, 10**6), 1e-6)
    assert abs(float(sums.total(x, 1)) - (float(x[0, 0]) * 1e6 - 1)) < 5e-9
    y = torch.randn(2, 10**5, generator=torch.Generator().manual_seed(0)) * 10
    exact = y.double().sum(-1, keepdim=True)
    assert ((sums.signed_total(y) - exact).abs() <= 2e-7 * exact.abs() + 1e-4).all()
