"""Dropout of the fused attention: one mask in forward and backward, repeated by the seed, right in expectation."""

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cases import normal
from parsimax import AttentionCore, MultiheadAttention, attention, entmax_attention
from parsimax._attention.dropout import draw_seed, factors
from parsimax.kernels import dispatch, library
from test_attention import MASKS, close, draw, explicit

pytestmark = [
    pytest.mark.skipif(not library.AVAILABLE, reason=str(library.PROBLEM)),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),  # torch's own, in inductor
]
P = 0.3


@pytest.fixture(autouse=True)
def kernels():
    with dispatch.use("cpu"):
        yield


def seeded(function, seed=7):
    torch.manual_seed(seed)
    return function()


def mask_of(seed, *shape, p=P):
    """The factors that a call draws after ``manual_seed(seed)``."""
    torch.manual_seed(seed)
    return factors(draw_seed(), shape, p, torch.zeros((), dtype=torch.float64))


def dropped(q, k, v, mask, options):
    """Attention in float64 with the weights multiplied by ``mask``."""
    eye = torch.eye(k.shape[-2], dtype=torch.float64).expand(*k.shape[:-1], k.shape[-2])
    groups = q.shape[1] // v.shape[1]
    return (explicit(q, k, eye, **options) * mask) @ v.double().repeat_interleave(groups, 1)


