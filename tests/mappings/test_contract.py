"""The contract of CONTRIBUTING.md, points 1 to 3: every mapping of the registry through every line of it."""

import pytest
import torch

from cases import CASES, EXAMPLES, INF, NAN, each, gradient, normal

MILLION = 1_000_000


def long_row(kind: str) -> torch.Tensor:
    if kind == "random":
        return normal(MILLION, dtype=torch.float32)
    row = torch.full((MILLION,), {"plateau": 0.0, "plateau just below": -1e-6, "plateau far below": -3.0}[kind])
    row[MILLION // 3] = {"plateau": 0.5}.get(kind, 0.0)
    return row


@each(CASES)
@pytest.mark.parametrize("kind", ["random", "plateau", "plateau just below", "plateau far below"])
def test_a_million_scores_sum_to_the_total(case, kind):
    p = case(long_row(kind))
    total = case.total(torch.tensor(MILLION))
    assert (p >= 0).all()
    assert abs(p.double().sum() - total) <= 1e-6 * max(1, total)


@each(CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_short_rows_are_points_of_the_simplex(case, dtype):
    for scale in (1e-30, 1e-3, 1, 30, 1e5, 1e30):
        for n in (1, 2, 3, 17, 300):
            p = case(scale * normal(20, n, dtype=dtype)).double()
            error = (p.sum(-1) - case.total(torch.full((20,), n))).abs().max()
            assert (p >= 0).all()
            assert error <= (1e-6 if dtype == torch.float32 else 1e-12), (scale, n)


@each(CASES)
@pytest.mark.parametrize("n", [130, 300, 2049, 2100, 5000])
def test_the_peak_may_be_anywhere(case, n):
    """Long rows are searched in blocks: no place of the largest score may be forgotten."""
    places, heights = (0, 63, n // 2, n - 1), torch.tensor([1e-3, 0.9, 30.0], dtype=torch.float64)
    x = torch.zeros(len(places), len(heights), n, dtype=torch.float64)
    for rows, place in zip(x, places, strict=True):
        rows[:, place] = heights
    for p, place in zip(case(x), places, strict=True):
        assert (p.sum(-1) - case.total(torch.tensor(n))).abs().max() <= 1e-12 * n, place
        assert torch.equal(p[:, place], p.amax(-1)), place


@each([case for case in EXAMPLES if case.entry.sparse])
def test_zeros_are_exact(case):
    """A score far below the rest gets 0 itself, and a gradient of 0 with it."""
    x = normal(8, 9).clamp(-0.5, 0.5)
    x[:, 4] = -50
    p = case(x)
    (g,) = gradient(case, x)
    if case.parameter == "rate" or not case.entry.shift_invariant:
        assert (p == 0).any(-1).all() and (g != 0).any()
    else:
        assert (p[:, 4] == 0).all() and (g[:, 4] == 0).all() and (g != 0).any()
    assert not ((p > 0) & (p < 1e-30)).any()


@each([case for case in EXAMPLES if not case.entry.sparse])
def test_dense_mappings_have_no_zeros(case):
    assert (case(normal(8, 9)) > 0).all()


@each([case for case in CASES if case.entry.shift_invariant])
@pytest.mark.parametrize("offset", [1e5, -1e5, 2.0**22, 2.0**40])
def test_shift_invariant(case, offset):
    """The scores sit on a grid that the offset leaves exact, so nothing but the mapping may round."""
    dtype = torch.float64 if offset > 2**23 else torch.float32
    x = (normal(20, 50) * 4).round().to(dtype) / (2 if dtype == torch.float32 else 4)
    assert torch.equal(x + offset - offset, x)
    torch.testing.assert_close(case(x + offset), case(x), rtol=0, atol=1e-12)


@each([case for case in EXAMPLES if not case.entry.shift_invariant])
def test_what_the_registry_calls_not_shift_invariant_is_not(case):
    assert (case(normal(5, 7)) - case(normal(5, 7) + 3)).abs().max() > 1e-3


@each(CASES)
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 4), (2, 3, 2, 4)], ids=str)
def test_any_dim(case, shape):
    x = normal(*shape)
    for dim in range(len(shape)):
        along = torch.stack([case(row) for row in x.movedim(dim, -1).reshape(-1, x.shape[dim])])
        for named in (dim, dim - len(shape)):
            p = case(x, dim=named)
            assert p.shape == x.shape
            torch.testing.assert_close(p.movedim(dim, -1).reshape(along.shape), along, rtol=0, atol=1e-14)


@each(CASES)
def test_sizes_zero_and_one(case):
    for shape, dim in [((0,), 0), ((0, 3), -1), ((3, 0), -1), ((3, 0), 0), ((2, 0, 3), 2), ((2, 0, 3), 1)]:
        x = torch.randn(shape, requires_grad=True)
        p = case(x, dim=dim)
        (g,) = torch.autograd.grad(p.sum(), x)
        assert p.shape == g.shape == shape and p.dtype == x.dtype
    one = case(normal(3, 1))
    torch.testing.assert_close(one, case.total(torch.ones(3)).unsqueeze(-1), rtol=0, atol=1e-15)
    torch.testing.assert_close(case(normal(3, 1, 4), dim=1), one[:, None].expand(3, 1, 4), rtol=0, atol=1e-15)


