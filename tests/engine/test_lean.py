"""The short way of tiny tensors in plain torch: the answers of the long way, with every derivative."""

import math

import pytest
import torch

import parsimax
from parsimax.engine import modes

BOTH = pytest.mark.parametrize("function", [parsimax.sparsemax, parsimax.entmax15], ids=lambda f: f.__name__)


@pytest.fixture(autouse=True)
def plain_torch():
    with parsimax.use_kernels("torch"):
        yield


def by_the_long_way(function, x):
    """A mask that forbids nothing leaves the short way."""
    return function(x, mask=torch.ones_like(x, dtype=torch.bool))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_is_the_long_way(function, dtype):
    draw = torch.Generator().manual_seed(0)
    for n in (1, 2, 5, 8, 33, 64):
        for scale, offset in ((1, 0), (0.01, 0), (30, 1e4), (1e6, 0), (1e-9, -3)):
            x = (torch.randn(7, n, generator=draw, dtype=torch.float64) * scale + offset).to(dtype)
            x[3] = x[3].round()
            x[4] = x[4, 0]
            g = torch.randn(7, n, generator=draw, dtype=torch.float64).to(dtype)
            leaf = x.clone().requires_grad_()
            p = function(leaf)
            assert "_LeanBackward" in type(p.grad_fn).__name__
            (dx,) = torch.autograd.grad(p, leaf, g)
            other = x.clone().requires_grad_()
            truth = by_the_long_way(function, other)
            (true,) = torch.autograd.grad(truth, other, g)
            near = 2e-7 if dtype == torch.float32 else 1e-12
            assert (p - truth).abs().max() <= near and p.dtype == dtype
            same = ((p > 0) == (truth > 0)).all(-1)
            assert same.sum() >= 6 and (dx - true)[same].abs().max() <= 10 * near


@BOTH
def test_what_is_not_finite_goes_the_long_way(function):
    x = torch.tensor([[0.0, math.nan, 1.0], [-math.inf, 0.0, 0.5], [-math.inf] * 3, [math.inf, 0.0, 0.0]])
    x = torch.cat([x, torch.tensor([[1e38, -1e38, 0.0]])]).double() * 1e200
    for given in (x, x[1:2], x[4:]):
        a, b = (given.clone().requires_grad_() for _ in range(2))
        p, truth = function(a), by_the_long_way(function, b)
        assert torch.equal(p.nan_to_num(9), truth.nan_to_num(9))
        (dx,), (true,) = torch.autograd.grad(p.sum(), a), torch.autograd.grad(truth.sum(), b)
        assert torch.equal(dx.nan_to_num(9), true.nan_to_num(9))


@BOTH
def test_second_derivatives_and_gradients_that_are_not_finite(function):
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(function, x) and torch.autograd.gradgradcheck(function, x)
    p = function(x)
    g = torch.where(p > 0, 1.0, math.nan).detach()
    assert torch.autograd.grad(p, x, g)[0].isfinite().all()


def test_what_it_leaves_to_others():
    x = torch.randn(4, 5)
    assert modes.tiny(x, -1) and modes.tiny(x, 1)
    assert not modes.tiny(x, 0) and not modes.tiny(x.half(), -1) and not modes.tiny(torch.randn(2, 65), -1)
    assert not modes.tiny(torch.randn(100, 64), -1) and not modes.tiny(torch.empty(0, 3), -1)
    with parsimax.use_kernels("auto"):
        assert not modes.tiny(x, -1)
    assert torch.func.vmap(parsimax.sparsemax)(x).equal(parsimax.sparsemax(x))
    assert "were asked for" in str(parsimax.explain("sparsemax", x))  # it learns what is asked of a back end
