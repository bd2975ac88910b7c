"""The short way of tiny rows in plain torch: the answers of the long way, with every derivative, row by row."""

import importlib
import math

import pytest
import torch

import parsimax
from parsimax.engine import modes, tiny
from parsimax.engine.apply import apply

BOTH = pytest.mark.parametrize("function", [parsimax.sparsemax, parsimax.entmax15], ids=lambda f: f.__name__)
WIDE = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@pytest.fixture(autouse=True)
def plain_torch():
    with parsimax.use_kernels("torch"):
        yield


def by_the_long_way(function, x):
    name = function.__name__
    module = importlib.import_module(f"parsimax.mappings.{name}")
    formula = getattr(module, f"{name}_rows")
    return apply(formula, x, dim=-1, mask=None, dtype=None, where=name, kernel=module.KERNEL)


def both_ways(function, x, g):
    """p and its gradient, the short way and the long one."""
    found = []
    for way in (function, lambda x: by_the_long_way(function, x)):
        leaf = x.clone().requires_grad_()
        p = way(leaf)
        found += [p, torch.autograd.grad(p, leaf, g)[0]]
    assert "_TinyBackward" in type(found[0].grad_fn).__name__ and "_Tiny" not in type(found[2].grad_fn).__name__
    return found


@BOTH
@WIDE
def test_it_is_the_long_way(function, dtype):
    draw = torch.Generator().manual_seed(0)
    for n in (1, 2, 5, 8, 15, 16):
        for scale, offset in ((1, 0), (0.01, 0), (30, 1e4), (1e6, 0), (1e-9, -3)):
            x = (torch.randn(7, n, generator=draw, dtype=torch.float64) * scale + offset).to(dtype)
            x[3] = x[3].round()
            x[4] = x[4, 0]
            if n > 2:
                x[5, 1] = -math.inf
            g = torch.randn(7, n, generator=draw, dtype=torch.float64).to(dtype)
            p, dx, truth, true = both_ways(function, x, g)
            near = 2e-7 if dtype == torch.float32 else 1e-12
            assert (p - truth).abs().max() <= near and p.dtype == dtype
            same = ((p > 0) == (truth > 0)).all(-1)
            assert same.sum() >= 6 and (dx - true)[same].abs().max() <= 10 * near


@BOTH
def test_rows_that_are_not_finite(function):
    x = torch.tensor([[0.0, math.nan, 1.0], [-math.inf, 0.0, 0.5], [-math.inf] * 3, [math.inf, 0.0, 0.0]])
    x = torch.cat([x, torch.tensor([[math.inf, -math.inf, math.nan], [1e38, -1e38, 0.0]])]).double()
    x[-1] *= 1e270  # their difference overflows
    for given in (x, x[1:2], x[2:3], x[4:]):
        p, dx, truth, true = both_ways(function, given, torch.ones_like(given))
        assert (p - truth).nan_to_num(0).abs().max() <= 1e-15 and p.isnan().equal(truth.isnan())
        assert (dx - true).nan_to_num(0).abs().max() <= 1e-15 and dx.isnan().equal(true.isnan())


@BOTH
@WIDE
def test_the_bits_of_a_row_depend_on_no_other(function, dtype):
    """Nor on how many there are, whatever the others hold, and although many are taken a part at a time."""
    x = torch.randn(3 * tiny.CHUNK // 2 // 7, 7, generator=torch.Generator().manual_seed(3)).to(dtype)
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    bad = torch.arange(len(x)) % 5 == 2
    for value in (math.nan, math.inf, -math.inf):
        other = x.clone()
        other[bad, 3 if value == math.inf else slice(None)] = value
        found = []
        for scores in (x, other):
            leaf = scores.clone().requires_grad_()
            p = function(leaf)
            found.append((p.detach(), torch.autograd.grad(p, leaf, g)[0]))
        for one, two in zip(*found, strict=True):
            assert one[~bad].equal(two[~bad])
    for row in (0, 1, len(x) - 1):
        assert function(x[row]).equal(function(x)[row])


@BOTH
@WIDE
def test_the_bits_are_the_same_however_a_row_is_given(function, dtype):
    x = (3 * torch.randn(200, 9, generator=torch.Generator().manual_seed(5))).to(dtype)
    allowed = torch.rand(200, 9, generator=torch.Generator().manual_seed(6)) < 0.7
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    forbidden, poisoned = x.masked_fill(~allowed, -math.inf), x.masked_fill(~allowed, math.nan)
    ways = [
        lambda leaf: function(leaf),
        lambda leaf: function(torch.where(allowed, leaf, math.nan), mask=allowed),
        lambda leaf: function(leaf.t(), 0).t(),
        lambda leaf: function(leaf.reshape(10, 20, 9).transpose(0, 2), 0).transpose(0, 2).reshape(200, 9),
        lambda leaf: function(leaf, dtype=dtype),
    ]
    found = []
    for way in ways:
        leaf = forbidden.clone().requires_grad_()
        p = way(leaf)
        found.append((p.detach(), torch.autograd.grad(p, leaf, g)[0]))
    for p, dx in found[1:]:
        assert p.equal(found[0][0]) and dx.equal(found[0][1])
    assert function(poisoned, mask=allowed).equal(found[0][0])


@BOTH
def test_second_derivatives_and_gradients_that_are_not_finite(function):
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(function, x) and torch.autograd.gradgradcheck(function, x)
    p = function(x)
    g = torch.where(p > 0, 1.0, math.nan).detach()
    assert torch.autograd.grad(p, x, g)[0].isfinite().all()


def test_what_it_leaves_to_others():
    x = torch.randn(4, 5)
    assert modes.tiny(x, -1) and modes.tiny(x, 1) and modes.tiny(torch.randn(100_000, 16), -1)
    assert not modes.tiny(x, 0) and not modes.tiny(x.half(), -1) and not modes.tiny(torch.randn(2, 17), -1)
    assert not modes.tiny(torch.empty(0, 3), -1)
    with parsimax.use_kernels("auto"):
        assert not modes.tiny(x, -1)
    assert (torch.func.vmap(parsimax.sparsemax)(x) - parsimax.sparsemax(x)).abs().max() <= 1e-7
    assert "were asked for" in str(parsimax.explain("sparsemax", x))  # it learns what is asked of a back end
