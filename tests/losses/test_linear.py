"""``linear_entmax_loss`` is ``entmax_loss`` of a linear layer, in many small chunks as in one, sparse or dense."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import parsimax
import parsimax.losses.chunks as fused
from cases import INF, NAN, gradient, normal, turned
from parsimax import entmax_loss, linear_entmax_loss

N, D, V = 7, 4, 40
HIDDEN, WEIGHT, BIAS = normal(N, D), normal(V, D, seed=1), normal(V, seed=2)
TARGET = torch.tensor([0, 39, 5, 7, -100, 5, 20])
SOFT = torch.softmax(3 * normal(N, V, seed=3), -1)
CLASS_WEIGHT = torch.linspace(0, 2, V, dtype=torch.float64)


@pytest.fixture(params=["one chunk", "chunks of two rows, sparse", "chunks of two rows, dense"])
def chunks(request, monkeypatch):
    if request.param != "one chunk":
        monkeypatch.setattr(fused, "CHUNK", 2 * V)
        monkeypatch.setattr(fused, "GATHER", 3)
        monkeypatch.setattr(fused, "DENSE", 1 if "sparse" in request.param else 10**9)


def truth(hidden, weight, bias, target, alpha, softcap=None, class_weight=None, **options):
    logits = F.linear(hidden, weight, bias)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    return entmax_loss(logits, target, alpha, weight=class_weight, **options)


OPTIONS = turned(["mean", "sum", "none"], [0.0, 0.2], [None, 2.0], [None, CLASS_WEIGHT])


@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
@pytest.mark.parametrize("alpha", ["float", "shared", "each row"])
def test_equals_the_two_steps(chunks, soft, alpha):
    target = SOFT if soft else TARGET
    alphas = {"float": 1.5, "shared": torch.tensor(1.3, dtype=torch.float64)}
    alphas["each row"] = torch.linspace(0.7, 2.6, N, dtype=torch.float64).unsqueeze(-1)
    inputs = (HIDDEN, WEIGHT, BIAS, *([] if alpha == "float" else [alphas[alpha]]))
    for reduction, smoothing, softcap, class_weight in OPTIONS:
        options = {
            "label_smoothing": smoothing,
            "softcap": softcap,
            "class_weight": class_weight,
            "reduction": reduction,
        }

        def ours(h, w, b, a=1.5, options=options):
            return linear_entmax_loss(h, w, target, a, bias=b, **options)

        def theirs(h, w, b, a=1.5, options=options):
            return truth(h, w, b, target, a, **options)

        torch.testing.assert_close(ours(*inputs), theirs(*inputs), rtol=0, atol=1e-11, msg=str(options))
        for mine, their in zip(gradient(ours, *inputs), gradient(theirs, *inputs), strict=True):
            torch.testing.assert_close(mine, their, rtol=0, atol=1e-11, msg=str(options))


@pytest.mark.parametrize("lead", [(), (0,), (6,), (2, 3), (2, 0, 3)], ids=str)
def test_any_number_of_leading_dimensions(chunks, lead):
    hidden, target = normal(*lead, D), torch.full(lead, 3)
    for reduction in ("mean", "sum", "none"):
        ours = linear_entmax_loss(hidden, WEIGHT, target, reduction=reduction)
        flat = truth(hidden.reshape(-1, D), WEIGHT, None, target.reshape(-1), 1.5, reduction=reduction)
        torch.testing.assert_close(ours, flat.reshape(ours.shape), rtol=0, atol=1e-12, equal_nan=True)
        (g,) = gradient(lambda w, r=reduction: linear_entmax_loss(hidden, w, target, reduction=r), WEIGHT)
        assert g.shape == WEIGHT.shape


def test_only_what_is_asked_for_is_differentiated(chunks):
    """Frozen layers and frozen states, each alone."""
    inputs = {"hidden": HIDDEN, "weight": WEIGHT, "bias": BIAS}
    for name in inputs:

        def alone(t, name=name, f=linear_entmax_loss):
            return f(**{**inputs, name: t}, target=TARGET, label_smoothing=0.1)

        def two_steps(t, name=name):
            return truth(**{**inputs, name: t}, target=TARGET, alpha=1.5, label_smoothing=0.1)

        torch.testing.assert_close(gradient(alone, inputs[name]), gradient(two_steps, inputs[name]), rtol=0, atol=1e-12)


def test_forbidden_classes_and_bad_rows(chunks):
    bias, hidden = BIAS.clone(), HIDDEN.clone()
    bias[11], hidden[2, 1] = -INF, NAN
    loss = linear_entmax_loss(hidden, WEIGHT, TARGET, bias=bias, reduction="none")
    assert loss[2].isnan() and loss[[0, 1, 3, 4, 5, 6]].isfinite().all() and loss[4] == 0
    right = linear_entmax_loss(HIDDEN, WEIGHT, torch.full((N,), 11), bias=bias, reduction="none")
    assert (right == INF).all()
    (g,) = gradient(lambda h: linear_entmax_loss(h, WEIGHT, TARGET, bias=bias, reduction="none"), hidden)
    assert g[[0, 1, 3, 5, 6]].isfinite().all() and g[2].isnan().any() and (g[4] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_lower_precisions(chunks, dtype, smoothing):
    """The logits are what ``F.linear`` gives in that dtype; from there on nothing is lost but in the last rounding."""
    hidden, weight, bias = (t.to(dtype) for t in (HIDDEN, WEIGHT, BIAS))
    ours = linear_entmax_loss(hidden, weight, TARGET, bias=bias, label_smoothing=smoothing, reduction="none")
    exact = entmax_loss(F.linear(hidden, weight, bias).double(), TARGET, label_smoothing=smoothing, reduction="none")
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps)
    with torch.autocast("cpu", torch.bfloat16):
        theirs = F.cross_entropy(F.linear(hidden, weight, bias), TARGET)
        assert linear_entmax_loss(hidden, weight, TARGET, bias=bias).dtype == theirs.dtype


def test_the_matrix_of_logits_is_never_whole(kernels):
    """Neither forward nor backward makes a tensor of more than one chunk of logits."""
    hidden = torch.randn(2000, 8, requires_grad=True)
    weight = (4 * torch.randn(8000, 8)).requires_grad_()
    limit = fused.CHUNK
    assert hidden.shape[0] * weight.shape[0] > 3 * limit
    largest = 0
    original = fused._losses

    def watched(plan, logits, *args, **kwargs):
        nonlocal largest
        largest = max(largest, logits.numel())
        return original(plan, logits, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_losses", watched)
        linear_entmax_loss(hidden, weight, torch.arange(2000)).backward()
    assert 0 < largest <= limit or kernels == "cpu"  # the kernel has its own chunks
    expected = gradient(
        lambda h: truth(h, weight.detach(), None, torch.arange(20), 1.5, reduction="sum") / 2000, hidden[:20]
    )
    torch.testing.assert_close(hidden.grad[:20], expected[0] / normal(seed=7).item(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "entmax", "normmax", "sparsegen"])
def test_multilabel_is_the_loss_at_the_uniform_distribution_over_labels(name):
    x, y = normal(6, 8), (normal(6, 8, seed=1) > 0.3).long()
    y[2] = 0
    q = y / y.sum(-1, keepdim=True).clamp(min=1).double()
    own = {"normmax": {"alpha": 2.0}, "sparsegen": {"lam": 0.25}}.get(name, {})
    each = parsimax.fenchel_young_loss(x, q, name, reduction="none", **own)
    each[2] = 0
    ours, skipped = parsimax.multilabel_loss(x, y, name, reduction="none", return_skipped=True, **own)
    torch.testing.assert_close(ours, each, rtol=0, atol=1e-12)
    assert skipped == 1
    torch.testing.assert_close(parsimax.multilabel_loss(x, y.bool(), name, **own), each.sum() / 5, rtol=0, atol=1e-12)
    (g,) = gradient(lambda t: parsimax.multilabel_loss(t, y, name, **own), x)
    assert (g[2] == 0).all() and g.isfinite().all()


def test_multilabel_for_rsoftmax_and_sparsehourglass():
    x, y = normal(4, 6), torch.tensor([[1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0], [1] * 6])
    q = y / y.sum(-1, keepdim=True).double()
    p = parsimax.rsoftmax(x, 0.4)
    expected = -(q * (p + 1e-8).log()).sum(-1)
    torch.testing.assert_close(parsimax.multilabel_loss(x, y, "rsoftmax", rate=0.4, reduction="none"), expected)
    ours = parsimax.multilabel_loss(x, y, "sparsehourglass", q=2.0, reduction="none")
    for row, labels, share, value in zip(x.tolist(), y.tolist(), q.tolist(), ours.tolist(), strict=True):
        scale = (1 + 6 * 2.0) / (abs(sum(row)) + 6 * 2.0)
        total = 0.0
        for i, j in itertools.product(range(6), range(6)):
            gap = (share[i] - share[j]) / scale - (row[i] - row[j])
            if labels[i] and labels[j]:
                total += abs(gap) / 2
            elif labels[i]:
                total += max(gap, 0)
        assert abs(total - value) <= 1e-10