@each(EXAMPLES)
def test_non_contiguous_input(case):
    x = normal(6, 5, 4)
    views = [x.transpose(0, 2), x[::2, :, ::2], x[:, :1].expand(6, 5, 4), x.permute(1, 2, 0), x[:, :, 1:]]
    for view in views:
        assert not view.is_contiguous()
        for dim in range(3):
            torch.testing.assert_close(case(view, dim=dim), case(view.contiguous(), dim=dim), rtol=0, atol=1e-14)
        base = view.detach().requires_grad_()
        (g,) = torch.autograd.grad(case(base), base, normal(*view.shape, seed=7))
        torch.testing.assert_close(g, gradient(case, view.contiguous())[0], rtol=0, atol=1e-14)


@each(CASES)
def test_the_callers_tensors_are_not_written_to(case):
    x, mask, g = normal(4, 6), normal(4, 6, seed=1) > -1, normal(4, 6, seed=2)
    x[1], x[2, 3], x[3, 1] = -INF, NAN, INF
    given = [x, mask, g]
    parameter = []
    if case.value is not None and case.entry.setting.continuous:
        parameter = [torch.full((4, 1), case.value, dtype=torch.float64)]
        given += parameter
    before = [(t.clone(), t._version) for t in given]
    leaves = [t.requires_grad_() for t in (x, *parameter)]
    p = case(x, *parameter, mask=mask)
    answer = p.detach().clone()
    torch.autograd.grad(p, leaves, g, retain_graph=True)
    torch.autograd.grad(p, leaves, g, create_graph=True)
    for tensor, (copy, version) in zip(given, before, strict=True):
        assert tensor._version == version
        torch.testing.assert_close(tensor.detach(), copy, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(p.detach(), answer, rtol=0, atol=0, equal_nan=True)


@each(EXAMPLES)
def test_memory_is_linear(case):
    """No tensor on the way is more than a few times the size of the scores."""

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else [out]:
                self.numel = max(self.numel, t.numel() if isinstance(t, torch.Tensor) else 0)
            return out

    x = normal(20, 1000)
    with Largest() as largest:
        case(x)
    assert x.numel() <= largest.numel <= 4 * x.numel()
    assert case(normal(1000, 1000, dtype=torch.float32)).isfinite().all()


def forbidding(x: torch.Tensor) -> torch.Tensor:
    """Half of the entries allowed, one allowed, none allowed, all allowed."""
    x = x.clone()
    x[0, ::2], x[1, 1:], x[2] = -INF, -INF, -INF
    return x


@each(CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_minus_infinity_forbids(case, dtype):
    x = forbidding(normal(5, 8, dtype=dtype))
    p = case(x)
    (g,) = gradient(case, x)
    forbidden = x == -INF
    assert (p[forbidden] == 0).all() and (g[forbidden] == 0).all() and g.isfinite().all()
    assert (p.sum(-1) - case.total((~forbidden).sum(-1))).abs().max() <= 1e-6
    assert (p[2] == 0).all() and (g[2] == 0).all()
    torch.testing.assert_close(p[0, 1::2], case(x[0, 1::2]), rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)


@each(CASES)
@pytest.mark.parametrize("bad", [NAN, INF, -INF, "both infinities", "nothing but NaN"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_bad_row_harms_no_other(case, bad, dtype):
    """The others are bit for bit what they are beside a good one, and so are their gradients."""
    x = normal(6, 40, dtype=dtype)
    good = torch.tensor([0, 1, 3, 5])
    if isinstance(bad, float):
        x[2, 7 if bad != -INF else slice(None)], x[4, 0 if bad != -INF else slice(None)] = bad, bad
    elif bad == "both infinities":
        x[[2, 4], 3], x[[2, 4], 9] = INF, -INF
    else:
        x[[2, 4]] = NAN
    weights = normal(6, 40, seed=7, dtype=dtype)
    p, (g,) = case(x), gradient(case, x, weights=weights)
    for row in (2, 4):
        if bad == -INF:
            assert (p[row] == 0).all() and (g[row] == 0).all()
        else:
            assert p[row].isnan().all() and g[row].isnan().any()
    assert torch.equal(p[good], case(x[good]))
    assert torch.equal(g[good], gradient(case, x[good], weights=weights[good])[0])


@each(CASES)
def test_a_mask_is_minus_infinity(case):
    x = normal(2, 3, 8)
    masks = [normal(*shape, seed=3) > 0 for shape in [(2, 3, 8), (3, 8), (8,), (1,), (2, 1, 8), (1, 3, 1), (2, 3, 1)]]
    masks += [torch.zeros(2, 3, 8, dtype=torch.bool), torch.ones((), dtype=torch.bool)]
    for mask in masks:
        filled = x.masked_fill(~mask, -INF)
        for dim in (-1, 0, 1):
            assert torch.equal(case(x, dim=dim, mask=mask), case(filled, dim=dim))
        (g,) = gradient(lambda t, m=mask: case(t, mask=m), x)
        assert torch.equal(g, gradient(case, filled)[0].masked_fill(~mask.expand_as(x), 0))
        assert (case(x, mask=mask)[~mask.expand_as(x)] == 0).all()


@each(CASES)
@pytest.mark.parametrize("hidden", [NAN, INF, -INF])
def test_nothing_is_read_under_a_mask(case, hidden):
    mask = normal(4, 8, seed=1) > 0
    mask[2] = False
    x = normal(4, 8)
    spoilt = x.masked_fill(~mask, hidden)
    assert torch.equal(case(spoilt, mask=mask), case(x, mask=mask))
    inside = gradient(lambda t: case(t, mask=mask), x)[0]
    assert inside.isfinite().all()
    assert torch.equal(gradient(lambda t: case(t, mask=mask), spoilt)[0], inside)
