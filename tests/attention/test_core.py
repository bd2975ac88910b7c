"""AttentionCore: every mapping and setting against explicit float64 attention; observers, schedules, length scaling."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

import parsimax
from cases import normal, pairs
from parsimax import AttentionCore, LengthScaling, schedules
from parsimax._attention import observation
from parsimax.kernels import dispatch, library
from parsimax.mappings import REGISTRY

INF = math.inf
B, H, L, S, E = 2, 4, 7, 9, 6


@pytest.fixture(params=["torch", "cpu"])
def path(request):
    if request.param == "cpu" and not library.AVAILABLE:
        pytest.skip(library.PROBLEM)
    with dispatch.use("torch" if request.param == "torch" else "auto"):
        yield request.param


def draw(B=B, H=H, K=None, L=L, S=S, E=E, dtype=torch.float64, seed=0):
    sizes = (B, H, L, E), (B, K or H, S, E), (B, K or H, S, 5)
    return tuple((normal(*size, seed=seed + i) * (3 if i == 0 else 1)).to(dtype) for i, size in enumerate(sizes))


def settings(name):
    setting = REGISTRY[name].setting
    return {} if setting is None else {setting.name: setting.example}


def as_bool(mask, is_causal, L, S):
    if is_causal:
        return torch.ones(L, S).tril().bool()
    if mask is None:
        return torch.ones(L, S).bool()
    return mask if mask.dtype == torch.bool else mask > -INF


def weights_of(q, k, mapping, /, mask=None, is_causal=False, factor=1.0, **options):
    """The weights in a few lines of float64."""
    q, k = q.double(), k.double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) * factor
    allowed = as_bool(mask, is_causal, *scores.shape[-2:])
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.double()
    return REGISTRY[mapping].function(scores.masked_fill(~allowed, -INF), **options)


def close(ours, truth, tolerance=1e-10):
    torch.testing.assert_close(ours.double(), truth.double(), rtol=tolerance, atol=tolerance)


def allowed(*shape):
    mask = normal(*shape, seed=5) > -0.4
    mask[..., 0] = True
    return mask


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "padding": {"mask": allowed(B, 1, 1, S)},
    "LS": {"mask": allowed(L, S)},
    "all": {"mask": allowed(B, H, L, S)},
    "additive": {"mask": normal(1, H, L, S, seed=6).float().masked_fill(~allowed(1, H, L, S), -INF)},
    "keys": {"mask": allowed(S)},
    "queries": {"mask": torch.tensor([True, False, True, True, False, True, True]).view(L, 1)},
}


def called(options):
    return {("attn_mask" if name == "mask" else name): value for name, value in options.items()}


# any mapping


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("mask", MASKS)
def test_every_mapping_gives_its_weights_and_context(path, name, mask):
    q, k, v = draw(K=2)
    own, options = settings(name), MASKS[mask]
    truth = weights_of(q, k, name, **options, **own)
    for core in (AttentionCore(H, name, **own), AttentionCore(H, REGISTRY[name].module(**own))):
        out, weights = core(q, k, v, enable_gqa=True, return_weights=True, **called(options))
        close(weights, truth)
        assert ((weights == 0) == (truth == 0)).all()
        close(out, truth @ v.repeat_interleave(2, 1))
        close(core(q, k, v, enable_gqa=True, **called(options)), out)
        assert not core.state_dict() and core.name == name


@pytest.mark.parametrize("name", REGISTRY)
def test_some_heads_only(path, name):
    q, k, v = draw(K=2)
    own = settings(name)
    core = AttentionCore(H, name, heads=[0, -1], **own)
    for mask in ("none", "causal", "all", "additive"):
        options = MASKS[mask]
        truth = weights_of(q, k, "softmax", **options)
        truth[:, [0, 3]] = weights_of(q, k, name, **options, **own)[:, [0, 3]]
        out, weights = core(q, k, v, enable_gqa=True, return_weights=True, **called(options))
        close(weights, truth, 1e-6)
        close(out, truth @ v.repeat_interleave(2, 1), 1e-5)
        close(core(q, k, v, enable_gqa=True, **called(options)), out, 1e-6)
    if name in ("entmax", "sparsemax", "entmax15"):
        value = {"sparsemax": 2.0}.get(name, 1.5)
        assert core.alpha.tolist() == [value, 1, 1, value]
    assert "heads=[0, 3]" in repr(core)


@pytest.mark.parametrize(
    ("lengths", "heads", "dtype", "path"),
    pairs(
        [(1, 1), (3, 17), (33, 5), (65, 67)],
        [(1, 1), (5, 1), (6, 3)],
        [torch.float32, torch.bfloat16, torch.float16],
        ["torch", "cpu"],
    ),
    indirect=["path"],
    ids=str,
)
def test_types_lengths_and_heads(lengths, heads, dtype, path):
    q, k, v = draw(H=heads[0], K=heads[1], L=lengths[0], S=lengths[1], dtype=dtype)
    core = AttentionCore(heads[0], alpha="learned", alpha_start=torch.linspace(1.1, 1.9, heads[0]))
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    for is_causal in (False, True):
        truth = weights_of(q, k, "entmax", is_causal=is_causal, alpha=core.alpha.double().view(-1, 1, 1))
        out, weights = core(q, k, v, is_causal=is_causal, enable_gqa=True, return_weights=True)
        assert out.dtype == weights.dtype == dtype
        close(weights, truth, tolerance)
        close(out, truth @ v.double().repeat_interleave(heads[0] // heads[1], 1), tolerance)
        close(core(q, k, v, is_causal=is_causal, enable_gqa=True), out, tolerance)


# α


def test_alpha_of_every_mapping():
    for name, value in (("softmax", 1), ("entmax15", 1.5), ("sparsemax", 2), ("entmax", 1.5), ("normmax", 2)):
        assert AttentionCore(3, name, **settings(name)).alpha.tolist() == [value] * 3
    assert AttentionCore(3, "rsoftmax", rate=0.5).alpha is None
    assert AttentionCore(3).name == "softmax" and AttentionCore(3, alpha=1.3).name == "entmax"
    each = torch.tensor([1.2, 1.3, 1.4])
    for alpha in (each, each.view(3, 1, 1), nn.Parameter(each)):
        core = AttentionCore(3, alpha=alpha)
        assert core.alpha.tolist() == each.tolist()
        assert list(core.state_dict()) == (["fixed_alpha"] if isinstance(alpha, nn.Parameter) else [])
    one = AttentionCore(3, alpha=nn.Parameter(torch.tensor(1.7, dtype=torch.float64)))
    q, k, v = draw(H=3)
    close(one(q, k, v), parsimax.entmax_attention(q, k, v, alpha=1.7))


def test_learned_alpha(path):
    core = AttentionCore(H, alpha="learned", alpha_start=1.3, interval=(1, 3))
    assert [name for name, _ in core.named_parameters()] == ["learned_alpha.raw"]
    torch.testing.assert_close(core.alpha, torch.full((H,), 1.3))
    q, k, v = (t.requires_grad_() for t in draw(dtype=torch.float32))
    optimiser = torch.optim.SGD(core.parameters(), 1e6)
    for _ in range(3):
        optimiser.zero_grad()
        core(q, k, v, is_causal=True).square().sum().backward()
        assert (core.learned_alpha.raw.grad != 0).all() or not ((core.alpha > 1) & (core.alpha < 3)).all()
        optimiser.step()
        assert ((core.alpha >= 1) & (core.alpha <= 3)).all()
    assert core.alpha.unique().numel() > 1 or core.alpha[0] in (1, 3)


@pytest.mark.parametrize("mask", ["causal", "padding", "additive", "queries"])
def test_gradcheck_of_alpha_per_head(path, mask):
    q, k, v = draw(B=1, H=2, L=3, S=4, E=2)
    options = called(MASKS[mask])
    if mask != "causal":
        options["attn_mask"] = options["attn_mask"].expand(B, H, L, S)[:1, :2, :3, :4].clone()
    core = AttentionCore(2, alpha="learned", alpha_start=torch.tensor([1.2, 1.7]), length_scaling=True).double()
    names, values = zip(*core.named_parameters(), strict=True)
    assert len(names) == 3

    def run(q, k, v, *parameters):
        at = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(core, at, (q, k, v), options)

    inputs = [t.detach().clone().requires_grad_() for t in (q, k, v, *values)]
    # Every entry of one mask; test_attention.py has those of every kind of mask.
    assert torch.autograd.gradcheck(run, inputs, fast_mode=mask != "additive")
    first = torch.autograd.grad(run(*inputs).square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
    assert all(g.abs().max() > 1e-6 for g in (*first, *second)), "a silent zero"
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("name", [n for n, e in REGISTRY.items() if e.setting is None or e.setting.continuous])
def test_gradcheck_of_every_mapping_with_its_setting_per_head(path, name):
    setting = REGISTRY[name].setting
    q, k, v = (t / 2 for t in draw(B=1, H=2, L=2, S=5, E=3))
    own = [] if setting is None else [setting.example * torch.tensor([0.9, 1.1], dtype=torch.float64)]

    def run(q, k, v, *own):
        core = AttentionCore(2, name, **({} if setting is None else {setting.name: own[0]}))
        return core(q, k, v, is_causal=False, attn_mask=torch.arange(5) != 1)

    inputs = [t.clone().requires_grad_() for t in (q, k, v, *own)]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    for grad in torch.autograd.grad(run(*inputs).pow(3).sum(), inputs):
        assert grad.abs().max() > 1e-6, "a silent zero"


# observers


@pytest.mark.parametrize("size", [1 << 22, 1, 4 * B * H * S * 3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["softmax", "entmax", "rsoftmax", "heads", "scaled"])
def test_blocks_are_the_weights(monkeypatch, name, mask, size):
    monkeypatch.setattr(observation, "BLOCK", size)
    core = {
        "heads": lambda: AttentionCore(H, "rsoftmax", rate=0.5, heads=[1]),
        "scaled": lambda: AttentionCore(H, alpha="learned", length_scaling=True),
    }.get(name, lambda: AttentionCore(H, name, **settings(name)))()
    q, k, v = draw(K=2, dtype=torch.float32)
    q.requires_grad_()
    seen = []
    plain = core(q, k, v, enable_gqa=True, **called(MASKS[mask]))
    core.observers.append(lambda each: seen.append((each, list(each.blocks()))))
    torch.manual_seed(0)
    dropped, truth = core(q, k, v, enable_gqa=True, dropout_p=0.5, return_weights=True, **called(MASKS[mask]))
    assert dropped.requires_grad and not torch.equal(dropped, plain)
    ((each, blocks),) = seen
    assert (each.core, each.batch, each.heads, each.queries, each.keys) == (core, B, H, L, S)
    assert [start for start, _ in blocks] == list(range(0, L, {1 << 22: L, 1: 1}.get(size, 3)))
    assert not any(weights.requires_grad for _, weights in blocks)
    close(torch.cat([weights for _, weights in blocks], 2), truth, 1e-6)
    if core.alpha is None:
        assert each.alpha is None
    else:
        assert torch.equal(each.alpha, core.alpha) and not each.alpha.requires_grad
    core.observers.clear()
    assert torch.equal(core(q, k, v, enable_gqa=True, **called(MASKS[mask])), plain)


def test_an_observed_pass_is_as_any_other():
    q, k, v = draw()
    core = AttentionCore(H, "sparsemax")
    plain = core(q, k, v)
    calls = []
    core.observers += [lambda seen: calls.append(1), lambda seen: calls.append(2)]
    assert torch.equal(core(q, k, v), plain) and calls == [1, 2]
    for other in (copy.deepcopy(core), pickle.loads(pickle.dumps(core))):
        assert other.observers == [] and torch.equal(other(q, k, v), plain)
    assert len(core.observers) == 2 and not core.state_dict()
    core.observers[:] = [lambda seen: core.observers.clear()]
    core(q, k, v)
    assert core.observers == []


def test_blocks_are_small():
    core, sizes = AttentionCore(8, "sparsemax"), []
    core.observers.append(
        lambda seen: sizes.extend((w.shape[2], w.numel() * w.element_size()) for _, w in seen.blocks())
    )
    with torch.no_grad():
        core(*(normal(1, 8, 1024, 4, seed=i).float() for i in range(3)))
    assert sum(rows for rows, _ in sizes) == 1024 and max(size for _, size in sizes) <= 1 << 22


# schedules


def test_schedules_follow_the_step():
    model = nn.ModuleDict(
        {
            "alpha": AttentionCore(2, alpha=schedules.Linear(1.01, 1.5, steps=10)),
            "rate": AttentionCore(2, "rsoftmax", rate=lambda step: step / 10),
            "k": AttentionCore(2, "topk_sparsemax", k=lambda step: 1 + step),
            "fixed": AttentionCore(2, "sparsemax"),
        }
    )
    q, k, v = draw(H=2)
    for step in (0, 3, 7, 10, 2):
        if step:
            parsimax.set_step(model, step)
        alpha, rate = 1.01 + 0.049 * step, step / 10
        close(model["alpha"].alpha, torch.full((2,), alpha), 1e-6)
        close(model["alpha"](q, k, v), parsimax.entmax_attention(q, k, v, alpha=alpha), 1e-12)
        close(model["rate"](q, k, v), parsimax.attention(q, k, v, mapping="rsoftmax", rate=rate), 1e-12)
        close(model["k"](q, k, v), parsimax.attention(q, k, v, mapping="topk_sparsemax", k=1 + step), 1e-12)
    assert "alpha=Linear(start=1.01, end=1.5, steps=10)" in repr(model["alpha"])


def test_a_saved_schedule_goes_on_where_it_was():
    def make():
        return nn.Sequential(AttentionCore(2, alpha=schedules.Linear(1.01, 1.5, steps=10)))

    model, again = make(), make()
    parsimax.set_step(model, 6)
    assert list(model.state_dict()) == ["0.step"]
    again.load_state_dict(model.state_dict())
    assert again[0].settings() == model[0].settings() != make()[0].settings()
    assert again.load_state_dict({}).missing_keys == []  # a model without schedules
    assert again[0].settings() == model[0].settings()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other[0].settings() == model[0].settings()
        parsimax.set_step(other, 10)
        assert other[0].settings() == {"alpha": 1.5} and model[0].settings() != {"alpha": 1.5}


def test_a_schedule_that_leaves_the_domain():
    core = AttentionCore(2, "rsoftmax", rate=lambda step: step / 10)
    parsimax.set_step(core, 3)
    with pytest.raises(ValueError, match=r"rate at step 11 must be in \[0, 1\], got 1.1"):
        parsimax.set_step(core, 11)
    assert core.settings() == {"rate": 0.3} and core.step == 3
    with pytest.raises(TypeError, match="rate at step 0 must be a number"):
        AttentionCore(2, "rsoftmax", rate=lambda step: "much")


@pytest.mark.parametrize("step", [-1, 2.5, True, "3", None, math.nan])
def test_a_step_is_a_whole_number(step):
    for core in (AttentionCore(2, alpha=schedules.Linear(1.01, 1.5, steps=10)), AttentionCore(2)):
        for call in (core.set_step, lambda step, core=core: parsimax.set_step(core, step)):
            with pytest.raises((TypeError, ValueError), match="set_step: step must be"):
                call(step)


def test_counts_are_rounded():
    core = AttentionCore(2, "topk_sparsemax", k=schedules.Linear(8, 2, steps=10))
    inputs = draw(H=2)
    for step, k in ((0, 8), (4, 6), (9, 3), (10, 2)):
        core.set_step(step)
        assert core.settings() == {"k": k} and isinstance(core.settings()["k"], int)
        close(core(*inputs), parsimax.attention(*inputs, mapping="topk_sparsemax", k=k), 1e-12)


def test_the_step_may_come_before_the_backward_pass():
    core = AttentionCore(H, alpha=schedules.Linear(1.01, 1.9, steps=10))
    q, k, v = (t.requires_grad_() for t in draw())
    truth = torch.autograd.grad(parsimax.entmax_attention(q, k, v, alpha=1.01).square().sum(), q)[0]
    out = core(q, k, v)
    core.set_step(5)
    close(torch.autograd.grad(out.square().sum(), q)[0], truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_schedule_keeps_its_precision(dtype):
    core = AttentionCore(H, alpha=schedules.Linear(1.001, 1.9, steps=10)).to(dtype)
    inputs = draw(dtype=dtype)
    assert core.settings() == {"alpha": 1.001} and not list(core.parameters())
    assert torch.equal(core(*inputs), parsimax.entmax_attention(*inputs, alpha=1.001))


CONTINUOUS = [n for n, e in REGISTRY.items() if e.setting is not None and e.setting.continuous]


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own
def test_a_schedule_compiles_once(name):
    torch.compiler.reset()
    setting = REGISTRY[name].setting
    core = AttentionCore(H, name, **{setting.name: lambda step: setting.example * (1 + step / 20)})
    inputs, graphs = draw(dtype=torch.float32), []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(core, backend=count, fullgraph=True)
    for step in range(4):
        core.set_step(step)
        fixed = {setting.name: setting.example * (1 + step / 20)}
        close(compiled(*inputs), parsimax.attention(*inputs, mapping=name, **fixed), 1e-5)
    assert len(graphs) == 1


def test_a_model_whose_schedules_ended_loads_into_the_fixed_one():
    scheduled = nn.Sequential(AttentionCore(2, alpha=schedules.Linear(1.01, 1.5, steps=10)))
    parsimax.set_step(scheduled, 10)
    for fixed in (AttentionCore(2, alpha=1.5), AttentionCore(2)):
        nn.Sequential(fixed).load_state_dict(scheduled.state_dict())
    with pytest.raises(RuntimeError, match=r"0\.other"):
        nn.Sequential(fixed).load_state_dict({**scheduled.state_dict(), "0.other": torch.ones(1)})


# length scaling


@pytest.mark.parametrize("mask", MASKS)
def test_length_scaling_counts_the_keys_of_each_query(path, mask):
    q, k, v = draw()
    scaling = LengthScaling(H, delta=0.5).double()
    with torch.no_grad():
        scaling.raw_beta.copy_(torch.linspace(-1, 1, H))
        scaling.gamma.copy_(torch.linspace(-0.5, 2, H))
    core = AttentionCore(H, alpha=1.4, length_scaling=scaling)
    options = MASKS[mask]
    counts = as_bool(options.get("mask"), options.get("is_causal", False), L, S).expand(B, H, L, S).sum(-1, True)
    beta = torch.log1p(scaling.raw_beta.exp())
    factor = 0.5 + beta.view(-1, 1, 1) * counts.double().clamp_min(2).log() ** scaling.gamma.view(-1, 1, 1)
    truth = weights_of(q, k, "entmax", factor=factor, alpha=1.4, **options)
    assert truth.isfinite().all()
    _, weights = core(q, k, v, return_weights=True, **called(options))
    close(weights, truth)
    close(core(q, k, v, **called(options)), truth @ v)


def test_the_lowest_number_forbids_as_infinity_does():
    """transformers writes it into its masks."""
    q, k, v = draw(dtype=torch.float32)
    core = AttentionCore(H, "entmax15", length_scaling=True)
    forbidden = ~allowed(B, 1, L, S)
    low, lower = (torch.zeros(B, 1, L, S).masked_fill(forbidden, x) for x in (torch.finfo(torch.float32).min, -INF))
    close(core(q, k, v, attn_mask=low), core(q, k, v, attn_mask=lower), 1e-6)
    close(core(q, k, v, attn_mask=~forbidden), core(q, k, v, attn_mask=lower), 1e-6)


def test_length_scaling_learns_or_not():
    fixed = AttentionCore(H, "entmax15", length_scaling=LengthScaling(H, 0.0, 1.0, 1.0, learnable=False))
    assert not fixed.state_dict() and not list(fixed.parameters())
    q, k, v = draw(dtype=torch.float32)
    close(fixed(q, k, v), parsimax.entmax_attention(q * math.log(S), k, v), 1e-5)
    learned = AttentionCore(H, "entmax15", length_scaling=True)
    assert sorted(learned.state_dict()) == ["length_scaling.gamma", "length_scaling.raw_beta"]
    learned(q, k, v).square().sum().backward()
    for parameter in learned.parameters():
        assert parameter.grad.shape == (H,) and (parameter.grad != 0).all()
    shared = AttentionCore(H, "entmax15", length_scaling=LengthScaling(1))
    close(shared(q, k, v), learned(q, k, v), 1e-6)
    beta = LengthScaling(2, beta=30.0).beta
    torch.testing.assert_close(beta, torch.full((2,), 30.0))
    half = AttentionCore(H, "entmax15", length_scaling=True).bfloat16()
    assert half(*(t.bfloat16() for t in (q, k, v))).dtype == torch.bfloat16


# the life of a module


CORES = {
    "fixed": lambda: AttentionCore(H, "entmax15"),
    "learned": lambda: AttentionCore(H, alpha="learned", alpha_start=1.2, length_scaling=True),
    "heads": lambda: AttentionCore(H, alpha="learned", heads=[1, 2]),
    "module": lambda: AttentionCore(H, parsimax.Entmax(1.3, learnable=True, shape=(H, 1, 1))),
    "rate": lambda: AttentionCore(H, "rsoftmax", rate=torch.linspace(0.1, 0.9, H)),
}


@pytest.mark.parametrize("name", CORES)
def test_copies_pickles_and_states(name):
    core = CORES[name]()
    inputs = draw(dtype=torch.float32)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter += 0.3
    buffer = io.BytesIO()
    torch.save(core, buffer)
    buffer.seek(0)
    loaded = CORES[name]()
    loaded.load_state_dict(core.state_dict())
    others = (copy.deepcopy(core), pickle.loads(pickle.dumps(core)), torch.load(buffer, weights_only=False), loaded)
    for other in others:
        assert torch.equal(other(*inputs), core(*inputs)) and repr(other) == repr(core)
        assert not {id(p) for p in other.parameters()} & {id(p) for p in core.parameters()}


@pytest.mark.parametrize("name", ["learned", "heads", "rate"])
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own
def test_compile(name):
    core = CORES[name]()
    inputs = draw(dtype=torch.float32)
    truth = core(*inputs, is_causal=True)
    ours = torch.compile(core, backend="aot_eager", fullgraph=True)(*inputs, is_causal=True)
    close(ours, truth, 1e-5)
    parameters = list(core.parameters())
    if parameters:
        grads = (torch.autograd.grad(out.square().sum(), parameters) for out in (ours, truth))
        for a, b in zip(*grads, strict=True):
            close(a, b, 1e-4)
            assert b.abs().max() > 0


def test_autocast():
    core = AttentionCore(H, alpha="learned", length_scaling=True)
    inputs = draw(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = core(*inputs)
    assert out.dtype == torch.bfloat16
    close(out, core(*inputs), 0.05)
    out.sum().backward()
    assert core.learned_alpha.raw.grad.dtype == torch.float32


def test_meta_device():
    core = AttentionCore(H, alpha="learned", length_scaling=True).to("meta")
    assert core(*(t.to("meta") for t in draw())).is_meta
    assert "alpha learned" in repr(core)


FIXED = {
    "heads": lambda: AttentionCore(H, "rsoftmax", rate=0.6, heads=[1, -1]),
    "heads of entmax": lambda: AttentionCore(H, alpha=1.8, heads=[2]),
    "tensor": lambda: AttentionCore(H, alpha=torch.linspace(1.1, 1.9, H, device="cpu")),
    "one": lambda: AttentionCore(H, "rsoftmax", rate=torch.tensor(0.3, device="cpu")),
    "scaling": lambda: AttentionCore(H, alpha=1.5, length_scaling=LengthScaling(H, beta=2.0, learnable=False)),
    "schedule": lambda: AttentionCore(H, alpha=schedules.Linear(1.05, 1.9, steps=10), heads=[0, 3]),
    "learned": lambda: AttentionCore(H, alpha="learned", heads=[0], length_scaling=True),
}


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("way", ["context", "to", "real", "assign", "half"])
def test_what_is_fixed_comes_back_from_the_meta_device(name, way):
    truth = FIXED[name]()
    truth.set_step(4)
    if way in ("context", "assign"):
        with torch.device("meta"):
            core = FIXED[name]()
            assert repr(core).startswith("AttentionCore(")
            if name == "schedule":
                assert core(*(t.to("meta") for t in draw(dtype=torch.float32))).is_meta
    else:
        core = FIXED[name]()
        core = core if way == "real" else core.to("meta")
    if way == "half":
        core, truth = core.bfloat16(), truth.bfloat16()
    if way == "assign":
        core.load_state_dict(truth.state_dict(), assign=True)
    else:
        for tensor in (*core.buffers(), *core.parameters()):
            if not tensor.is_meta and way != "real":
                assert tensor.device.type == "cpu"
        core.to_empty(device="cpu")
        for parameter in core.parameters():
            parameter.data.fill_(math.nan)
        core.load_state_dict(truth.state_dict())
    inputs = draw(dtype=torch.float32)
    assert torch.equal(core(*inputs), truth(*inputs))
    assert not any(t.is_meta for t in core.buffers()) and repr(core) == repr(truth)
    assert [t.dtype for t in core.buffers()] == [t.dtype for t in truth.buffers()]
    again = copy.deepcopy(core).to("meta").to_empty(device="cpu")
    if name == "schedule":
        assert again.step == 4 and torch.equal(again(*inputs), truth(*inputs))


def test_moves_keep_what_was_written_to_a_buffer():
    core = AttentionCore(H, alpha=torch.full((H,), 1.5))
    core.fixed_alpha.fill_(1.75)
    assert core.to(torch.float64).alpha.tolist() == [1.75] * H


# errors


WRONG = {
    "heads": (lambda: AttentionCore(0), ValueError, "num_heads must be at least 1"),
    "name": (lambda: AttentionCore(2, "entmin"), ValueError, "no mapping is called 'entmin'; there are softmax"),
    "alpha of softmax": (lambda: AttentionCore(2, "softmax", alpha=1.5), TypeError, "softmax has no setting alpha"),
    "learned count": (lambda: AttentionCore(2, "topk_sparsemax", k="learned"), ValueError, "k is a count and cannot"),
    "misspelt": (lambda: AttentionCore(2, alpha="learnt"), ValueError, "got alpha='learnt'"),
    "no rate": (lambda: AttentionCore(2, "rsoftmax"), TypeError, "rsoftmax needs a setting, such as rate=0.5"),
    "domain": (lambda: AttentionCore(2, alpha=-1.0), ValueError, r"alpha must be in \[0, inf\], got -1"),
    "per head": (lambda: AttentionCore(2, alpha=torch.ones(3)), ValueError, r"one per head, 2, got shape \(3,\)"),
    "module": (lambda: AttentionCore(2, parsimax.RSoftmax(0.5), rate=0.3), ValueError, "has its own settings"),
    "dim": (lambda: AttentionCore(2, parsimax.Sparsemax(dim=1)), ValueError, r"over the keys.*dim=1"),
    "one head": (lambda: AttentionCore(4, alpha=1.5, heads=0), TypeError, r"heads must be a list .* \[0\], got 0"),
    "no heads": (lambda: AttentionCore(4, alpha=1.5, heads=[]), ValueError, "heads is empty"),
    "int tensor": (lambda: AttentionCore(2, alpha=torch.tensor([1, 2])), TypeError, "floating point, got torch.int64"),
    "tensor k": (
        lambda: AttentionCore(2, "topk_sparsemax", k=torch.tensor(2)),
        TypeError,
        "k is a count and cannot be a tensor",
    ),
    "ramp": (
        lambda: AttentionCore(2, "rsoftmax", rate=schedules.Linear(0.0, 1.2, steps=10)),
        ValueError,
        r"rate at the end of Linear\(start=0.0, end=1.2, steps=10\) must be in \[0, 1\], got 1.2",
    ),
    "ramp of counts": (
        lambda: AttentionCore(2, "topk_sparsemax", k=schedules.Cosine(4, 0.4, steps=10)),
        ValueError,
        "k at the end of Cosine.* must be at least 1, got 0",
    ),
    "which heads": (lambda: AttentionCore(2, "sparsemax", heads=[2]), ValueError, "among 0…1, got 2"),
    "start": (lambda: AttentionCore(2, alpha="learned", alpha_start=1.0), ValueError, "strictly inside"),
    "start twice": (lambda: AttentionCore(2, alpha="learned", start=1.2, alpha_start=1.3), ValueError, "start alone"),
    "lonely start": (lambda: AttentionCore(2, alpha_start=1.2), ValueError, 'pass alpha="learned"'),
    "scaling": (lambda: AttentionCore(2, length_scaling="yes"), TypeError, "length_scaling must be True"),
    "scaled heads": (lambda: AttentionCore(2, length_scaling=LengthScaling(3)), ValueError, "3 heads"),
    "beta": (lambda: LengthScaling(2, beta=0.0), ValueError, r"beta must be in \(0, inf\), got 0"),
    "query": (lambda: AttentionCore(3)(*draw()), ValueError, r"\(batch, 3 heads.*\(2, 4, 7, 6\)"),
    "three": (lambda: AttentionCore(4)(*(t[0] for t in draw())), ValueError, r"\(4, 7, 6\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_say_what_to_do(name):
    call, error, match = WRONG[name]
    with pytest.raises(error, match=match):
        call()
