"""The contract of F.scaled_dot_product_attention, for formula and kernel, against explicit float64 attention."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import parsimax
from cases import normal, pairs
from parsimax._attention import attention, entmax_attention
from parsimax.kernels import dispatch, library
from parsimax.mappings import REGISTRY

INF, NAN = math.inf, math.nan
HALF = [torch.bfloat16, torch.float16]


@pytest.fixture(params=["torch", "cpu"])
def path(request):
    """The formula in plain torch, and the kernel where it was built."""
    if request.param == "cpu" and not library.AVAILABLE:
        pytest.skip("the C++ kernels were not built")
    with dispatch.use("torch" if request.param == "torch" else "auto"):
        yield request.param


@pytest.fixture(autouse=True)
def formula_unless_asked():
    with dispatch.use("torch"):
        yield


def draw(B=2, H=4, K=None, L=7, S=9, E=16, Ev=5, dtype=torch.float32, seed=0):
    sizes = (B, H, L, E), (B, K or H, S, E), (B, K or H, S, Ev)
    return tuple(normal(*size, seed=seed + i).mul(2 if i == 0 else 1).to(dtype) for i, size in enumerate(sizes))


def explicit(q, k, v, alpha=1.5, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Attention in a few lines of float64."""
    q, k, v = (t.double() for t in (q, k, v))
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -INF)
    elif attn_mask is not None:
        scores = scores + attn_mask.double()
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -INF)
    return parsimax.entmax(scores, alpha.double() if isinstance(alpha, torch.Tensor) else alpha) @ v


def close(ours, truth, tolerance=1e-5):
    torch.testing.assert_close(ours.double(), truth.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def eps(x):
    return torch.finfo(x.dtype).eps


def check(q, k, v, tolerance=1e-5, **options):
    """Value and gradients by q, k, v, and by α and the mask if they are floating-point tensors."""
    others = {n: t for n, t in options.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v, *others.values())]
    wide = [t.detach().double().requires_grad_() for t in leaves]

    def run(function, at):
        return function(*at[:3], **(options | dict(zip(others, at[3:], strict=True))))

    out = run(entmax_attention, leaves)
    with dispatch.use("torch"):
        truth = run(explicit, wide)
    assert out.dtype == q.dtype
    close(out, truth, tolerance)
    weights = normal(*truth.shape, seed=9)
    expected = torch.autograd.grad(truth, wide, weights)
    # Rounding moves every element of a sum: the tolerance is that of the largest.
    for ours, wanted in zip(torch.autograd.grad(out, leaves, weights.to(out)), expected, strict=True):
        close(ours, wanted, 4 * tolerance * max(1.0, float(wanted.abs().max()) if wanted.numel() else 1.0))
    # torch.matmul joins dimensions in another way where no gradient is asked for, and its products round otherwise.
    with torch.no_grad():
        close(run(entmax_attention, leaves), out, 1e-12 if dispatch.wanted() != "torch" else 4 * eps(q))
    return out


def additive(*shape):
    """Numbers, and -inf for about a third; the first key of each query is allowed."""
    mask = normal(*shape, seed=5).float()
    mask = mask.masked_fill(normal(*shape, seed=6) < -0.4, -INF)
    mask[..., 0] = 0
    return mask


MASKS = {
    "none": lambda B, H, L, S: None,
    "bool": lambda B, H, L, S: additive(B, H, L, S) > -INF,
    "bool-LS": lambda B, H, L, S: additive(L, S) > -INF,
    "padding": lambda B, H, L, S: additive(B, 1, 1, S) > -INF,
    "per-head": lambda B, H, L, S: additive(1, H, L, S) > -INF,
    "per-query": lambda B, H, L, S: additive(B, H, L, 2)[..., 1:] > -INF,
    "additive": lambda B, H, L, S: additive(B, H, L, S),
    "additive-LS": lambda B, H, L, S: additive(L, S),
    "additive-padding": lambda B, H, L, S: additive(B, 1, 1, S),
    "additive-per-head": lambda B, H, L, S: additive(1, H, L, S),
    "row": lambda B, H, L, S: additive(S),
    "scalar": lambda B, H, L, S: torch.tensor(0.5),
}
LENGTHS = [(1, 1), (1, 7), (7, 1), (7, 64), (64, 65), (65, 33), (13, 131)]


