"""Two classes in closed form, against the mappings they come from."""

import math

import mpmath
import pytest
import torch

import parsimax

CASES = [(parsimax.sparsemoid, parsimax.sparsemax, 1.0), (parsimax.entmoid15, parsimax.entmax15, 2.0)]
pytestmark = [
    pytest.mark.parametrize(("function", "mapping", "end"), CASES, ids=lambda f: getattr(f, "__name__", "")),
    # torch itself loads its forward-mode rules through the old torch.jit, and says so.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


def grid(end, dtype=torch.float64):
    ends = torch.tensor([-end, end, 0.0, -end + 1e-6, end - 1e-6, 1e-30, -1e-30, 1e30, -1e30], dtype=dtype)
    return torch.cat([torch.linspace(-3, 3, 301, dtype=dtype), ends])


def two(mapping, x):
    return mapping(torch.stack([x, torch.zeros_like(x)], -1))[..., 0]


def test_is_the_mapping_of_two_scores(function, mapping, end):
    x = grid(end)
    torch.testing.assert_close(function(x), two(mapping, x), rtol=1e-12, atol=1e-15)


def test_gradient_is_that_of_the_mapping(function, mapping, end):
    x = grid(end).requires_grad_()
    (mine,) = torch.autograd.grad(function(x).sum(), x)
    (theirs,) = torch.autograd.grad(two(mapping, x).sum(), x)
    torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-12)
    assert mine[:301].max() > 0.3  # it is not all zeros


def test_every_derivative(function, mapping, end):
    x = torch.tensor([-1.7, -0.6, -0.1, 0.3, 0.9, 1.4, 2.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, x, check_fwd_over_rev=True)


def test_to_the_last_digits_near_the_end(function, mapping, end):
    """A small probability is right in relation to itself, also in float32."""
    for gap in (1e-1, 1e-2, 1e-3, 1e-4):
        x = torch.tensor(-end + gap, dtype=torch.float32)
        with mpmath.workdps(50):
            z = mpmath.mpf(x.item())
            s = z / 2
            truth = (z + 1) / 2 if end == 1 else (1 + s * mpmath.sqrt(2 - s * s)) / 2
            assert abs(function(x).item() - truth) < 5e-7 * truth


def test_hostile_values_stay_by_themselves(function, mapping, end):
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, end, -end], requires_grad=True)
    p = function(x)
    assert p[0].isnan() and p[1:].tolist() == [1.0, 0.0, 0.5, 1.0, 0.0]
    p[1:].sum().backward()
    assert x.grad[1:3].tolist() == [0.0, 0.0] and x.grad[3] > 0 and x.grad[4:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_rounded_once(function, mapping, end, dtype):
    x = grid(end).clamp(-100, 100).to(dtype)
    assert function(x).dtype == dtype
    assert torch.equal(function(x), function(x.float()).to(dtype))


def test_shapes_and_errors(function, mapping, end):
    for shape in ((), (0,), (2, 3, 4)):
        assert function(torch.zeros(shape)).shape == shape
    with pytest.raises(TypeError, match=f"{function.__name__}: scores must be floating point, got torch.int64"):
        function(torch.tensor([1]))
    with pytest.raises(TypeError, match=r"scores must be a torch\.Tensor, got float"):
        function(1.0)


def test_compiles(function, mapping, end):
    x = grid(end, torch.float32)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), function(x))
