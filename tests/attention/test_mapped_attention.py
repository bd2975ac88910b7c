"""Attention by mappings other than entmax in the fused kernel, against explicit attention in float64."""

import math
import os

import pytest
import torch

import parsimax
from cases import normal
from parsimax import attention
from parsimax.kernels import dispatch, library
from parsimax.kernels.schemas import MAPPINGS
from parsimax.mappings import REGISTRY
from test_attention import MASKS, close, draw

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason=str(library.PROBLEM))
INF, NAN = math.inf, math.nan
NAMES = MAPPINGS[1:]
# Each mapping with parameters that make its rows sparse, dense, and at the ends of the domain.
VALUES = {
    "sparsegen": (0.25, -3.0, 0.999, -300.0),
    "topk_sparsemax": (3, 1, 70, 1000),
    "budget_sparsemax": (2.0, 1.0, 0.4, 20.5, 0.0, 1e9),
    "rsoftmax": (0.9, 0.5, 0.1, 0.0, 1.0),
    "tsoftmax": (1.5, 0.01, 20.0, 5000.0, INF, 1e-20),
    "normmax": (2.0, 1.3, 5.0, 1.01),
}
JUMPY = ("sparsegen", "topk_sparsemax", "budget_sparsemax")  # the gradient jumps where a score meets the threshold
CASES = int(os.environ.get("PARSIMAX_KERNEL_CASES", "120")) // 3
EVERY = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def kernels():
    with dispatch.use("cpu"):
        yield


def setting(name):
    return REGISTRY[name].setting


def explicit(q, k, v, name, value, attn_mask=None, is_causal=False, enable_gqa=False):
    """Attention in a few lines of float64, by the formula of the mapping."""
    q, k, v = (t.double() for t in (q, k, v))
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -INF)
    elif attn_mask is not None:
        scores = scores + attn_mask.double()
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -INF)
    with dispatch.use("torch"):
        return REGISTRY[name].function(scores, **{setting(name).name: value}) @ v


def check(q, k, v, name, value, tolerance=1e-5, slack=1.0, **options):
    """Value and gradients by q, k, v, the parameter and the mask, where they are floating-point tensors."""
    others = {"value": value, **options}
    others = {n: t for n, t in others.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v, *others.values())]
    wide = [t.detach().double().requires_grad_() for t in leaves]

    def run(function, at):
        own = {"value": value, **options} | dict(zip(others, at[3:], strict=True))
        return function(*at[:3], **own)

    def fused(q, k, v, value, **options):
        return attention(q, k, v, mapping=name, **{setting(name).name: value}, **options)

    out = run(fused, leaves)
    truth = run(lambda *at, value, **more: explicit(*at, name, value, **more), wide)
    assert out.dtype == q.dtype
    close(out, truth, tolerance)
    weights = normal(*truth.shape, seed=9)
    expected = torch.autograd.grad(truth, wide, weights)
    for ours, wanted in zip(torch.autograd.grad(out, leaves, weights.to(out)), expected, strict=True):
        close(ours, wanted, slack * 4 * tolerance * max(1.0, float(wanted.abs().max()) if wanted.numel() else 1.0))
    with torch.no_grad():
        assert torch.equal(run(fused, leaves).nan_to_num(), out.nan_to_num())
    return out


@EVERY
@pytest.mark.parametrize("lengths", [(1, 1), (7, 9), (13, 131), (65, 33), (40, 300)], ids=str)
def test_masks_and_lengths(name, lengths):
    L, S = lengths
    value = VALUES[name][0]
    for mask in ("none", "bool", "padding", "per-query", "additive", "additive-padding", "row"):
        # in float64, whose support is that of the truth; below, in float32, scores at the threshold may differ
        given = MASKS[mask](2, 4, L, S)
        given = given.double() if given is not None and given.is_floating_point() else given
        check(*draw(L=L, S=S, dtype=torch.float64), name, value, 1e-9, attn_mask=given)
    check(*draw(L=L, S=S), name, value, is_causal=True)
    check(*draw(L=L, S=S, K=2), name, value, enable_gqa=True)


@EVERY
@pytest.mark.parametrize("size", [0.02, 1.0, 5.0], ids=["flat", "middle", "steep"])
def test_parameters(name, size):
    for value in VALUES[name]:
        q, k, v = draw(L=12, S=200, dtype=torch.float64)
        tolerance = 1e-7 if name == "normmax" and value > 2 else 1e-9
        check(size * q, k, v, name, value, tolerance)
        check(size * q, k, v, name, value, tolerance, is_causal=True)