@pytest.mark.parametrize(
    ("mask", "lengths", "path"), pairs(MASKS, LENGTHS, ["torch", "cpu"]), indirect=["path"], ids=str
)
def test_masks_and_lengths(mask, lengths, path):
    L, S = lengths
    for alpha in (1.5, normal(4, 1, 1, seed=8).sigmoid().float() * 0.8 + 1):
        check(*draw(L=L, S=S), alpha=alpha, attn_mask=MASKS[mask](2, 4, L, S))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_without_keys_the_context_is_zero(path, dtype):
    for _ in range(20):
        poison = [torch.full((size,), math.nan) for size in (5_000, 50_000)]  # what scratch memory may hold
        del poison
        q, k, v = draw(S=0, dtype=dtype)
        out = entmax_attention(q.requires_grad_(), k, v, alpha=1.5)
        out.sum().backward()
        assert (out == 0).all() and (q.grad == 0).all()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_causal(path, lengths):
    L, S = lengths
    for alpha in (1.0, 1.25, 1.5, 2.0):
        check(*draw(L=L, S=S), alpha=alpha, is_causal=True)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.001, 1.2, 1.5, 1.7, 2.0, 2.5, INF])
def test_alpha(path, alpha):
    check(*draw(S=40, dtype=torch.float64), alpha=alpha, tolerance=1e-9)
    if alpha <= 2:  # above, a score near the threshold moves the weights by more than rounding
        check(*draw(S=40), alpha=alpha)


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (2, 1, 1, 1), (2, 4, 1, 1), (7, 1), (2, 4, 7, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_alpha_of_any_shape(path, shape, dtype):
    for a in (torch.float64, torch.float32):
        alpha = (1 + 0.8 * normal(*shape, seed=8).sigmoid()).to(a)
        check(*draw(S=30, dtype=dtype), alpha=alpha, is_causal=True)


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (6, 3), (6, 2), (6, 1)], ids=str)
def test_grouped_heads(path, heads):
    H, K = heads
    for options in ({}, {"is_causal": True}, {"attn_mask": additive(1, H, 7, 9)}):
        check(*draw(H=H, K=K), enable_gqa=True, alpha=torch.linspace(1.1, 1.9, H).view(H, 1, 1), **options)


def test_key_and_value_may_group_differently(path):
    q, k, _ = draw(H=6, K=2)
    v = draw(H=6, K=3)[2]
    check(q, k, v, enable_gqa=True)
    close(
        entmax_attention(q, k, v, alpha=1, enable_gqa=True),
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        1e-6,
    )


