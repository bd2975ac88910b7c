"""The contract of CONTRIBUTING.md, point 4: what comes out in which dtype, and rounded how."""

import pytest
import torch
import torch.nn.functional as F

import parsimax
from cases import CASES, CONTINUOUS, EXAMPLES, INF, each, gradient, normal

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
ALL = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


FLOAT32 = 2e-6  # what float32 may be off by; half types may be computed in it, and are rounded once


def ulps_apart(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many numbers of a 16-bit type lie between: of one sign, their bits are in their order. Numbers that float32
    may take for each other count as one: near the threshold 0 and 1e-14 are as near as that."""
    a = torch.where((a.double() - b.double()).abs() <= FLOAT32, b, a)
    assert (a.signbit() == b.signbit()).logical_or(a == b).all()
    return int((a.view(torch.int16).int() - b.view(torch.int16).int()).where(a != b, 0).abs().max())


@each(CASES)
@HALF
def test_half_types_are_rounded_once(case, dtype):
    for x in (normal(20, 30), 10 * normal(20, 30), normal(20, 500) / 8, 100 + normal(20, 30)):
        x = x.to(dtype)
        assert ulps_apart(case(x), case(x.double()).to(dtype)) <= 1


@each(CONTINUOUS)
@HALF
def test_half_scores_do_not_round_the_parameter(case, dtype):
    """It is taken as it was given, here a number that no 16-bit type holds."""
    x, value = (normal(20, 30) / 4).to(dtype), 1.013 * case.value
    for own in (value, torch.tensor(value, dtype=torch.float64), torch.full((20, 1), value, dtype=torch.float64)):
        assert ulps_apart(case(x, own), case(x.double(), own).to(dtype)) <= 1


@each(EXAMPLES)
@HALF
def test_gradients_of_half_types_are_rounded_once(case, dtype, kernels):
    x, weights = normal(20, 30).to(dtype), normal(20, 30, seed=7).to(dtype)
    (g,) = gradient(case, x, weights=weights)
    (exact,) = gradient(case, x.double(), weights=weights.double())
    assert g.dtype == dtype
    if kernels == "cpu":
        # Kernels keep the rounded probabilities for the backward pass, as torch.softmax does: an ulp of the output.
        assert ((g.double() - exact).abs() <= torch.finfo(dtype).eps * weights.double().abs().amax()).all()
        return
    # a gradient that is 0 but for the rounding of float64 may come with any sign
    real = exact.abs() > 1e-9
    assert ulps_apart(g.where(real, 0), exact.to(dtype).where(real, 0)) <= 1
    assert (g[~real].abs() <= 1e-7).all()


@each(EXAMPLES)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_the_result_has_the_dtype_of_the_scores(case, dtype):
    x = normal(4, 5, dtype=dtype)
    mask = normal(4, 5) > 0
    assert case(x).dtype == case(x, mask=mask).dtype == case(x[:, :0]).dtype == gradient(case, x)[0].dtype == dtype


@each(EXAMPLES)
def test_dtype_casts_the_scores_first(case):
    x = normal(4, 5, dtype=torch.float32) * 3
    for dtype in ALL:
        assert torch.equal(case(x, dtype=dtype), case(x.to(dtype)))
        assert case(x, dtype=dtype).dtype == torch.softmax(x, -1, dtype=dtype).dtype
        assert case(x[:, :0], dtype=dtype).dtype == dtype
    assert torch.equal(case(x, dtype=torch.float64, mask=x > 0), case(x.double().masked_fill(x <= 0, -INF)))
    (g,) = gradient(lambda t: case(t, dtype=torch.float64), x)
    assert g.dtype == torch.float32 and (g != 0).any()


@each(EXAMPLES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
def test_dtype_admits_integer_scores(case, dtype):
    x = torch.tensor([[1, 0, 2], [3, 3, 1]]).to(dtype)
    assert torch.equal(case(x, dtype=torch.float32), case(x.float()))
    assert torch.softmax(x, -1, dtype=torch.float32).dtype == torch.float32
    assert torch.equal(case(x, dtype=torch.float32, mask=x > 0), case(x.float(), mask=x > 0))


@each(CONTINUOUS)
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("own", ALL, ids=str)
def test_a_parameter_keeps_its_dtype(case, dtype, own):
    x = normal(4, 5, dtype=dtype)
    parameter = torch.full((4, 1), case.value, dtype=own)
    assert case(x, parameter).dtype == dtype
    g, g_own = gradient(case, x, parameter)
    assert g.dtype == dtype and g_own.dtype == own
    assert (g_own != 0).any()
    shared = gradient(case, x, parameter[0, 0])[1]
    assert shared.dtype == own and shared.shape == ()


@each(EXAMPLES)
@HALF
def test_autocast(case, dtype):
    for given in ALL:
        x = normal(4, 5, dtype=given).requires_grad_()
        with torch.autocast("cpu", dtype):
            p, theirs = case(x), torch.softmax(x, -1)
            assert case(x[:, :0]).dtype == theirs.dtype
            assert case(x, dtype=torch.float64).dtype == torch.softmax(x, -1, dtype=torch.float64).dtype
        assert p.dtype == theirs.dtype
        torch.testing.assert_close(p, case(x).to(p.dtype), rtol=2.0**-8, atol=1e-6)
        assert torch.autograd.grad(p.sum(), x)[0].dtype == given


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@HALF
def test_autocast_of_losses(dtype, reduction):
    target = torch.tensor([0, 2, -100, 1])
    for given in ALL:
        x = normal(4, 5, dtype=given).requires_grad_()
        q = torch.softmax(normal(4, 5, dtype=given, seed=1), -1)
        for t in (target, q):
            with torch.autocast("cpu", dtype):
                loss = parsimax.entmax_loss(x, t, reduction=reduction)
                theirs = F.cross_entropy(x, t, reduction=reduction)
            assert loss.dtype == theirs.dtype
            assert torch.autograd.grad(loss.sum(), x)[0].dtype == given


@HALF
def test_losses_of_half_types_are_rounded_once(dtype):
    x, target = normal(50, 20).to(dtype), torch.arange(50) % 20
    for alpha in (0.5, 1.0, 1.5, 1.7, 2.0, 3.0):
        exact = parsimax.entmax_loss(x.double(), target, alpha, reduction="none")
        ours = parsimax.entmax_loss(x, target, alpha, reduction="none")
        assert ours.dtype == dtype and ulps_apart(ours, exact.to(dtype)) <= 1
        mean = parsimax.entmax_loss(x, target, alpha)
        assert ulps_apart(mean[None], exact.mean().to(dtype)[None]) <= 1