@pytest.mark.parametrize("alpha", [3.0, 1e4, 1e9])
def test_the_gradient_of_a_steep_norm(alpha):
    """A weight is so low a power of the distance from the threshold that its rounding hides the distance."""
    for S in (40, 200):  # 200: more than are kept
        q, k, v = draw(L=12, S=S, dtype=torch.float64)
        for size in (1.0, 0.02):
            leaves = [t.clone().requires_grad_() for t in (size * q, k, v)]
            value = torch.tensor(alpha, dtype=torch.float64).requires_grad_()
            out = attention(*leaves, mapping="normmax", alpha=value)
            truth = explicit(*leaves, "normmax", value)
            weights = normal(*truth.shape, seed=9)
            expected = torch.autograd.grad(truth, [*leaves, value], weights)
            for ours, wanted in zip(torch.autograd.grad(out, [*leaves, value], weights), expected, strict=True):
                assert (ours - wanted).abs().max() < 1e-8 * wanted.abs().max()


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_learned_parameter(name, dtype):
    if not setting(name).continuous:
        return
    low, high = {
        "sparsegen": (-1, 0.5),
        "budget_sparsemax": (0.5, 6),
        "rsoftmax": (0.2, 0.95),
        "tsoftmax": (0.5, 6),
        "normmax": (1.3, 2),
    }[name]
    for shape in ((), (4, 1, 1), (2, 4, 20, 1)):
        value = (low + (high - low) * normal(*shape, seed=8).sigmoid()).to(dtype)
        for options in ({"is_causal": True}, {"attn_mask": MASKS["padding"](2, 4, 20, 150)}):
            q, k, v = draw(L=20, S=150, dtype=dtype)
            check(q, k, v, name, value, 1e-9 if dtype == torch.float64 else 1e-5, **options)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(name, dtype):
    q, k, v = draw(L=20, S=100, dtype=dtype)
    for value in VALUES[name][:2]:
        check(q, k, v, name, value, {torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype], slack=2.0)