SHAPES = [  # of query, key, value and mask
    ((7, 8), (9, 8), (9, 5), (7, 9)),
    ((3, 7, 8), (3, 9, 8), (3, 9, 5), (3, 1, 9)),
    ((7, 8), (3, 9, 8), (3, 9, 5), None),
    ((2, 3, 7, 8), (9, 8), (9, 5), (2, 1, 7, 1)),
    ((2, 1, 7, 8), (1, 3, 9, 8), (9, 5), (2, 3, 1, 9)),
    ((7, 8), (9, 8), (2, 3, 9, 5), (2, 1, 7, 9)),
    ((2, 1, 3, 7, 8), (2, 2, 1, 9, 8), (1, 2, 3, 9, 5), (2, 1, 3, 1, 9)),
    ((2, 2, 2, 3, 2, 8), (2, 2, 2, 3, 4, 8), (2, 2, 2, 3, 4, 5), (2, 1, 1, 1, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_leading_dimensions_broadcast(path, shapes):
    *sizes, mask = shapes
    q, k, v = (normal(*size, seed=i).float() for i, size in enumerate(sizes))
    for attn_mask in (None,) if mask is None else (additive(*mask), additive(*mask) > -INF):
        out = check(q, k, v, attn_mask=attn_mask)
        assert out.shape == (*torch.broadcast_shapes(*(size[:-2] for size in sizes)), q.shape[-2], 5)
        _, weights = entmax_attention(q, k, v, attn_mask=attn_mask, return_weights=True)
        assert weights.shape == (*out.shape[:-1], k.shape[-2])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_half_types_are_rounded_once(path, dtype, alpha):
    q, k, v = draw(L=20, S=40, dtype=dtype)
    for options in (
        {},
        {"is_causal": True},
        {"attn_mask": additive(20, 40)},
        {"attn_mask": additive(20, 40).to(dtype)},
    ):
        out = check(q, k, v, alpha=alpha, tolerance={torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype], **options)
        truth = explicit(q, k, v, alpha, **options)
        ulp = torch.finfo(dtype).eps * torch.frexp(truth)[1].to(torch.float64).exp2() / 2
        assert ((out.double() - truth).abs() <= 0.51 * ulp + 1e-6).all()


def test_scale(path):
    for scale in (0.0, -0.5, 2.0, 1):
        check(*draw(), scale=scale)
    q, k, v = draw()
    with pytest.raises(TypeError, match="multiply the query"):
        entmax_attention(q, k, v, scale=torch.tensor(1.0, requires_grad=True))
    with pytest.raises(ValueError, match="scale must be"):
        entmax_attention(q, k, v, scale=INF)


def test_sizes_of_zero(path):
    for shape in ({"S": 0}, {"L": 0}, {"B": 0}, {"H": 0}, {"E": 0}, {"Ev": 0}, {"L": 0, "S": 0}):
        q, k, v = (t.requires_grad_() for t in draw(**shape))
        for options in ({}, {"is_causal": True}, {"attn_mask": torch.ones(q.shape[-2], k.shape[-2]).bool()}):
            out = entmax_attention(q, k, v, alpha=1.0, **options)
            torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, **options))
            for t, g in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
                assert g.shape == t.shape and g.isfinite().all()


def test_fully_masked_queries_give_zeros_and_zero_gradients(path):
    q, k, v = draw(dtype=torch.float64)
    allowed = torch.ones(7, 9, dtype=torch.bool)
    allowed[2] = False
    alpha = torch.full((4, 1, 1), 1.3, dtype=torch.float64)
    for mask in (allowed, torch.zeros(7, 9, dtype=torch.float64).masked_fill(~allowed, -INF)):
        out = check(q, k, v, alpha=alpha, attn_mask=mask)
        assert (out[:, :, 2] == 0).all() and (out[:, :, 3] != 0).any()
        assert (F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, :, 2] == 0).all()
        leaves = [t.clone().requires_grad_() for t in (q, k, v, alpha)]
        out = entmax_attention(*leaves[:3], alpha=leaves[3], attn_mask=mask)
        for grad in torch.autograd.grad(out[:, :, 2].sum(), leaves):
            assert (grad == 0).all()


def test_forbidden_keys_get_no_weight_and_no_gradient(path):
    q, k, v = (t.requires_grad_() for t in draw())
    allowed = torch.arange(9) < 5
    for mask in (allowed.view(1, 1, 1, 9), torch.zeros(9).masked_fill(~allowed, -INF)):
        for grad in torch.autograd.grad(entmax_attention(q, k, v, attn_mask=mask).square().sum(), (k, v)):
            assert (grad[:, :, 5:] == 0).all() and (grad[:, :, :5] != 0).any()
    _, weights = entmax_attention(q, k, v, attn_mask=allowed, return_weights=True)
    assert (weights[..., 5:] == 0).all()
    close(weights.sum(-1), torch.ones(2, 4, 7), 1e-6)