@pytest.mark.parametrize("size", [0.05, 1.0, 3.0], ids=["dense", "mixed", "sparse"])
@pytest.mark.parametrize("lengths", [(1, 1), (7, 64), (65, 33), (40, 300)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_values_and_gradients_equal_those_of_the_masked_weights(dtype, lengths, size):
    """Rows through their support, rows through matrix products, and rows whose support was not kept."""
    L, S = lengths
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 2e-2}[dtype]
    alpha = torch.linspace(1.1, 2, 4, dtype=torch.float64).view(4, 1, 1)
    cases = [{"alpha": 1.5}, {"alpha": alpha, "is_causal": True}, {"attn_mask": MASKS["padding"](2, 4, L, S)}]
    for i, options in enumerate([*cases, {"attn_mask": MASKS["additive"](2, 4, L, S).to(dtype), "enable_gqa": True}]):
        q, k, v = draw(K=2 if i == 3 else 4, L=L, S=S, dtype=dtype)
        q = q * size
        learned = {n: t for n, t in options.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}
        at = [t.detach().clone().requires_grad_() for t in (q, k, v, *learned.values())]
        wide = [t.detach().double().requires_grad_() for t in at]
        more = options | dict(zip(learned, at[3:], strict=True))
        out = seeded(lambda at=at, more=more: entmax_attention(*at[:3], dropout_p=P, **more))
        with dispatch.use("torch"):
            more = options | dict(zip(learned, wide[3:], strict=True))
            truth = dropped(*wide[:3], mask_of(7, 2, 4, L, S), more)
        close(out, truth, tolerance)
        g = normal(*truth.shape, seed=9)
        expected = torch.autograd.grad(truth, wide, g)
        for ours, wanted in zip(torch.autograd.grad(out, at, g.to(dtype)), expected, strict=True):
            close(ours, wanted, 4 * tolerance * max(1.0, float(wanted.abs().max())))


def test_the_mean_over_many_draws_is_what_there_is_without_dropout():
    """Context and gradient by the values, within five standard errors; both are linear in the mask."""
    q, k, v = draw(B=1, H=2, L=6, S=30, Ev=4, dtype=torch.float64)
    torch.manual_seed(3)
    results = []
    for _ in range(2000):
        value = v.clone().requires_grad_()
        out = entmax_attention(q, k, value, dropout_p=P)
        results.append(torch.cat([out.flatten(), torch.autograd.grad(out.sum(), value)[0].flatten()]))
    value = v.clone().requires_grad_()
    out = entmax_attention(q, k, value)
    truth = torch.cat([out.flatten(), torch.autograd.grad(out.sum(), value)[0].flatten()])
    results = torch.stack(results)
    error = results.std(0) / math.sqrt(len(results))
    assert ((results.mean(0) - truth).abs() <= 5 * error + 1e-12).all()
    assert (error > 1e-4).sum() > 50


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_the_mask_keeps_its_share_and_is_independent(p):
    """Of row, head, key and seed: shares and correlations of neighbours within five standard errors."""
    shape = (4, 8, 64, 512)
    kept = (mask_of(1, *shape, p=p) > 0).double()
    other = (mask_of(2, *shape, p=p) > 0).double()
    spread = math.sqrt(p * (1 - p))
    assert abs(kept.mean() - (1 - p)) < 5 * spread / math.sqrt(kept.numel())
    for dims in ((0, 1, 2), (0, 1, 3), (2, 3)):  # of each key, each row, each head
        share = kept.mean(dims)
        assert (share - (1 - p)).abs().max() < 5.5 * spread / math.sqrt(kept.numel() / share.numel())
    centred = (kept - (1 - p)) / spread
    pairs = [(other - (1 - p)) / spread * centred]
    for dim in range(4):
        for step in (1, 2, 16):
            if step < shape[dim]:
                size = shape[dim] - step
                pairs.append(centred.narrow(dim, 0, size) * centred.narrow(dim, step, size))
    for product in pairs:
        assert abs(product.mean()) < 5 / math.sqrt(product.numel())
    words = kept[..., :508].reshape(-1, 4) @ torch.tensor([1.0, 2, 4, 8], dtype=torch.float64)  # four keys at once
    odds = torch.tensor([(1 - p) ** i.bit_count() * p ** (4 - i.bit_count()) for i in range(16)])
    expected = odds * len(words)
    counts = torch.bincount(words.long(), minlength=16)
    likely = expected > 20
    chi = ((counts - expected).square() / expected)[likely].sum()
    freedom = int(likely.sum()) - 1
    assert chi < freedom + 5 * math.sqrt(2 * max(1, freedom))


def test_the_generator_of_torch_repeats_it():
    q, k, v = draw(L=20, S=40)
    run = lambda: entmax_attention(q, k, v, dropout_p=P)  # noqa: E731
    first = seeded(run)
    assert torch.equal(seeded(run), first)
    assert not torch.equal(run(), first)
    torch.manual_seed(7)
    with torch.random.fork_rng():
        inside = run()
    assert torch.equal(run(), inside)
    state = torch.get_rng_state()
    entmax_attention(q, k, v)  # without dropout nothing is drawn
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_it(reentrant):
    layer = MultiheadAttention(16, 4, dropout=0.4, batch_first=True, alpha="learned")
    results = []
    for again in (False, True):
        x = normal(2, 30, 16).float().requires_grad_()
        torch.manual_seed(5)
        run = lambda x: layer(x, x, x, need_weights=False)[0]  # noqa: E731
        out = checkpoint(run, x, use_reentrant=reentrant) if again else run(x)
        out.square().sum().backward()
        results.append((out, x.grad))
    for ours, truth in zip(*results, strict=True):
        assert torch.equal(ours, truth)


def test_second_derivatives_see_the_same_mask():
    inputs = [t.requires_grad_() for t in draw(B=1, H=2, L=3, S=5, E=3, Ev=2, dtype=torch.float64)]
    alpha = torch.tensor([1.3, 1.7], dtype=torch.float64).view(2, 1, 1).requires_grad_()
    run = lambda q, k, v, a: seeded(lambda: entmax_attention(q, k, v, alpha=a, dropout_p=P))  # noqa: E731
    assert torch.autograd.gradcheck(run, (*inputs, alpha))
    assert torch.autograd.gradgradcheck(run, (*inputs, alpha), fast_mode=True)
    out = run(*inputs, alpha)
    plain, graph = (torch.autograd.grad(out.square().sum(), inputs, create_graph=c, retain_graph=True) for c in (0, 1))
    for a, b in zip(plain, graph, strict=True):
        close(a, b, 1e-10)


def test_the_bits_depend_on_nothing_else():
    """Neither on threads nor on the tile a row falls in nor on what lies behind it."""
    q, k, v = draw(B=2, H=3, L=150, S=170, E=32, Ev=32)
    run = lambda: seeded(lambda: entmax_attention(q, k, v, dropout_p=P))  # noqa: E731
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(run())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(r, results[0]) for r in results)
    head = seeded(lambda: entmax_attention(q[:1], k[:1], v[:1], dropout_p=P))
    assert torch.equal(head, results[0][:1])


