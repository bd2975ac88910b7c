"""Parameters as tensors, and the modules that hold them."""

import pickle

import pytest
import torch

import parsimax
from cases import CASES, CONTINUOUS, EXAMPLES, INF, NAN, each, gradient, normal

TENSORS = [c for c in CASES if c.value is not None and c.entry.setting.continuous]


@each(TENSORS)
def test_a_tensor_equals_the_number(case):
    x = normal(2, 3, 7)
    expected, (g,) = case(x), gradient(case, x)
    for shape in [(), (1,), (3, 1), (2, 1, 1), (1, 3, 1), (2, 3, 1)]:
        own = torch.full(shape, case.value, dtype=torch.float64)
        torch.testing.assert_close(case(x, own), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient(lambda t, own=own: case(t, own), x)[0], g, rtol=0, atol=1e-10)
    for dim, shape in [(0, (1, 3, 7)), (0, (3, 1)), (1, (2, 1, 7)), (1, (1, 1)), (-2, (2, 1, 1))]:
        own = torch.full(shape, case.value, dtype=torch.float64)
        torch.testing.assert_close(case(x, own, dim=dim), case(x, dim=dim), rtol=0, atol=1e-12)


@each(CONTINUOUS)
def test_each_row_has_its_own_parameter(case):
    x = normal(4, 7) / 4  # close enough that no row is one-hot, where the parameter has no say
    own = case.value * torch.tensor([[0.8], [0.9], [1.0], [1.1]], dtype=torch.float64)
    p, (g, g_own) = case(x, own), gradient(case, x, own)
    weights = normal(4, 7, seed=7)
    for i in range(4):
        torch.testing.assert_close(p[i], case(x[i], own[i].item()), rtol=0, atol=1e-12)
        row = gradient(case, x[i], own[i, 0], weights=weights[i])
        torch.testing.assert_close(g[i], row[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(g_own[i, 0], row[1], rtol=0, atol=1e-12)
    assert (g_own != 0).all()
    moved = case(x.T, own.T, dim=0)
    torch.testing.assert_close(moved.T, p, rtol=0, atol=1e-14)
    shared = gradient(case, x, own[0, 0])[1]
    torch.testing.assert_close(shared, gradient(case, x, own[:1].expand(4, 1))[1].sum(), rtol=1e-12, atol=1e-12)


@each(CONTINUOUS)
def test_a_value_outside_of_the_domain_makes_its_row_nan(case):
    domain = case.entry.setting.domain
    outside = [NAN]
    outside += [domain.low] * (not domain.closed_low) + [domain.high] * (not domain.closed_high)
    outside += [v for v in (domain.low - 0.5, domain.high + 0.5) if abs(v) < INF]
    for value in outside:
        x = normal(3, 7)
        own = torch.tensor([[case.value], [value], [case.value]], dtype=torch.float64)
        p, (g, g_own) = case(x, own), gradient(case, x, own)
        assert p[1].isnan().all(), value
        good = own.masked_fill(torch.tensor([[False], [True], [False]]), case.value)
        assert torch.equal(p[[0, 2]], case(x, good)[[0, 2]])
        assert g[[0, 2]].isfinite().all() and g_own[[0, 2]].isfinite().all()


@each(CONTINUOUS)
def test_rows_with_nothing_allowed_have_no_gradient_by_the_parameter(case):
    x, own = normal(3, 7), torch.full((3, 1), case.value, dtype=torch.float64)
    x[1], x[2, 3:] = -INF, -INF
    g, g_own = gradient(case, x, own)
    assert g_own[1] == 0 and (g[1] == 0).all()
    assert g.isfinite().all() and g_own.isfinite().all()
    shared = gradient(case, x, own[0, 0])[1]
    torch.testing.assert_close(shared, g_own.sum(), rtol=1e-12, atol=1e-12)


@each(EXAMPLES)
def test_modules_equal_functions(case):
    x, mask = normal(2, 3, 7), normal(2, 3, 7, seed=1) > 0
    for dim in (-1, 1):
        module = case.module(dim=dim)
        assert torch.equal(module(x), case(x, dim=dim))
        assert torch.equal(module(x, mask), case(x, dim=dim, mask=mask))
        text = repr(module)
        assert text.startswith(f"{type(module).__name__}(") and "\n" not in text and f"dim={dim}" in text
        if case.parameter:
            assert f"{case.parameter}={case.value:g}" in text
        assert not module.state_dict() and not list(module.parameters())
        assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))