def test_forbidden_scores_are_not_read(path):
    q, k, v = draw()
    broken = k.masked_fill((torch.arange(9) >= 5).view(9, 1), NAN)
    allowed = torch.arange(9) < 5
    for mask in (allowed, torch.zeros(9).masked_fill(~allowed, -INF)):
        close(entmax_attention(q, broken, v, attn_mask=mask), entmax_attention(q, k, v, attn_mask=mask), 1e-6)
    ours, truth = (entmax_attention(q[:, :, :5], keys, v, is_causal=True) for keys in (broken, k))
    close(ours, truth, 1e-6)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.02, 1.0, 4.0], ids=["dense", "mixed", "sparse"])
def test_a_value_with_weight_zero_does_not_count(path, size, dtype, value):
    """Neither in rows with few keys nor in those that go through a matrix product, be it forbidden or just small."""
    q, k, v = draw(B=1, H=2, L=90, S=101, E=16, Ev=16)
    k[..., 60:, :], q[..., 0] = size * k[..., 60:, :], 1.0
    k[..., 7, :] = 0
    k[..., 7, 0] = -300.0  # in no support
    q, k, v = (t.to(dtype) for t in (q * size, k, v))
    broken, weights = v.clone(), normal(1, 2, 90, 16, seed=9).to(dtype)
    broken[..., [7, 50, 100], :3] = value
    allowed = torch.ones(101, dtype=torch.bool)
    allowed[[50, 100]] = False
    upto = torch.arange(90).view(90, 1) >= torch.arange(101)
    for mask in (allowed, allowed & upto):
        results = []
        for values in (broken, v):
            leaves = [t.clone().requires_grad_() for t in (q, k, values)]
            out = entmax_attention(*leaves, attn_mask=mask)
            results.append([out, *torch.autograd.grad(out, leaves, weights)])
        for ours, truth in zip(*results, strict=True):
            close(ours, truth, 1e-5 if dtype == torch.float32 else 1e-2)
    counted = entmax_attention(q, k, broken)  # key 50 is attended to by some, and they say so
    share = entmax_attention(q, k, v, return_weights=True)[1][..., [50, 100]].amax(-1) > 0
    wanted = torch.full_like(counted[..., 0], value)
    close(counted[..., 0].where(share, 0), wanted.where(share, 0))
    assert counted[..., 0].where(~share, 0).isfinite().all()


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_broken_query_breaks_itself_only(path, value):
    q, k, v = draw()
    whole = entmax_attention(q, k, v)
    q[0, 1, 3, 0] = value
    out = entmax_attention(q, k, v)
    assert out[0, 1, 3].isnan().all()
    out[0, 1, 3] = whole[0, 1, 3]
    close(out, whole, 1e-6)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    (grad,) = torch.autograd.grad(entmax_attention(*leaves).sum(), leaves[:1])
    assert grad[0, 1, 3].isnan().any()
    grad[0, 1, 3] = 0
    assert grad.isfinite().all()


def test_alpha_outside_of_its_domain(path):
    q, k, v = draw()
    for alpha in (-1.0, NAN):
        with pytest.raises(ValueError, match=r"alpha must be in \[0, inf\]"):
            entmax_attention(q, k, v, alpha=alpha)
    alpha = torch.tensor([1.5, -1.0, NAN, 2.0]).view(4, 1, 1)
    out = entmax_attention(q, k, v, alpha=alpha)
    assert out[:, 1:3].isnan().all() and out[:, ::3].isfinite().all()


