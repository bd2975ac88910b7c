"""Agreement with the ``entmax`` package 1.3 wherever that package is right: float64, finite rows or some −inf, α > 1.

Left out, because the peer is wrong there: α = 1, rows with nothing allowed, −inf under a budget or in a loss,
``ignore_index=-100``, and the α-gradient of a loss, which it does not have.
"""

import entmax as peer
import pytest
import torch

import parsimax

TOLERANCE = 1e-12
# For α > 2 a gradient holds p^(2−α), which magnifies what the peer's bisection leaves of error in a small p.
STEEP_GRADIENT = 1e-10
ALPHAS = [1.1, 1.25, 1.5, 1.75, 2.0, 2.5]
BUDGETS = [0.5, 1.0, 2.0, 7.5, 40.0, 100.0]
SIMPLEX = [
    pytest.param(parsimax.sparsemax, peer.sparsemax, (), id="sparsemax"),
    pytest.param(parsimax.sparsemax, peer.sparsemax_bisect, (), id="sparsemax-bisect"),
    pytest.param(parsimax.entmax15, peer.entmax15, (), id="entmax15"),
    *(pytest.param(parsimax.entmax, peer.entmax_bisect, (alpha,), id=f"entmax-{alpha}") for alpha in ALPHAS),
    *(pytest.param(parsimax.normmax, peer.normmax_bisect, (alpha,), id=f"normmax-{alpha}") for alpha in ALPHAS),
]
BUDGETED = [
    pytest.param(parsimax.budget_sparsemax, peer.budget_bisect, (budget,), id=f"budget-{budget}") for budget in BUDGETS
]


def scores(*shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def value_and_gradient(function, x, *arguments, **options):
    x = x.clone().requires_grad_()
    y = function(x, *arguments, **options)
    (y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view_as(y)).sum().backward()
    return y.detach(), x.grad


def assert_close(ours, theirs, tolerance=TOLERANCE):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(("mapping", "theirs", "parameters"), SIMPLEX + BUDGETED)
def test_mapping_and_gradient(mapping, theirs, parameters, scale):
    x = scores(64, 40, scale=scale)
    p, gradient = value_and_gradient(mapping, x, *parameters)
    their_p, their_gradient = value_and_gradient(theirs, x, *parameters)
    assert_close(p, their_p)
    steep = theirs in (peer.entmax_bisect, peer.normmax_bisect) and parameters[0] > 2
    assert_close(gradient, their_gradient, STEEP_GRADIENT if steep else TOLERANCE)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize(("mapping", "theirs", "parameters"), SIMPLEX + BUDGETED)
def test_any_dim(mapping, theirs, parameters, dim):
    x = scores(9, 11, 13)
    assert_close(mapping(x, *parameters, dim=dim), theirs(x, *parameters, dim=dim))


@pytest.mark.parametrize(("mapping", "theirs", "parameters"), SIMPLEX)
def test_forbidden_entries(mapping, theirs, parameters):
    x = scores(32, 20)
    x[:, 3:12:2] = -torch.inf
    assert_close(mapping(x, *parameters), theirs(x, *parameters))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_alpha_gradient(alpha):
    x, alphas = scores(64, 40), torch.full((64, 1), alpha, dtype=torch.float64)
    _, gradient = value_and_gradient(lambda a: parsimax.entmax(x, a), alphas)
    _, their_gradient = value_and_gradient(lambda a: peer.entmax_bisect(x, a), alphas)
    assert_close(gradient, their_gradient)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(
    ("loss", "theirs", "parameters"),
    [
        pytest.param("sparsemax_loss", peer.sparsemax_loss, (), id="sparsemax"),
        pytest.param("entmax15_loss", peer.entmax15_loss, (), id="entmax15"),
        *(pytest.param("entmax_loss", peer.entmax_bisect_loss, (alpha,), id=f"entmax-{alpha}") for alpha in ALPHAS),
    ],
)
def test_loss_and_gradient(loss, theirs, parameters, scale):
    """A loss's gradient is p − y, so no power of p magnifies the peer's error."""
    x, target = scores(64, 40, scale=scale), torch.arange(64) % 40
    value, gradient = value_and_gradient(getattr(parsimax, loss), x, target, *parameters, reduction="none")
    their_value, their_gradient = value_and_gradient(theirs, x, target, *parameters)
    assert_close(value, their_value)
    assert_close(gradient, their_gradient)
