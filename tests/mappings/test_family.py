"""What single mappings promise: entmax as one function of α, the certificate of top-k, the zeros of r-softmax."""

import itertools

import pytest
import torch

import parsimax
from cases import INF, gradient, normal

X = normal(30, 12)


def tensor(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("kind", [float, tensor])
def test_entmax_at_its_fixed_points(kind):
    for alpha, sibling in [(1, torch.softmax), (1.5, parsimax.entmax15), (2, parsimax.sparsemax)]:
        p, (g,) = parsimax.entmax(X, kind(alpha)), gradient(lambda x, a=alpha: parsimax.entmax(x, kind(a)), X)
        torch.testing.assert_close(p, sibling(X, -1), rtol=0, atol=1e-13)
        torch.testing.assert_close(g, gradient(lambda x, f=sibling: f(x, -1), X)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [float, tensor])
def test_entmax_at_infinity_is_uniform_over_the_maxima(kind):
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0], [0.0, 1.0, -INF, 0.5]])
    expected = torch.tensor([[0, 0.5, 0.5, 0], [0.25] * 4, [0, 1, 0, 0]])
    assert torch.equal(parsimax.entmax(x, kind(INF)), expected)
    assert (gradient(lambda t: parsimax.entmax(t, kind(INF)), x)[0] == 0).all()
    assert torch.equal(parsimax.entmax(X, kind(INF)), torch.nn.functional.one_hot(X.argmax(-1), 12).double())
    torch.testing.assert_close(parsimax.entmax(X, 1e6), parsimax.entmax(X, INF), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_entmax_is_continuous_through_one(dtype):
    """p, its gradient and its gradient by α, each close to that at 1 on both sides, and closer the nearer α is."""
    x = X.to(dtype)
    at_one = [torch.softmax(x, -1), *gradient(parsimax.entmax, x, torch.ones(30, 1, dtype=dtype))]
    log_p = torch.log_softmax(X, -1)
    by_alpha = log_p.exp() * (-(log_p**2) / 2 + (log_p.exp() * log_p**2).sum(-1, keepdim=True) / 2)
    torch.testing.assert_close(
        at_one[2].double(), (by_alpha * normal(30, 12, seed=7)).sum(-1, True), rtol=1e-5, atol=1e-6
    )
    for gap, sign in itertools.product([1e-7, 1e-6, 1e-5, 9.9e-4, 1.1e-3], [1, -1]):
        alpha = torch.full((30, 1), 1 + sign * gap, dtype=torch.float64)
        near = [parsimax.entmax(x, alpha), *gradient(parsimax.entmax, x, alpha)]
        for ours, limit in zip(near, at_one, strict=True):
            torch.testing.assert_close(ours.double(), limit.double(), rtol=0, atol=100 * gap + 1e-6)


def test_entmax_is_monotone_between_its_ends():
    """The largest probability grows with α, from uniform-like to one."""
    tops = torch.stack([parsimax.entmax(X, a).amax(-1) for a in (0, 0.5, 0.99, 1, 1.01, 1.5, 2, 3, 10, INF)])
    assert (tops.diff(dim=0) >= -1e-12).all() and (tops[-1] == 1).all()


@pytest.mark.parametrize("scale", [0.02, 0.2, 1.0])
def test_the_certificate_says_whether_it_is_sparsemax(scale):
    x = scale * normal(200, 15)
    x[0], x[1, 3:], x[2] = -INF, -INF, 0.25
    whole, said = parsimax.sparsemax(x), []
    for k in (1, 2, 3, 7, 14, 15, 40):
        p, certificate = parsimax.topk_sparsemax(x, k, return_certificate=True)
        equal = (p - whole).abs().amax(-1) <= 1e-12
        assert certificate.dtype == torch.bool and torch.equal(certificate, equal), k
        assert ((p > 0).sum(-1) <= k).all() and torch.equal(p, parsimax.topk_sparsemax(x, k))
        said += certificate.tolist()
    assert True in said and False in said


def test_the_certificate_follows_dim_mask_and_dtype():
    x, mask = normal(3, 9, 4) / 4, normal(3, 9, 4, seed=1) > 0
    p, certificate = parsimax.topk_sparsemax(x, 2, 1, mask=mask, dtype=torch.float32, return_certificate=True)
    whole = parsimax.sparsemax(x, 1, mask=mask, dtype=torch.float32)
    assert certificate.shape == (3, 4)
    assert torch.equal(certificate, (p - whole).abs().amax(1) <= 1e-6)
    x[0, 2, 1] = float("nan")
    assert not parsimax.topk_sparsemax(x, 9, 1, return_certificate=True)[1][0, 1]


@pytest.mark.parametrize("n", [2, 3, 7, 10, 49, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rsoftmax_gives_so_many_zeros(n, dtype):
    x = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(i)) for i in range(3)]).to(dtype) / n
    for k in {1, 2, n // 3, n // 2, n - 2, n - 1} - {0, n}:
        for rate in (k / n, torch.tensor(k / n, dtype=torch.float32), torch.tensor(k / n, dtype=torch.float64)):
            assert ((parsimax.rsoftmax(x, rate) == 0).sum(-1) == k).all(), (k, rate)
    assert torch.equal(parsimax.rsoftmax(x, 1.0), torch.nn.functional.one_hot(x.argmax(-1), n).to(dtype))
    lowest = parsimax.tsoftmax(x, (x.amax(-1, True) - x.amin(-1, True)).double())
    torch.testing.assert_close(parsimax.rsoftmax(x, 0.0), lowest, rtol=0, atol=1e-6)


def test_rsoftmax_counts_the_allowed_entries():
    x = normal(20, 12)
    mask = torch.ones(20, 12, dtype=torch.bool)
    mask[:, ::3] = False  # 8 of 12 remain
    p = parsimax.rsoftmax(x, 0.25, mask=mask)
    assert ((p > 0).sum(-1) == 6).all()


def test_rsoftmax_with_a_constant_threshold_is_the_papers_gradient():
    x = normal(6, 9)
    t = (x.amax(-1, True) - x.quantile(0.4, -1, keepdim=True)).detach()
    (paper,) = gradient(lambda z: parsimax.tsoftmax(z, t), x)
    torch.testing.assert_close(
        gradient(lambda z: parsimax.rsoftmax(z, 0.4, detach_threshold=True), x)[0], paper, rtol=0, atol=1e-12
    )
    assert (gradient(lambda z: parsimax.rsoftmax(z, 0.4), x)[0] - paper).abs().max() > 1e-3


def test_the_rate_of_rsoftmax_moves_its_cut_upwards_where_a_score_lies_on_it():
    x, g = torch.arange(5, dtype=torch.float64), normal(5)
    rate = tensor(0.5).requires_grad_()  # the third of five scores
    (slope,) = torch.autograd.grad(parsimax.rsoftmax(x, rate), rate, g)
    more = (parsimax.rsoftmax(x, 0.5 + 1e-6) - parsimax.rsoftmax(x, 0.5)) @ g / 1e-6
    torch.testing.assert_close(slope, more, rtol=1e-4, atol=0)


@pytest.mark.parametrize("alpha", [10.0, 150.0, 1e4, 1e17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_normmax_of_a_large_norm(alpha, dtype):
    """In low precision too: a leader by exactly 1 takes all, and p^α would underflow in the gradient."""
    x = torch.cat([torch.eye(8), normal(4, 8).float()]).to(dtype)
    p, (dx,) = parsimax.normmax(x, alpha), gradient(lambda z: parsimax.normmax(z, alpha), x)
    with parsimax.use_kernels("torch"):
        truth = parsimax.normmax(x.double(), alpha)
        (slope,) = gradient(lambda z: parsimax.normmax(z, alpha), x)
    assert torch.equal(p[:8], torch.eye(8, dtype=dtype))
    assert torch.equal(p, truth.to(dtype)) and torch.equal(dx, slope)


def test_whole_shares_of_a_budget_are_ones_to_the_bit():
    x = torch.tensor([30.0, 10.0, 0.0, -20.0], dtype=torch.float64)
    for budget in range(5):
        p = parsimax.budget_sparsemax(x, budget)
        assert torch.equal(p, (torch.arange(4) < budget).double()), budget


def test_a_budget_of_a_row_with_nan_has_no_gradient():
    budget = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    p = parsimax.budget_sparsemax(torch.tensor([[1.0, float("nan")], [0.5, 0.3]], dtype=torch.float64), budget)
    (slope,) = torch.autograd.grad(p.sum(), budget)
    assert slope[0].isnan() and slope[1] == 1


TIED = [  # the quantile is the maximum: scores that were initialised with 0, several leaders, a rate of 1
    ([0.0] * 4, 0.5),
    ([0.0] * 70, 0.9),
    ([2.0, 2.0, 2.0, 1.0, 1.0, 0.0], 0.6),
    ([1.0, 3.0, -INF, 3.0] * 30, 0.8),
    ([1.0, 0.0, 1.0], 1.0),
    ([5.0], 0.3),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("row, rate", TIED, ids=lambda x: str(len(x)) if isinstance(x, list) else str(x))
def test_rsoftmax_over_tied_maxima_is_softmax_over_them(row, rate, dtype):
    """Not a constant: what begins with equal scores could never be learned."""
    x = torch.tensor(row, dtype=dtype)
    g = normal(len(row), dtype=torch.float64).to(dtype)
    maxima = x == x.max()
    truth = (g.double() - g.double()[maxima].mean()) / maxima.sum()
    leaf, level = x.clone().requires_grad_(), torch.tensor(rate, dtype=torch.float64, requires_grad=True)
    dx, by_rate = torch.autograd.grad(parsimax.rsoftmax(leaf, level), (leaf, level), g)
    tolerance = {torch.float64: 1e-15, torch.float32: 1e-7, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(dx.double(), torch.where(maxima, truth, 0), rtol=tolerance, atol=tolerance / 100)
    assert by_rate == 0


@pytest.mark.parametrize("large", [1e3, 1e5, 1e9, 1e17])
def test_a_budget_is_shared_beside_one_score_that_is_far_above(large):
    x = torch.tensor([large, 0.125, 0.5, 0.75], dtype=torch.float64)
    leaf, g = x.clone().requires_grad_(), normal(4)
    p = parsimax.budget_sparsemax(leaf, 2.0)
    alone = x[1:].clone().requires_grad_()
    rest = parsimax.sparsemax(alone)
    for ours, others, first in (
        (p, rest, 1.0),
        (torch.autograd.grad(p, leaf, g)[0], torch.autograd.grad(rest, alone, g[1:])[0], 0.0),
    ):
        assert ours[0] == first
        torch.testing.assert_close(ours[1:], others, rtol=0, atol=1e-15)