def test_values_of_dropped_keys_are_not_read():
    q, k, v = draw(B=1, H=1, L=50, S=60, Ev=16)
    for size in (0.02, 3.0):
        mask = mask_of(7, 1, 1, 50, 60)
        broken = v.clone()
        broken[0, 0, 11] = math.nan
        given = [(size * q, k, t) for t in (broken, v)]
        out, whole = (seeded(lambda at=at: entmax_attention(*at, dropout_p=P)) for at in given)
        reads = entmax_attention(size * q, k, torch.eye(60).expand(1, 1, 60, 60))[..., 11] * mask[..., 11] != 0
        assert out[reads].isnan().all() and reads.any() and (~reads).any()
        close(out[~reads], whole[~reads], 1e-6)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_and_everything(p):
    q, k, v = (t.requires_grad_() for t in draw(L=20, S=40))
    for size in (0.02, 3.0):
        out = entmax_attention(size * q, k, v, dropout_p=p)
        close(out, entmax_attention(size * q, k, v) * (1 - p), 1e-12)
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert all((g == 0).all() == (p == 1) for g in grads)


def test_layers_train_by_the_kernel():
    q, k, v = draw(L=20, S=40)
    core = AttentionCore(4, alpha=1.5)
    ours = seeded(lambda: core(q, k, v, dropout_p=P))
    assert torch.equal(ours, seeded(lambda: entmax_attention(q, k, v, dropout_p=P)))
    assert torch.equal(ours, seeded(lambda: attention(q, k, v, dropout_p=P, mapping="entmax15")))
    with dispatch.use("auto"):
        out, weights = seeded(lambda: entmax_attention(q, k, v, dropout_p=P, return_weights=True))
        close(weights.sum(-1), torch.ones(2, 4, 20), 1e-6)  # those before dropout
        assert not torch.equal(out, ours)  # by the formula, whose stream is torch's own


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_draws_anew_and_repeats(backend, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a graph cached elsewhere may be of other schemas
    torch._dynamo.reset()
    run = torch.compile(lambda q, k, v: entmax_attention(q, k, v, dropout_p=P), backend=backend, fullgraph=True)
    q, k = (t.requires_grad_() for t in draw(L=20, S=40)[:2])
    eye = torch.eye(40).expand(2, 4, 40, 40).clone().requires_grad_()
    first, again = seeded(lambda: run(q, k, eye)), seeded(lambda: run(q, k, eye))
    assert torch.equal(first, again) and not torch.equal(run(q, k, eye), first)
    weights = entmax_attention(q, k, eye)
    on, kept = weights > 1e-3, first != 0
    close(first[kept], weights[kept] / (1 - P), 1e-5)
    assert abs((kept & on).sum() / on.sum() - (1 - P)) < 5 * math.sqrt(P * (1 - P) / on.sum())
    if backend == "aot_eager":  # inductor has a generator of its own, seeded by torch's
        assert torch.equal(first, seeded(lambda: entmax_attention(q, k, eye, dropout_p=P)))
    (ours,) = torch.autograd.grad(first.sum(), eye)  # sums the weights that were kept
    close(ours[..., 0], first.sum(-2), 1e-5)
