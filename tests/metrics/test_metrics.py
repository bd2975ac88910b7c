"""Metrics of sparse predictions, against their definitions in float64."""

import math

import pytest
import torch

import parsimax


def distributions(*shape, dim=-1, dtype=torch.float64):
    torch.manual_seed(len(shape))
    return parsimax.sparsemax(2 * torch.randn(shape, dtype=torch.float64), dim=dim).to(dtype)


def divergence(p, q):
    """As the mean of two relative entropies, entry by entry."""
    total = 0.0
    for a, b in zip(p.tolist(), q.tolist(), strict=True):
        mean = (a + b) / 2
        total += sum(x / 2 * math.log(x / mean) for x in (a, b) if x > 0)
    return total


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_divergence_from_a_class_is_that_from_its_one_hot_distribution(dtype):
    p, y = distributions(7, 11, dtype=dtype), torch.randint(11, (7,))
    hot = torch.nn.functional.one_hot(y, 11)
    found = parsimax.jensen_shannon(p, y)
    assert found.dtype == dtype
    close = {"atol": {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 4e-3}[dtype], "rtol": 0}
    pairs = zip(p.double(), hot.double(), strict=True)
    truth = torch.tensor([divergence(*pair) for pair in pairs], dtype=torch.float64)
    torch.testing.assert_close(found.double(), truth, **close)
    torch.testing.assert_close(parsimax.jensen_shannon(y, p), found, **close)
    torch.testing.assert_close(parsimax.jensen_shannon(p, hot.to(dtype)), found, **close)


@pytest.mark.parametrize(
    ("shape", "index", "dim"), [((3, 4, 6), (3, 6), 1), ((4,), (), 0), ((2, 3, 5), (3,), -1), ((3, 4, 1), (3, 6), 1)]
)
def test_classes_broadcast_as_distributions_do(shape, index, dim):
    p = distributions(*shape, dim=dim)
    y = torch.randint(p.shape[dim], index)
    hot = torch.nn.functional.one_hot(y, p.shape[dim]).double().movedim(-1, dim if dim < 0 else dim - len(shape))
    torch.testing.assert_close(parsimax.jensen_shannon(p, y, dim=dim), parsimax.jensen_shannon(p, hot, dim=dim))


def test_gradient_by_the_class_and_by_the_others():
    p = torch.softmax(torch.randn(5, 7, dtype=torch.float64), -1).requires_grad_()
    y = torch.randint(7, (5,))
    assert torch.autograd.gradcheck(lambda p: parsimax.jensen_shannon(p, y), p)
    assert torch.autograd.gradcheck(lambda p: parsimax.sparsemax_score(p, y), p)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_sparsemax_score_is_its_definition(dtype):
    p, y = distributions(6, 9, dtype=dtype), torch.randint(9, (6,))
    away = torch.nn.functional.one_hot(y, 9).double() - p.double()
    found = parsimax.sparsemax_score(p, y)
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), 1 - away.square().sum(-1) / 2, atol=1e-3 if dtype.itemsize == 2 else 1e-6, rtol=0
    )


def test_epsilon_perplexity_is_the_perplexity_of_the_mixture():
    p, y, epsilon = distributions(50, 20), torch.randint(20, (50,)), 1e-3
    mixed = (p + epsilon) / (p + epsilon).sum(-1, keepdim=True)
    truth = torch.nn.functional.nll_loss(mixed.log(), y).exp()
    torch.testing.assert_close(parsimax.epsilon_perplexity(p, y, epsilon), truth)