ROWS = {
    "plateau": lambda n: torch.zeros(n),
    "plateau over a tail": lambda n: torch.where(torch.arange(n) < n // 3, 0.5, -torch.arange(n) / n),
    "sink": lambda n: torch.where(torch.arange(n) == 0, 30.0, 0.01 * normal(n)),
    "two levels": lambda n: (torch.arange(n) % 2).float(),
    "far below": lambda n: normal(n) - 1e6 * (torch.arange(n) % 5 == 1),
    "far away": lambda n: normal(n) + 1e5,
    "tiny": lambda n: 1e-20 * normal(n),
    "subnormal": lambda n: 1e-42 * (torch.arange(n) % 7),
    "heavy": lambda n: normal(n) / normal(n, seed=1).abs().clamp(min=1e-4),
    "one allowed": lambda n: torch.where(torch.arange(n) == n // 2, 0.0, -INF),
    "none allowed": lambda n: torch.full((n,), -INF),
    "sorted": lambda n: torch.linspace(-8, 8, n),
    "NaN": lambda n: torch.where(torch.arange(n) == n // 2, NAN, 0.0),
    "infinite": lambda n: torch.where(torch.arange(n) == n // 2, INF, 0.0),
}


@EVERY
@pytest.mark.parametrize("n", [5, 64, 700])
def test_hostile_rows(name, n):
    """Scores given by the mask: weights are read off by unit vectors, and equal those of the formula in float64."""
    scores = torch.stack([row(n).float() for row in ROWS.values()])
    zero = torch.zeros(1, 1, len(ROWS), 16), torch.zeros(1, 1, n, 16)
    eye = torch.eye(n)[None, None]
    bias = scores[None, None].clone().requires_grad_()
    for value in VALUES[name]:
        own = {setting(name).name: value}
        p = attention(*zero, eye, bias, mapping=name, **own)[0, 0]
        with dispatch.use("torch"):
            truth = REGISTRY[name].function(scores.double(), **own)
        if name == "topk_sparsemax":  # of equal scores any may be chosen
            order = lambda x: x.detach().double().nan_to_num(9.0).sort(-1).values  # noqa: E731
            torch.testing.assert_close(order(p), order(truth), rtol=2e-5, atol=2e-6)
        else:
            torch.testing.assert_close(p.double(), truth, rtol=2e-5, atol=2e-6, equal_nan=True)
        g = normal(len(ROWS), n, seed=4).float()
        (grad,) = torch.autograd.grad(p, bias, g)
        finite = ~truth.isnan().any(-1)
        assert grad[0, 0][finite].isfinite().all()


def random_parameter(name, generator):
    """Anywhere in the domain, ends included now and then."""
    u = torch.rand((), generator=generator).item()
    return {
        "sparsegen": 1 - 10 ** (4 * u - 2),
        "topk_sparsemax": int(1 + 100 * u**2),
        "budget_sparsemax": round(40 * u**2, 0 if u < 0.2 else 9),
        "rsoftmax": 1 - u if u > 0.1 else round(u),
        "tsoftmax": 10 ** (5 * u - 2),
        "normmax": 1 + 10 ** (2 * u - 2),
    }[name]


@EVERY
def test_random_rows(name):
    """Scores are those of the mask, the same in both; the gradient is compared where they do not decide it by 1e-6."""
    generator = torch.Generator().manual_seed(NAMES.index(name))
    for _ in range(CASES):
        n = int(torch.randint(1, 700, (), generator=generator))
        size = 10 ** (4 * torch.rand((), generator=generator).item() - 2)
        scores = size * torch.randn(4, n, generator=generator)
        scores[torch.rand(4, n, generator=generator) < 0.1] = -INF
        v, g = torch.randn(1, 1, n, 16, generator=generator), torch.randn(4, 16, generator=generator)
        own = {setting(name).name: random_parameter(name, generator)}
        results = []
        for dtype in (torch.float32, torch.float64):
            bias, value = scores.to(dtype).requires_grad_(), v.to(dtype).requires_grad_()
            if dtype == torch.float32:
                zero = torch.zeros(1, 1, 4, 16), torch.zeros(1, 1, n, 16)
                out = attention(*zero, value, bias, mapping=name, **own)[0, 0]
            else:
                with dispatch.use("torch"):
                    p = REGISTRY[name].function(bias, **own)
                    out = p @ value[0, 0]
            results.append([out.detach(), *torch.autograd.grad(out, (value, bias), g.to(dtype))])
        (out, by_value, by_score), (truth, true_by_value, true_by_score) = results
        scale = max(1.0, float(truth.abs().max()))
        torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-5 * scale)
        torch.testing.assert_close(by_value.double(), true_by_value, rtol=1e-5, atol=1e-5)
        steep = float(true_by_score.abs().max())
        wrong = (by_score.double() - true_by_score).abs().amax(-1) > 1e-4 * max(1.0, steep)
        assert wrong.sum() <= (1 if name in JUMPY else 0), (own, n, size)


@pytest.mark.parametrize("n", [5, 40, 63, 300, 700])
@pytest.mark.parametrize("size", [50.0, 120.0, 3e3])
def test_the_quantile_moves_with_scores_whose_weight_underflows(n, size):
    """e^(x - max) is 0 in float32 for the score above the quantile; part of the threshold's gradient is its own."""
    scores = size * normal(4, n, seed=3, dtype=torch.float32)
    v, g = normal(1, 1, n, 16, seed=4, dtype=torch.float32), normal(4, 16, seed=5, dtype=torch.float32)
    for rate in (0.1, 0.33, 0.78, 0.97):
        bias, wide = scores.clone().requires_grad_(), scores.double().requires_grad_()
        out = attention(torch.zeros(1, 1, 4, 16), torch.zeros(1, 1, n, 16), v, bias, mapping="rsoftmax", rate=rate)
        with dispatch.use("torch"):
            truth = parsimax.rsoftmax(wide, rate) @ v[0, 0].double()
        ours, wanted = (torch.autograd.grad(o, x, g.to(o))[0] for o, x in ((out[0, 0], bias), (truth, wide)))
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=5e-7)


@pytest.mark.parametrize("n", [1, 5, 40, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_queries_of_zeros_learn(n, dtype):
    """All scores are equal, so the quantile is the maximum: r-softmax is softmax over the maxima there."""
    k, v, g = (normal(1, 2, n, 16, seed=seed, dtype=dtype) for seed in range(3))
    q, keys = torch.zeros(1, 2, n, 16, dtype=dtype, requires_grad=True), k.requires_grad_()
    found = []
    for kernels in ("auto", "torch"):
        with dispatch.use(kernels):
            out = attention(q, keys, v, mapping="rsoftmax", rate=0.4)
            found.append((out, *torch.autograd.grad(out, (q, keys), g)))
    for ours, true in zip(*found, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-5, atol=1e-6)
    assert (found[0][1] != 0).any() == (n > 1)


@EVERY
def test_the_bits_depend_on_nothing_else(name):
    value = VALUES[name][0]
    q, k, v = draw(B=2, H=3, L=150, S=170, E=32, Ev=32)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            at = [t.clone().requires_grad_() for t in (q, k, v)]
            out = attention(*at, mapping=name, **{setting(name).name: value})
            results.append([out, *torch.autograd.grad(out.square().sum(), at)])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))
    part = attention(q[1:, 2:], k[1:, 2:], v[1:, 2:], mapping=name, **{setting(name).name: value})
    assert torch.equal(part, results[0][0][1:, 2:])


@EVERY
def test_values_without_weight_do_not_count(name):
    for size in (0.05, 3.0):
        q, k, v = draw(B=1, H=1, L=30, S=90, Ev=16)
        q = size * q
        own = {setting(name).name: VALUES[name][0]}
        weights = attention(q, k, torch.eye(90)[None, None], mapping=name, **own)
        for key in (11, 40):
            broken = v.clone()
            broken[0, 0, key] = NAN
            at = [t.clone().requires_grad_() for t in (q, k, broken)]
            out = attention(*at, mapping=name, **own)
            reads = weights[..., key] > 0
            assert out[reads].isnan().all()
            close(out[~reads], attention(q, k, v, mapping=name, **own)[~reads], 1e-6)
            (by_query,) = torch.autograd.grad(out, at[0], torch.ones_like(out))
            assert by_query[~reads].isfinite().all()


@EVERY
def test_second_derivatives_and_dropout(name):
    inputs = [t.requires_grad_() for t in draw(B=1, H=2, L=3, S=6, E=3, Ev=2, dtype=torch.float64)]
    value = 1.7 if name == "budget_sparsemax" else VALUES[name][0]  # a whole budget may be a kink
    if setting(name).continuous:
        inputs.append(torch.full((2, 1, 1), value, dtype=torch.float64, requires_grad=True))

    def run(q, k, v, parameter=value):
        torch.manual_seed(2)
        return attention(q, k, v, dropout_p=0.3, mapping=name, **{setting(name).name: parameter})

    assert torch.autograd.gradcheck(run, inputs)
    with dispatch.use("auto"):  # a gradient that is differentiated again is that of the formula
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@EVERY
def test_traced_code_holds_one_operator(name):
    names = []

    def backend(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if "parsimax" in str(node.target))
        return graph

    torch._dynamo.reset()
    own = {setting(name).name: VALUES[name][0]}
    q, k, v = (t.requires_grad_() for t in draw(L=12, S=30))
    ours = torch.compile(lambda *at: attention(*at, mapping=name, **own), backend=backend, fullgraph=True)(q, k, v)
    assert names == ["parsimax.attention"]
    truth = attention(q, k, v, mapping=name, **own)
    assert torch.equal(ours, truth)
    for a, b in zip(*(torch.autograd.grad(t.square().sum(), (q, k, v)) for t in (ours, truth)), strict=True):
        assert torch.equal(a, b)


def test_what_falls_to_the_formula():
    q, k, v = draw()
    with dispatch.use("auto"):
        text = parsimax.explain("attention", q, k, v, mapping="rsoftmax", rate=0.5)
        assert text.startswith("attention: cpu")
        text = parsimax.explain("attention", q, k, v, mapping="rsoftmax", rate=0.5, detach_threshold=True)
        assert "attention: torch" in text and "detach_threshold=True has no kernel" in text
        for bad in ({"rate": 1.5}, {"rate": torch.ones(3, 1)}, {}):
            with pytest.raises((ValueError, TypeError, RuntimeError)):
                attention(q, k, v, mapping="rsoftmax", **bad)
    outside = torch.tensor([0.5, -1.0, NAN, 0.9]).view(4, 1, 1)
    out = attention(q, k, v, mapping="rsoftmax", rate=outside)
    assert out[:, 1:3].isnan().all() and out[:, ::3].isfinite().all()