def test_strides_do_not_matter_and_inputs_stay_as_they_are(path):
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in draw(L=13, S=21, E=32, Ev=16))
    mask = additive(2, 4, 21, 13).transpose(-2, -1)
    mask = mask.masked_fill(torch.arange(21) == 0, 0)
    strange = torch.as_strided(torch.cat([mask.flatten(), mask.flatten()]), mask.shape, (13 * 21 * 4, 13 * 21, 1, 13))
    for attn_mask in (mask, strange, mask[:, :, ::2].repeat_interleave(2, -2)[:, :, :13]):
        for t in (attn_mask, attn_mask > -INF):
            inputs = (q, k, v, t)
            before = [x.clone() for x in inputs]
            check(q, k, v, attn_mask=t)
            assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    wide = draw(L=13, S=21, E=64, Ev=32)
    check(wide[0][..., ::2], wide[1][..., ::2], wide[2][..., ::2])
    check(wide[0].expand(2, 4, 13, 64), wide[1][:1].expand(2, 4, 21, 64), wide[2][:, :1].expand(2, 4, 21, 32))
    check(wide[0].flip(-1).movedim(-1, 0).movedim(0, -1), wide[1], wide[2])


def test_many_dense_rows(path):
    """More keys in the support than the kernel keeps: it computes their scores again."""
    q, k, v = draw(B=1, H=2, L=37, S=200, E=8)
    for alpha in (1.0, 1.5, torch.full((2, 1, 1), 1.4)):
        check(q * 0.01, k, v, alpha=alpha, attn_mask=additive(37, 200))
        check(q * 0.01, k, v, alpha=alpha, is_causal=True)