@each(CONTINUOUS)
def test_modules_hold_tensors(case):
    """A tensor is a buffer and a parameter a parameter: both move and are saved with the module."""
    x = normal(3, 7)
    for kind in (torch.tensor, lambda v: torch.nn.Parameter(torch.tensor(v))):
        module = case.entry.module(kind([[case.value]] * 3))
        assert len(list(module.parameters())) == (kind is not torch.tensor)
        (saved,) = module.state_dict().values()
        torch.testing.assert_close(module(x), case(x), rtol=0, atol=1e-6)
        other = case.entry.module(kind([[0.9 * case.value]] * 3))
        assert not torch.equal(other(x), module(x))
        other.load_state_dict(module.state_dict())
        assert torch.equal(other(x), module(x))
        assert [b.dtype for b in module.double().state_dict().values()] == [torch.float64]
        assert repr(module) and saved.shape == (3, 1)


def learned(**options) -> parsimax.Entmax:
    return parsimax.Entmax(**{"alpha": 1.3, "learnable": True, **options})


@pytest.mark.parametrize("interval", [(1, 2), (1.0, 4.0), (0, 1.5), (1, INF)])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_a_learned_alpha_stays_inside(interval, optimiser):
    """Even after steps of any size, and then it still gives probabilities."""
    for sign in (1, -1):
        module = learned(interval=interval, shape=(3, 1))
        step = optimiser(module.parameters(), lr=1e12)
        for _ in range(3):
            step.zero_grad()
            (sign * module(normal(3, 7, dtype=torch.float32)).square().sum() + sign * module.alpha.sum()).backward()
            step.step()
            assert ((module.alpha >= interval[0]) & (module.alpha <= interval[1])).all()
            p = module(normal(3, 7, dtype=torch.float32))
            torch.testing.assert_close(p.sum(-1), torch.ones(3), rtol=0, atol=1e-6)


def test_a_learned_alpha_starts_where_it_was_asked_to():
    for alpha in (1.01, 1.3, 1.99):
        torch.testing.assert_close(learned(alpha=alpha).alpha, torch.tensor(alpha), rtol=0, atol=1e-6)
    torch.testing.assert_close(learned(alpha=3.0, interval=(1, INF)).alpha, torch.tensor(3.0), rtol=0, atol=1e-6)
    each_own = torch.tensor([1.2, 1.4, 1.9]).view(3, 1)
    torch.testing.assert_close(learned(alpha=each_own).alpha, each_own, rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [1, 2, 1.0, 2.0, 0.5, 3.0, NAN])
def test_a_start_on_the_border_raises(alpha):
    with pytest.raises(ValueError, match=rf"strictly inside \(1, 2\).*got {alpha:g}"):
        learned(alpha=alpha)


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (2, 1, 1), (2, 4, 1)], ids=str)
def test_the_learned_alpha_has_a_shape_and_a_gradient(shape):
    module = learned(shape=shape)
    (raw,) = module.parameters()
    assert module.alpha.shape == shape and raw.shape == (shape or (1,))
    x = normal(2, 4, 6, dtype=torch.float32)
    torch.testing.assert_close(module(x), parsimax.entmax(x, 1.3), rtol=0, atol=1e-6)
    module(x).square().sum().backward()
    assert raw.grad.shape == raw.shape and (raw.grad != 0).all()
    (by_alpha,) = gradient(
        lambda a: parsimax.entmax(x, a).square().sum(), module.alpha.detach(), weights=torch.ones(())
    )
    inner = (module.alpha.detach() - 1) * (2 - module.alpha.detach())  # the slope of the sigmoid
    torch.testing.assert_close(raw.grad, (by_alpha * inner).view_as(raw), rtol=1e-4, atol=1e-6)


def test_the_learned_alpha_is_saved_and_shown():
    module, other = learned(alpha=1.8, shape=(4, 1)), learned(shape=(4, 1))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.alpha, module.alpha)
    assert repr(learned(shape=(4, 1), dim=1)) == "Entmax(alpha=1.3 learned, shape=(4, 1), interval=(1, 2), dim=1)"
    assert repr(parsimax.Entmax(1.7)) == "Entmax(alpha=1.7, dim=-1)"
    assert parsimax.Entmax(1.7).alpha == 1.7 and parsimax.Entmax().alpha == 1.5
