"""``support``: the non-zeros of entmax, compact, with their derivatives."""

import math

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import parsimax
from cases import INF, NAN, TORCH, normal

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, in forward mode
ALPHAS = [1.0, 1.3, 1.5, 2.0, 4.0, math.inf]


def dense(found, like, dim=-1):
    return torch.zeros_like(like).scatter_add(dim, found.indices, found.probabilities.to(like.dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [1, 2, 17, 192, 193, 1000])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_it_holds_the_non_zeros_of_entmax(alpha, n, dtype):
    x = (2 * normal(5, 3, n)).to(dtype)
    p, found = parsimax.entmax(x, alpha), parsimax.support(x, alpha)
    counts = (p != 0).sum(-1)
    assert torch.equal(found.counts, counts) and found.probabilities.dtype == dtype
    assert found.indices.shape == found.probabilities.shape == (5, 3, counts.max())
    assert torch.equal(dense(found, p), p)
    assert (found.probabilities.diff(dim=-1) <= 0).all()
    beyond = torch.arange(found.indices.shape[-1]) >= counts.unsqueeze(-1)
    assert (found.indices[beyond] == 0).all() and (found.probabilities[beyond] == 0).all()


def test_equal_ones_come_in_the_order_of_the_row():
    x = torch.zeros(2, 300)
    x[0, ::2] = 1
    found = parsimax.support(x, 2)
    assert torch.equal(found.indices[0, :150], torch.arange(0, 300, 2)) and found.counts.tolist() == [150, 300]
    assert torch.equal(found.indices[1], torch.arange(300))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_dim_and_a_mask(dim):
    x, mask = normal(4, 5, 6), normal(4, 5, 6, seed=1) > -0.5
    p, found = parsimax.entmax15(x, dim, mask=mask), parsimax.support(x, 1.5, dim, mask=mask)
    assert torch.equal(dense(found, p, dim), p) and torch.equal(found.counts, (p != 0).sum(dim))
    small = parsimax.support(x, 1.5, dim, mask=mask, max_size=1)
    assert small.indices.shape[dim] == 1 and torch.equal(small.counts, found.counts)
    assert torch.equal(small.probabilities.squeeze(dim), p.amax(dim))


def test_alpha_of_each_row_and_its_gradient():
    x, alpha = normal(4, 40).requires_grad_(), torch.tensor([[1.1], [1.5], [1.9], [2.5]], dtype=torch.float64)
    alpha.requires_grad_()
    weight = normal(4, 40, seed=1)
    found = parsimax.support(x, alpha)
    ours = torch.autograd.grad((found.probabilities * weight.gather(-1, found.indices)).sum(), (x, alpha))
    theirs = torch.autograd.grad((parsimax.entmax(x, alpha) * weight).sum(), (x, alpha))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_size", [None, 3])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, torch.tensor(1.4, dtype=torch.float64, requires_grad=True)], ids=str)
def test_derivatives_of_every_kind(alpha, max_size):
    """Half-integers apart: no entry is near the edge of the support, where p has no derivative."""
    x = torch.tensor([[0.0, 0.7, 0.31, -3.0], [0.52, 0.0, 0.9, 0.2]], dtype=torch.float64, requires_grad=True)
    given = (x, alpha) if isinstance(alpha, torch.Tensor) else (x,)

    def run(x, own=alpha):
        return parsimax.support(x, own, max_size=max_size).probabilities

    assert gradcheck(run, given, check_batched_grad=True)
    assert gradgradcheck(run, given)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x) * torch.arange(4))
        tangent = forward_ad.unpack_dual(run(dual)).tangent
    jacobian = torch.autograd.functional.jacobian(run, x.detach())
    torch.testing.assert_close(tangent, torch.einsum("abcd,d->ab", jacobian, torch.arange(4).double()))


def test_compiled_and_batched_it_needs_a_size():
    x = 3 * normal(3, 7)
    assert parsimax.support(x, 1.5).indices.shape[-1] < 5

    def run(x):
        return parsimax.support(x, 1.5, max_size=5)

    for ours in (torch.compile(run, fullgraph=True, backend="aot_eager")(x), torch.func.vmap(run)(x)):
        for a, b in zip(ours, run(x), strict=True):
            torch.testing.assert_close(a, b)
    with pytest.raises(Exception, match="pass max_size" if TORCH >= (2, 10) else "Observed exception"):
        torch.compile(lambda x: parsimax.support(x), fullgraph=True, backend="aot_eager")(x)


def test_hostile_rows():
    x = torch.tensor([[0.0, NAN, 1.0], [-INF, -INF, -INF], [0.0, INF, 1.0], [-INF, 2.0, 2.0]])
    found = parsimax.support(x, 2)
    assert found.counts.tolist() == [3, 0, 3, 2]
    assert found.probabilities[0].isnan().all() and found.probabilities[2].isnan().all()
    assert found.probabilities[1].tolist() == [0, 0, 0] and found.probabilities[3].tolist() == [0.5, 0.5, 0]
    assert found.indices[3].tolist() == [1, 2, 0]
    x = torch.tensor([[-INF, -INF], [0.0, 1.0]], requires_grad=True)
    assert torch.equal(torch.autograd.grad(parsimax.support(x).probabilities.sum(), x)[0], torch.zeros(2, 2))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 3)])
def test_nothing_to_look_at(shape):
    x = torch.zeros(shape, requires_grad=True)
    found = parsimax.support(x)
    assert found.counts.shape == shape[:-1] and found.indices.shape[:-1] == shape[:-1]
    found.probabilities.sum().backward()
    assert x.grad.shape == shape


def test_what_is_refused():
    with pytest.raises(ValueError, match="support: max_size must be at least 1, got 0"):
        parsimax.support(torch.zeros(3), max_size=0)
    with pytest.raises(ValueError, match="support: alpha must be in"):
        parsimax.support(torch.zeros(3), -1.0)
    with pytest.raises(TypeError, match="support: scores must be floating point"):
        parsimax.support(torch.zeros(3, dtype=torch.long))


def test_an_expectation_and_its_gradient_by_the_support_alone():
    """What it is for: E f(z) over a large choice, with f only where p is not 0."""
    scores = (3 * normal(2, 500)).requires_grad_()
    table = normal(500, seed=1)
    found = parsimax.support(scores, 1.5)
    assert found.indices.shape[-1] < 100
    ours = (found.probabilities * table[found.indices]).sum()
    theirs = (parsimax.entmax15(scores) * table).sum()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, scores)[0], torch.autograd.grad(theirs, scores)[0])