# torch's own attention, to the word


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alpha_one_equals_torch(path, mask, dtype):
    q, k, v = (t.requires_grad_() for t in draw(dtype=dtype))
    attn_mask = MASKS[mask](2, 4, 7, 9)
    if attn_mask is not None and attn_mask.dim() < 2:
        attn_mask = attn_mask.expand(7, 9)  # torch does not take fewer dimensions beside 4 of the query
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
    for ours in (
        entmax_attention(q, k, v, alpha=1, attn_mask=attn_mask),
        attention(q, k, v, mapping="softmax", attn_mask=attn_mask),
    ):
        torch.testing.assert_close(ours, theirs)
        grads = [torch.autograd.grad(out.square().sum(), (q, k, v), retain_graph=True) for out in (ours, theirs)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_causal_alignment_is_that_of_torch(path, lengths):
    q, k, v = draw(L=lengths[0], S=lengths[1])
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(entmax_attention(q, k, v, alpha=1.0, is_causal=True), theirs)


def sizes(*shapes, dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


Q, K, V = sizes((2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 6))
WRONG = {
    "one dimension": ((Q[0, 0, 0], K, V), {}, ValueError, r"query must have at least 2 dimensions.*\(8,\)"),
    "features": ((Q, K[..., :7], V), {}, ValueError, "share E"),
    "keys": ((Q, K, V[:, :, :4]), {}, ValueError, "share S"),
    "batch": ((Q, K.repeat(2, 1, 1, 1)[:3], V), {}, ValueError, "do not broadcast"),
    "heads": ((Q, K[:, :2], V[:, :2]), {}, ValueError, "enable_gqa=True"),
    "heads that do not divide": ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}, ValueError, "must divide"),
    "no heads": ((Q[0, 0], K[0, 0], V[0, 0]), {"enable_gqa": True}, ValueError, "needs heads"),
    "dtypes": ((Q, K.double(), V), {}, TypeError, "one dtype.*float32, torch.float64"),
    "integers": ((Q.long(), K.long(), V.long()), {}, TypeError, "floating point, got torch.int64"),
    "integer mask": ((Q, K, V), {"attn_mask": torch.ones(3, 5).long()}, TypeError, "got torch.int64"),
    "wider mask": ((Q, K, V), {"attn_mask": torch.ones(3, 5).double()}, TypeError, "got torch.float64"),
    "shape of the mask": ((Q, K, V), {"attn_mask": torch.ones(4, 5)}, ValueError, r"\(4, 5\).*\(2, 4, 3, 5\)"),
    "enlarging mask": ((Q[:1], K[:1], V[:1]), {"attn_mask": torch.ones(7, 1, 3, 5)}, ValueError, "does not broadcast"),
    "mask and causal": (
        (Q, K, V),
        {"attn_mask": torch.ones(3, 5).bool(), "is_causal": True},
        RuntimeError,
        "Explicit attn_mask should not be set when is_causal=True",
    ),
    "dropout": ((Q, K, V), {"dropout_p": 1.1}, ValueError, r"dropout_p must be in \[0, 1\], got 1.1"),
    "scale": ((Q, K, V), {"scale": "large"}, TypeError, "scale must be a number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses_is_refused(path, name):
    inputs, options, error, match = WRONG[name]
    with pytest.raises((RuntimeError, IndexError, TypeError)):
        F.scaled_dot_product_attention(*inputs, **options)
    for function in (entmax_attention, attention, partial(attention, mapping="rsoftmax", rate=0.5)):
        with pytest.raises(error, match=match):
            function(*inputs, **options)


def test_wrong_alphas(path):
    with pytest.raises(ValueError, match=r"\(4,\).*alpha\.view\(4, 1, 1\)"):
        entmax_attention(Q, K, V, alpha=torch.full((4,), 1.5))
    with pytest.raises(ValueError, match=r"\(4, 1\) must be 0-dim or broadcast to \(2, 4, 3, 1\)"):
        entmax_attention(Q, K, V, alpha=torch.full((4, 1), 1.5))
    with pytest.raises(ValueError, match="broadcast"):
        entmax_attention(Q[0], K[0], V[0], alpha=torch.full((2, 4, 1, 1), 1.5))
    with pytest.raises(TypeError, match=r"floating point, got torch\.int64"):
        entmax_attention(Q, K, V, alpha=torch.tensor(2))
    with pytest.raises(TypeError, match="a number or a tensor"):
        entmax_attention(Q, K, V, alpha="1.5")
    with pytest.raises(TypeError, match=r"query must be a torch\.Tensor, got list"):
        entmax_attention([1.0], K, V)
    with pytest.raises(TypeError, match=r"attn_mask must be a torch\.Tensor"):
        entmax_attention(Q, K, V, attn_mask=[True])


ALLOWED = additive(7, 9) > -INF


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
@pytest.mark.parametrize("low", HALF)
def test_autocast(path, dtype, low):
    leaves = [t.requires_grad_() for t in draw(dtype=dtype)]
    alpha = torch.full((4, 1, 1), 1.5, requires_grad=True)
    for options in ({}, {"attn_mask": ALLOWED}, {"attn_mask": additive(7, 9)}, {"return_weights": True}):
        if dtype == torch.float64 and options.get("attn_mask", ALLOWED).dtype != torch.bool:
            continue  # torch lowers the mask but not the query, and refuses what it made
        with torch.autocast("cpu", dtype=low):
            theirs = F.scaled_dot_product_attention(*leaves, attn_mask=options.get("attn_mask"))
            ours = entmax_attention(*leaves, alpha=alpha, **options)
        ours, *rest = ours if isinstance(ours, tuple) else (ours,)
        assert all(t.dtype == theirs.dtype for t in (ours, *rest))
        inputs = [t.to(theirs.dtype) for t in leaves]
        truth = explicit(*inputs, attn_mask=options.get("attn_mask"))
        close(ours, truth.to(theirs.dtype), 1.01 * torch.finfo(theirs.dtype).eps if theirs.dtype in HALF else 1e-9)
        grads = torch.autograd.grad(ours.sum(), [*leaves, alpha])
        assert [g.dtype for g in grads] == [dtype] * 3 + [torch.float32]
    with torch.autocast("cpu", dtype=low):
        assert entmax_attention(leaves[0].float(), leaves[1].to(low), leaves[2].float()).dtype == low


# dropout and weights


def test_weights_are_exact_and_before_dropout(path):
    q, k, v = draw(S=40, dtype=torch.float64)
    for options in ({}, {"is_causal": True}, {"attn_mask": additive(7, 40)}, {"alpha": torch.full((4, 1, 1), 1.2)}):
        out, weights = entmax_attention(q, k, v, return_weights=True, **options)
        close(weights @ v, out, 1e-6)
        close(out, entmax_attention(q, k, v, **options))
        truth = explicit(q, k, torch.eye(40).expand(2, 4, 40, 40), **options)
        close(weights, truth, 1e-12)
        assert ((weights == 0) == (truth == 0)).all() and 0 < (weights == 0).float().mean() < 1
        dropped, same = entmax_attention(q, k, v, dropout_p=0.5, return_weights=True, **options)
        assert torch.equal(same, weights) and not torch.allclose(dropped, out)
    weights = entmax_attention(*(t.requires_grad_() for t in (q, k, v)), return_weights=True)[1]
    assert torch.autograd.grad(weights.square().sum(), q)[0].abs().max() > 1e-3


def test_dropout(path):
    q, k, _ = draw(B=4, L=50, S=50)
    eye = torch.eye(50).expand(4, 4, 50, 50)
    weights = entmax_attention(q, k, eye)
    torch.manual_seed(0)
    dropped = entmax_attention(q, k, eye, dropout_p=0.3)
    on = weights > 1e-3
    kept = on & (dropped != 0)
    close(dropped[kept], weights[kept] / 0.7)
    assert abs(kept.sum() / on.sum() - 0.7) < 4 * math.sqrt(0.21 / on.sum())
    assert (dropped[weights == 0] == 0).all()
    assert (entmax_attention(q, k, eye, dropout_p=1.0) == 0).all()
    assert torch.equal(entmax_attention(q, k, eye, dropout_p=0.0), weights)
    torch.manual_seed(0)
    assert torch.equal(entmax_attention(q, k, eye, dropout_p=0.3), dropped)


# any mapping


@pytest.mark.parametrize("name", REGISTRY)
def test_every_mapping(path, name):
    entry = REGISTRY[name]
    settings = {} if entry.setting is None else {entry.setting.name: entry.setting.example}
    q, k, v = draw(S=12, dtype=torch.float64)
    allowed = additive(1, 1, 7, 12) > -INF
    weights = entry.function((q @ k.transpose(-2, -1) / 4).masked_fill(~allowed, -INF), **settings)
    module = entry.module(**settings)
    for mapping, own in ((name, settings), (entry.function, settings), (module, {})):
        out, ours = attention(q, k, v, mapping=mapping, attn_mask=allowed, return_weights=True, **own)
        close(ours, weights, 1e-12)
        close(out, weights @ v, 1e-12)
        close(attention(q, k, v, mapping=mapping, attn_mask=allowed, **own), out, 1e-9)
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = attention(*leaves, mapping=mapping, attn_mask=allowed, **own)
        assert all(g.abs().max() > 1e-3 for g in torch.autograd.grad(out.square().sum(), leaves))
    if entry.setting and entry.setting.continuous:
        per_head = torch.full((4, 1, 1), entry.setting.example, dtype=torch.float64, requires_grad=True)
        out = attention(q, k, v, mapping=name, attn_mask=allowed, **{entry.setting.name: per_head})
        close(out, weights @ v, 1e-9)
        assert torch.autograd.grad(out.square().sum(), per_head)[0].abs().min() > 0


def test_mappings_that_do_not_fit(path):
    with pytest.raises(ValueError, match="no mapping is called 'hardmax'"):
        attention(Q, K, V, mapping="hardmax")
    with pytest.raises(TypeError, match="mapping must be a name"):
        attention(Q, K, V, mapping=torch.softmax)
    with pytest.raises(TypeError, match="sparsemax has no setting alpha"):
        attention(Q, K, V, mapping="sparsemax", alpha=1.5)
    with pytest.raises(TypeError, match="rate"):
        attention(Q, K, V, mapping="rsoftmax")
    with pytest.raises(ValueError, match="dim=1"):
        attention(Q, K, V, mapping=parsimax.Sparsemax(dim=1))
    with pytest.raises(ValueError, match=r"alpha\.view\(4, 1, 1\)"):
        attention(Q, K, V, mapping="entmax", alpha=torch.full((4,), 1.5))
