"""Attention in every derivative mode of torch, by the formula and by the kernel.

The truth is that of central differences, and it is checked to be far from zero: a silent zero cannot pass.
"""

import math

import pytest
import torch
import torch.autograd.forward_ad as fwad
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from cases import normal
from parsimax._attention import attention, entmax_attention
from parsimax.kernels import dispatch, library

# torch itself loads its forward-mode rules and parts of inductor through the old torch.jit, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")


BUILT = library.AVAILABLE


@pytest.fixture(autouse=True)
def fastest():
    """Modes in which the formula has to take over from the kernel."""
    with dispatch.use("auto" if BUILT else "torch"):
        yield


@pytest.fixture(params=["torch", "cpu"])
def path(request, fastest):
    """Modes in which both can run."""
    if request.param == "cpu" and not BUILT:
        pytest.skip("the C++ kernels were not built")
    with dispatch.use("torch" if request.param == "torch" else "auto"):
        yield


Q, K, V = normal(2, 2, 2, 3, seed=1) * 2, normal(2, 1, 4, 3, seed=2), normal(2, 1, 4, 2, seed=3)
ALPHA = torch.tensor([1.3, 1.7], dtype=torch.float64).view(2, 1, 1)
BIAS = normal(2, 1, 2, 4, seed=4)
ALLOWED = torch.tensor([[True, False, True, True], [False] * 4])
SMALL = Q[:1].clone(), K[:1].clone(), V[:1].clone()  # no views: torch's compile(jvp) cannot transpose an input that is


def learned(q, k, v, alpha, bias):
    """α per head and a learned bias with a forbidden key."""
    bias = bias.masked_fill(torch.arange(4) == 3, -math.inf)
    return entmax_attention(q, k, v, alpha=alpha, attn_mask=bias, enable_gqa=True)


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


