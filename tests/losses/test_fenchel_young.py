"""``fenchel_young_loss``: the loss that is zero exactly where the mapping gives the target."""

import pytest
import torch
import torch.nn.functional as F

import parsimax
from cases import EXAMPLES, INF, Case, each, gradient, normal
from parsimax import entmax_loss, fenchel_young_loss

REGULARISED = [case for case in EXAMPLES if case.entry.regulariser]
EXTRA = [Case(case.entry, v) for case in REGULARISED if case.name == "entmax" for v in (0.5, 1.0, 1.3, 2.0, 3.0)]
X = normal(8, 6)
Q = torch.softmax(normal(8, 6, seed=1), -1)


def loss(case: Case, scores, target, **options):
    settings = {} if case.parameter is None else {case.parameter: case.value}
    return fenchel_young_loss(scores, target, case.name, **{"reduction": "none", **settings, **options})


@each(REGULARISED + EXTRA)
def test_zero_exactly_where_the_mapping_gives_the_target(case):
    for scale in (0.1, 1.0, 5.0):
        at = loss(case, scale * X, case(scale * X))
        assert (at.abs() <= 1e-12).all()
    elsewhere = loss(case, X, Q)
    assert (elsewhere > 1e-6).all()
    assert (loss(case, X, case(X + normal(8, 6, seed=2))) >= -1e-12).all()


@each(REGULARISED + EXTRA)
def test_the_gradient_is_the_mapping_minus_the_target(case):
    (g,) = gradient(lambda x: loss(case, x, Q, reduction="sum"), X, weights=torch.ones(()))
    torch.testing.assert_close(g, case(X) - Q, rtol=0, atol=1e-11)
    y = torch.arange(8) % 6
    (g,) = gradient(lambda x: loss(case, x, y, reduction="sum"), X, weights=torch.ones(()))
    torch.testing.assert_close(g, case(X) - F.one_hot(y, 6), rtol=0, atol=1e-11)


@each(REGULARISED + EXTRA)
def test_indices_and_one_hot_probabilities_are_the_same(case):
    y = torch.arange(8) % 6
    torch.testing.assert_close(loss(case, X, y), loss(case, X, F.one_hot(y, 6).double()), rtol=0, atol=1e-12)
    smooth = 0.8 * F.one_hot(y, 6).double() + 0.2 / 6
    torch.testing.assert_close(loss(case, X, y, label_smoothing=0.2), loss(case, X, smooth), rtol=0, atol=1e-12)
    weight = torch.linspace(0, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(loss(case, X, y, weight=weight), weight[y] * loss(case, X, y), rtol=0, atol=1e-12)
    mean = loss(case, X, y, weight=weight, ignore_index=3, reduction="mean")
    kept = y != 3
    expected = (weight[y] * loss(case, X, y))[kept].sum() / weight[y][kept].sum()
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-12)


@each([case for case in EXTRA if case.value])
def test_it_keeps_the_entropy_that_entmax_loss_leaves_out(case):
    missing = loss(case, X, Q) - entmax_loss(X, Q, case.value, reduction="none")
    alpha = case.value
    entropy = -(Q * Q.log()).sum(-1) if alpha == 1 else (Q - Q**alpha).sum(-1) / (alpha * (alpha - 1))
    torch.testing.assert_close(missing, -entropy, rtol=0, atol=1e-12)
    y = torch.arange(8) % 6
    torch.testing.assert_close(loss(case, X, y), entmax_loss(X, y, alpha, reduction="none"), rtol=0, atol=1e-12)


def test_softmax_gives_the_divergence_of_kullback_and_leibler():
    truth = F.kl_div(torch.log_softmax(X, -1), Q, reduction="none").sum(-1)
    torch.testing.assert_close(fenchel_young_loss(X, Q, "softmax", reduction="none"), truth, rtol=0, atol=1e-12)
    torch.testing.assert_close(fenchel_young_loss(X, Q, "softmax"), truth.mean(), rtol=0, atol=1e-12)


@each(REGULARISED)
def test_a_mapping_is_a_name_a_function_or_a_module(case):
    expected = loss(case, X, Q)
    settings = {} if case.parameter is None else {case.parameter: case.value}
    for mapping in (case.name, case.entry.function):
        assert torch.equal(fenchel_young_loss(X, Q, mapping, reduction="none", **settings), expected)
    assert torch.equal(fenchel_young_loss(X, Q, case.module(), reduction="none"), expected)
    learned = parsimax.Entmax(1.5, learnable=True)
    fenchel_young_loss(X, Q, learned).backward()
    assert learned.learned_alpha.raw.grad != 0


@each(REGULARISED)
def test_forbidden_classes(case):
    x, q = X.clone(), Q.clone()
    x[:, 2] = -INF
    assert (loss(case, x, q) == INF).all()
    q[:, 2] = 0
    q = q / q.sum(-1, keepdim=True)
    finite = loss(case, x, q)
    assert finite.isfinite().all()
    torch.testing.assert_close(finite, loss(case, x[:, [0, 1, 3, 4, 5]], q[:, [0, 1, 3, 4, 5]]), rtol=0, atol=1e-12)
    (g,) = gradient(lambda t: loss(case, t, q), x)
    assert g.isfinite().all() and (g[:, 2] == 0).all()


@each(REGULARISED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_lower_precisions_are_rounded_once(case, dtype):
    x, q = X.to(dtype), Q.to(dtype)
    ours = loss(case, x, q)
    assert ours.dtype == dtype
    exact = loss(case, x.double(), q.double())
    torch.testing.assert_close(ours.double(), exact, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)


def test_weight_goes_with_indices_only():
    with pytest.raises(ValueError, match=r"weight.*class indices only.*got target probabilities"):
        fenchel_young_loss(X, Q, "softmax", weight=torch.ones(6))