CASES = {
    "learned": (learned, (*SMALL, ALPHA, BIAS[:1].clone())),
    "causal": (lambda q, k, v: entmax_attention(q, k, v, is_causal=True, enable_gqa=True), SMALL),
    "near one": (
        lambda q, k, v, a: entmax_attention(q, k, v, alpha=a, attn_mask=ALLOWED, enable_gqa=True),
        (*SMALL, ones(1, 1, 1)),
    ),
    "weights": (
        lambda q, k, a: entmax_attention(q, k, V[:1], alpha=a, enable_gqa=True, return_weights=True)[1],
        (*SMALL[:2], ALPHA),
    ),
    "two dimensions": (entmax_attention, (Q[0, 0], K[0, 0], V[0, 0])),
    "rsoftmax": (
        lambda q, k, v, r: attention(q, k, v, mapping="rsoftmax", rate=r, enable_gqa=True),
        (*SMALL, 0.45 * ones(1, 1, 1)),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def leaves(inputs):
    return tuple(t.clone().requires_grad_() for t in inputs)


def scalar(function):
    def total(*inputs):
        out = function(*inputs)
        return (out * torch.linspace(1, 2, out.shape[-1]).double()).square().sum()

    return total


def differences(function, inputs, i, step=1e-6):
    """The Jacobian by input i, by central differences, of the shape of the result followed by that of the input."""
    columns = []
    for direction in torch.eye(inputs[i].numel(), dtype=torch.float64).view(-1, *inputs[i].shape):
        up, down = ([*inputs[:i], inputs[i] + s * direction, *inputs[i + 1 :]] for s in (step, -step))
        columns.append((function(*up) - function(*down)) / (2 * step))
    return torch.stack(columns, -1).reshape(*columns[0].shape, *inputs[i].shape)


def same(ours, truth, tolerance=1e-6):
    assert truth.abs().max() > 1e-4, "the truth is zero, so the test could not fail"
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


def test_gradcheck(case, path):
    function, inputs = case
    assert torch.autograd.gradcheck(
        function,
        leaves(inputs),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,  # along random directions; the backward pass below and test_func have every entry
    )


def test_gradgradcheck(case, path):
    function, inputs = case
    batched = function is learned
    assert torch.autograd.gradgradcheck(
        function,
        leaves(inputs),
        check_fwd_over_rev=True,
        check_batched_grad=batched,
        fast_mode=True,  # test_hessian has every entry by one input; mixed ones are along random directions
    )


def test_a_plain_backward_pass_equals_one_with_create_graph(case, path):
    function, inputs = case
    at = leaves(inputs)
    plain, graph = (torch.autograd.grad(scalar(function)(*at), at, create_graph=c) for c in (False, True))
    for i, (a, b) in enumerate(zip(plain, graph, strict=True)):
        same(a, b, 1e-10)
        same(a, differences(scalar(function), inputs, i))


def test_only_what_is_asked_for(case, path):
    function, inputs = case
    whole = torch.autograd.grad(scalar(function)(*(at := leaves(inputs))), at)
    for i, wanted in enumerate(whole):
        one = inputs[i].clone().requires_grad_()
        value = scalar(function)(*inputs[:i], one, *inputs[i + 1 :])
        same(torch.autograd.grad(value, one)[0], wanted, 1e-12)


def test_func(case):
    function, inputs = case
    every = tuple(range(len(inputs)))
    truths = [differences(function, inputs, i) for i in every]
    for transform in (jacrev, jacfwd):
        for ours, truth in zip(transform(function, every)(*inputs), truths, strict=True):
            same(ours, truth)
    slopes = [differences(scalar(function), inputs, i) for i in every]
    for ours, truth in zip(grad(scalar(function), every)(*inputs), slopes, strict=True):
        same(ours, truth)
    tangents = tuple(normal(*t.shape, seed=20 + i) for i, t in enumerate(inputs))
    pushed = sum(torch.tensordot(j, d, d.dim()) for j, d in zip(truths, tangents, strict=True))
    same(jvp(function, inputs, tangents)[1], pushed)
    with fwad.dual_level():
        out = function(*(fwad.make_dual(t, d) for t, d in zip(inputs, tangents, strict=True)))
        same(fwad.unpack_dual(out).tangent, pushed)
    out, pull = vjp(function, *inputs)
    weights = normal(*out.shape, seed=9)
    for ours, truth in zip(pull(weights), truths, strict=True):
        same(ours, torch.tensordot(weights, truth, out.dim()))


def test_hessian():
    for i in range(5):
        truth = differences(grad(scalar(learned), i), CASES["learned"][1], i)
        same(hessian(scalar(learned), i)(*CASES["learned"][1]), truth, 1e-5)


def test_vmap():
    def one(q, k, v, a, bias):
        return entmax_attention(q, k, v, alpha=a, attn_mask=bias, enable_gqa=True)

    inputs = (Q, K, V, ALPHA, BIAS)
    whole = one(*inputs)
    same(vmap(one, in_dims=(0, 0, 0, None, 0))(*inputs), whole, 1e-12)
    same(vmap(one, in_dims=(None, 0, 0, None, 0))(Q[0], *inputs[1:])[0], whole[0], 1e-12)
    same(vmap(one, in_dims=-1, out_dims=-1)(*(t.unsqueeze(-1) for t in inputs))[..., 0], whole, 1e-12)
    per_sample = vmap(jacrev(one, 3), in_dims=(0, 0, 0, None, 0))(*inputs)
    same(per_sample, torch.stack([jacrev(one, 3)(Q[b], K[b], V[b], ALPHA, BIAS[b]) for b in range(2)]), 1e-10)
    at = leaves(inputs)  # plain autograd around a transform
    ours = torch.autograd.grad(vmap(one, in_dims=(0, 0, 0, None, 0))(*at).square().sum(), at)
    for a, b in zip(ours, torch.autograd.grad(one(*at).square().sum(), at), strict=True):
        same(a, b, 1e-10)


def compiled(function, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


@pytest.mark.parametrize("name", ["learned", "causal"])
def test_compile(name):
    function, inputs = CASES[name]
    at = leaves(inputs)
    value = compiled(scalar(function))(*at)
    same(value, scalar(function)(*inputs), 1e-10)
    for i, ours in enumerate(torch.autograd.grad(value, at)):
        same(ours, differences(scalar(function), inputs, i))


def test_compile_of_transforms():
    function, inputs = CASES["learned"]
    for i, ours in enumerate(compiled(grad(scalar(function), (0, 1, 2, 3, 4)))(*inputs)):
        same(ours, differences(scalar(function), inputs, i))
    tangents = tuple(normal(*t.shape, seed=20 + i) for i, t in enumerate(inputs))
    same(compiled(lambda m, d: jvp(function, m, d)[1])(inputs, tangents), jvp(function, inputs, tangents)[1], 1e-9)


class Layer(torch.nn.Module):
    """A layer with learned α per head, as users write it."""

    def __init__(self):
        super().__init__()
        self.alpha = torch.nn.Parameter(ALPHA.clone())

    def forward(self, q, k, v, allowed):
        return entmax_attention(q, k, v, alpha=self.alpha, attn_mask=allowed, enable_gqa=True)


def test_inductor():
    function, inputs = CASES["causal"]
    at = leaves(inputs)
    ours, truth = (run(*at) for run in (compiled(function, "inductor"), function))
    same(ours, truth, 1e-10)
    for a, b in zip(*(torch.autograd.grad(out.square().sum(), at) for out in (ours, truth)), strict=True):
        same(a, b, 1e-9)


def test_compile_under_autocast():
    inputs = [t.float() for t in (Q, Q, Q)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = compiled(entmax_attention)(*inputs)
        assert ours.dtype == F.scaled_dot_product_attention(*inputs).dtype
        torch.testing.assert_close(ours, entmax_attention(*inputs))


def test_export_with_dynamic_sizes():
    layer = Layer()
    batch, length, keys = (
        torch.export.Dim("batch", min=2),
        torch.export.Dim("length", min=2),
        torch.export.Dim("keys", min=2),
    )
    shapes = ({0: batch, 2: length}, {0: batch, 2: keys}, {0: batch, 2: keys}, {0: length, 1: keys})
    program = torch.export.export(layer, (Q, K, V, ALLOWED), dynamic_shapes=shapes).module()
    larger = (normal(4, 2, 9, 3), normal(4, 1, 7, 3, seed=1), normal(4, 1, 7, 2, seed=2), normal(9, 7, seed=3) > -1)
    same(program(*larger), layer(*larger), 1e-12)
    (ours,) = torch.autograd.grad(program(*larger).square().sum(), program.alpha)
    same(ours, torch.autograd.grad(layer(*larger).square().sum(), layer.alpha)[0], 1e-9)


def test_the_gradient_of_alpha_per_sample():
    layer = Layer()

    def loss(parameters, q, k, v):
        return functional_call(layer, parameters, (q, k, v, ALLOWED)).square().sum()

    parameters = {"alpha": ALPHA}
    each = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, Q, K, V)["alpha"]
    same(each, torch.stack([grad(loss)(parameters, Q[b], K[b], V[b])["alpha"] for b in range(2)]), 1e-10)
    same(each.sum(0), grad(loss)(parameters, Q, K, V)["alpha"], 1e-10)
