"""MultiheadAttention: torch's own module to the word, inside torch's Transformer too; learned α, caches."""

import copy
import itertools
import math
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import parsimax
from cases import normal
from parsimax import LengthScaling, MultiheadAttention, replace_attention
from parsimax.kernels import library
from parsimax.mappings import REGISTRY

INF = math.inf
N, H, E, L, S = 3, 4, 20, 5, 7
# torch says this of every nested tensor that its own encoder makes.
NESTED = "ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"


def pair(mapping="softmax", seed=0, dtype=torch.float32, **options):
    """torch's module and ours with the same weights."""
    torch.manual_seed(seed)
    theirs = nn.MultiheadAttention(E, H, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    ours = MultiheadAttention(E, H, mapping=mapping, dtype=dtype, **options)
    assert not any(ours.load_state_dict(theirs.state_dict()))
    return theirs, ours


def inputs(batch_first=False, unbatched=False, kdim=E, vdim=E, dtype=torch.float32, length=L, keys=S):
    each = [normal(N, n, d, seed=i).to(dtype) for i, (n, d) in enumerate(((length, E), (keys, kdim), (keys, vdim)))]
    if unbatched:
        return tuple(t[0] for t in each)
    return tuple(t if batch_first else t.transpose(0, 1) for t in each)


def forbidden(*shape):
    mask = normal(*shape, seed=5) < -0.4
    mask[..., 0] = False
    return mask


def added(*shape):
    return normal(*shape, seed=6).float().masked_fill(forbidden(*shape), -INF)


def close(ours, truth, tolerance=1e-6):
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


# torch's own


OPTIONS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "added keys": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    "added zeros": {"add_zero_attn": True},
    "other features": {"kdim": 6, "vdim": 11},
    "all": {"kdim": 6, "batch_first": True, "add_bias_kv": True, "bias": False},
}
MASKS = {
    "none": lambda n: {},
    "padding": lambda n: {"key_padding_mask": forbidden(n, S)},
    "added padding": lambda n: {"key_padding_mask": added(n, S)},
    "2-d": lambda n: {"attn_mask": forbidden(L, S)},
    "added 2-d": lambda n: {"attn_mask": added(L, S)},
    "3-d": lambda n: {"attn_mask": forbidden(n * H, L, S)},
    "added 3-d": lambda n: {"attn_mask": added(n * H, L, S)},
    "both": lambda n: {"attn_mask": forbidden(L, S), "key_padding_mask": forbidden(n, S)},
    "both added": lambda n: {"attn_mask": added(n * H, L, S), "key_padding_mask": added(n, S)},
    "mixed": lambda n: {"attn_mask": added(L, S), "key_padding_mask": forbidden(n, S)},
}


@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")  # torch deprecates what we allow
@pytest.mark.parametrize("unbatched", [False, True], ids=["batch", "no batch"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_softmax_equals_torch(options, mask, unbatched):
    """Outputs and weights to 1e-6, gradients to 1e-5."""
    options = OPTIONS[options]
    theirs, ours = pair(**options)
    given = inputs(options.get("batch_first", False), unbatched, options.get("kdim", E), options.get("vdim", E))
    given = tuple(t.requires_grad_() for t in given)
    masks = MASKS[mask](1 if unbatched else N)
    if unbatched and "key_padding_mask" in masks:
        masks["key_padding_mask"] = masks["key_padding_mask"][0]
    for need, average in itertools.product((True, False), (True, False)):
        call = {**masks, "need_weights": need, "average_attn_weights": average}
        out, weights = ours(*given, **call)
        truth, expected = theirs(*given, **call)
        close(out, truth)
        assert (weights is None) == (expected is None)
        if need:
            close(weights, expected)
        grads = [torch.autograd.grad(o.square().sum(), given, retain_graph=True) for o in (out, truth)]
        for a, b in zip(*grads, strict=True):
            close(a, b, 1e-5)
    names = [name for name, _ in theirs.named_parameters()]
    grads = []
    for module in (ours, theirs):
        module.zero_grad()
        module(*given, **masks)[0].square().sum().backward()
        grads.append({name: p.grad for name, p in module.named_parameters()})
    assert list(grads[0]) == names
    for name in names:
        close(grads[0][name], grads[1][name], 1e-5)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_self_attention_equals_torch_in_every_mode(batch_first, mode):
    theirs, ours = (module.train(mode == "train") for module in pair(batch_first=batch_first))
    x, _, _ = inputs(batch_first)
    mask = nn.Transformer.generate_square_subsequent_mask(L)
    calls = (
        {},
        {"attn_mask": mask, "is_causal": True},
        {"attn_mask": mask, "is_causal": True, "key_padding_mask": added(N, L)},
        {"attn_mask": mask.isinf(), "is_causal": True},
    )
    with torch.set_grad_enabled(mode != "no_grad"):
        for call, need in itertools.product(calls, (True, False)):
            out, weights = ours(x, x, x, need_weights=need, **call)
            truth, expected = theirs(x, x, x, need_weights=need, **call)
            close(out, truth)
            if need:
                close(weights, expected)
        other = normal(*x.shape, seed=3).float()
        close(ours(x, other, other)[0], theirs(x, other, other)[0])


def test_the_same_seed_gives_the_same_weights():
    for options in OPTIONS.values():
        torch.manual_seed(3)
        theirs = nn.MultiheadAttention(E, H, **options)
        torch.manual_seed(3)
        ours = MultiheadAttention(E, H, mapping="sparsemax", **options)
        state = theirs.state_dict()
        assert list(state) == list(ours.state_dict())
        assert all(torch.equal(state[name], value) for name, value in ours.state_dict().items())
        assert ours.kdim == theirs.kdim and ours.head_dim == theirs.head_dim


def test_weights_of_torch_load():
    theirs, _ = pair()
    for mapping, settings in (("entmax", {"alpha": 1.3}), ("rsoftmax", {"rate": 0.5}), ("softmax", {})):
        loaded = MultiheadAttention(E, H, mapping=mapping, **settings).load_state_dict(theirs.state_dict())
        assert loaded.missing_keys == loaded.unexpected_keys == []
    learned = MultiheadAttention(E, H, alpha="learned")
    loaded = learned.load_state_dict(theirs.state_dict(), strict=False)
    assert loaded.missing_keys == ["core.learned_alpha.raw"] and loaded.unexpected_keys == []
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "core.learned_alpha.raw"\.'):
        learned.load_state_dict(theirs.state_dict())


def test_queries_that_may_attend_to_nothing():
    """torch gives NaN here."""
    theirs, ours = pair(batch_first=True)
    q, k, v = inputs(batch_first=True)
    padding = torch.zeros(N, S).bool()
    padding[1] = True
    out, weights = ours(q, k, v, key_padding_mask=padding)
    assert (weights[1] == 0).all() and torch.equal(out[1], ours.out_proj.bias.expand(L, E))
    truth = theirs(q, k, v, key_padding_mask=padding)[0]
    assert truth[1].isnan().all()
    close(out[[0, 2]], truth[[0, 2]])
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in ours.parameters())


def test_keys_added_stay_visible_under_is_causal():
    """torch hides them without need_weights, and shows them with it."""
    _, ours = pair(add_bias_kv=True, batch_first=True)
    x, _, _ = inputs(batch_first=True)
    mask = torch.ones(L, L).triu(1).bool()
    truth, weights = ours(x, x, x, attn_mask=mask)
    assert (weights[..., -1] > 0).all()
    close(ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0], truth)
    close(ours(x, x, x, is_causal=True, need_weights=False)[0], truth)


Q, K, V = (t.detach() for t in inputs())
WRONG = {
    "four dimensions": ((Q[None], K, V), {}, "must all be"),
    "batch and no batch": ((Q, K[:, 0], V[:, 0]), {}, "must all be"),
    "features": ((Q[..., :19], K, V), {}, r"must have \(20, 20, 20\) features.*\(5, 3, 19\)"),
    "lengths": ((Q, K, V[:6]), {}, "one length"),
    "batches": ((Q, K[:, :2], V[:, :2]), {}, "one batch size, got 3 and 2"),
    "padding": ((Q, K, V), {"key_padding_mask": torch.zeros(S, N).bool()}, r"\(batch, keys\) = \(3, 7\).*\(7, 3\)"),
    "mask": ((Q, K, V), {"attn_mask": torch.zeros(S, L).bool()}, r"\(5, 7\) or .* \(12, 5, 7\), got \(7, 5\)"),
    "mask per batch": ((Q, K, V), {"attn_mask": torch.zeros(N, L, S).bool()}, r"got \(3, 5, 7\)"),
    "integer mask": ((Q, K, V), {"attn_mask": torch.zeros(L, S).long()}, "boolean .*True = forbidden.*int64"),
    "integer padding": ((Q, K, V), {"key_padding_mask": torch.zeros(N, S).int()}, "key_padding_mask must be boolean"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses_is_refused(name):
    given, options, match = WRONG[name]
    theirs, ours = pair()
    with pytest.raises((AssertionError, RuntimeError)):
        theirs(*given, **options)
    with pytest.raises((ValueError, TypeError), match=match):
        ours(*given, **options)


def test_wrong_sizes():
    for arguments, match in (((0, 1), "embed_dim"), ((4, 0), "num_heads"), ((5, 2), "divisible.*5 and 2")):
        with pytest.raises((ValueError, AssertionError)):
            nn.MultiheadAttention(*arguments)
        with pytest.raises(ValueError, match=match):
            MultiheadAttention(*arguments)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\], got 1.5"):
        MultiheadAttention(4, 2, 1.5)
    with pytest.raises(TypeError, match="entmax has no setting rate"):
        MultiheadAttention(4, 2, alpha=1.5, rate=0.3)


# any mapping


def by_hand(layer, q, k, v, forbid=None, factor=1.0):
    """Self- or cross-attention of a module in float64, batch first: output and weights."""
    weights = layer.in_proj_weight.double().chunk(3)
    biases = layer.in_proj_bias.double().chunk(3)
    heads = [
        F.linear(x.double(), w, b).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for x, w, b in zip((q, k, v), weights, biases, strict=True)
    ]
    scores = heads[0] @ heads[1].transpose(-2, -1) / math.sqrt(layer.head_dim) * factor
    if forbid is not None:
        scores = scores.masked_fill(forbid, -INF)
    own = {n: s.double() if isinstance(s, torch.Tensor) else s for n, s in layer.core.settings().items()}
    p = REGISTRY[layer.core.name].function(scores, **own)
    out = (p @ heads[2]).transpose(1, 2).flatten(2)
    return F.linear(out, layer.out_proj.weight.double(), layer.out_proj.bias.double()), p


@pytest.mark.parametrize("kernels", ["torch", "cpu"], indirect=True)
@pytest.mark.parametrize("name", [*REGISTRY, "learned"])
def test_every_mapping_by_hand(name, kernels):
    setting = None if name == "learned" else REGISTRY[name].setting
    own = {} if setting is None else {setting.name: setting.example}
    if name == "learned":
        own, name = {"alpha": "learned", "alpha_start": torch.linspace(1.1, 1.9, H)}, None
    layer = MultiheadAttention(E, H, batch_first=True, mapping=name, **own)
    q, k, v = inputs(batch_first=True)
    padding, mask = forbidden(N, S), forbidden(L, S)
    out, weights = layer(q, k, v, padding, attn_mask=mask, average_attn_weights=False)
    fast, none = layer(q, k, v, padding, attn_mask=mask, need_weights=False)
    truth, p = by_hand(layer, q, k, v, padding[:, None, None] | mask)
    close(weights.double(), p, 1e-5)
    assert ((weights == 0) | (p != 0)).all() or name == "sigsoftmax"
    close(out.double(), truth, 1e-5)
    close(fast.double(), truth, 1e-5)
    assert none is None


def test_dropout_in_training_only():
    layer = MultiheadAttention(E, H, dropout=0.5, batch_first=True, mapping="entmax15")
    q, k, v = inputs(batch_first=True)
    whole, weights = layer.eval()(q, k, v)
    assert torch.equal(layer(q, k, v)[0], whole)
    dropped, same = layer.train()(q, k, v)
    assert not torch.allclose(dropped, whole) and torch.equal(same, weights)
    assert not torch.allclose(layer(q, k, v, need_weights=False)[0], whole)


def test_learned_alpha_trains_and_is_saved():
    layer = MultiheadAttention(E, H, alpha="learned", length_scaling=True)
    optimiser = torch.optim.Adam(layer.parameters(), 0.05)
    q, k, v = inputs()
    before = layer.core.alpha.detach().clone()
    for _ in range(3):
        optimiser.zero_grad()
        layer(q, k, v, need_weights=False)[0].square().mean().backward()
        assert all((p.grad != 0).any() for p in layer.core.parameters())
        optimiser.step()
    assert (layer.core.alpha != before).all()
    again = MultiheadAttention(E, H, alpha="learned", length_scaling=True)
    again.load_state_dict(layer.state_dict())
    for other in (again, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other.core.alpha, layer.core.alpha)
        assert torch.equal(other(q, k, v)[0], layer(q, k, v)[0])


def test_double_backward_is_not_zero():
    layer = MultiheadAttention(E, H, alpha="learned", batch_first=True).double()
    x = inputs(batch_first=True, dtype=torch.float64)[0][:1].requires_grad_()
    parameters = [x, *layer.parameters()]
    for need in (True, False):
        out = layer(x, x, x, need_weights=need, is_causal=True)[0]
        first = torch.autograd.grad(out.pow(3).sum(), parameters, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), parameters)
        assert all(g.abs().max() > 1e-8 for g in second)
        if need:
            truth = second
    for a, b in zip(second, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7 * float(b.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype):
    layer = MultiheadAttention(E, H, alpha="learned", dtype=dtype, batch_first=True)
    own = dtype if dtype == torch.float64 else torch.float32  # of learned α, which half types are too coarse for
    for name, parameter in layer.named_parameters():
        assert parameter.dtype == (own if "learned_alpha" in name else dtype), name
    q, k, v = inputs(batch_first=True, dtype=dtype)
    for need in (True, False):
        out, _ = layer(q, k, v, key_padding_mask=forbidden(N, S), need_weights=need)
        assert out.dtype == dtype
        truth, _ = by_hand(layer, q, k, v, forbidden(N, S)[:, None, None])
        close(out.double(), truth, 1e-10 if dtype == torch.float64 else 16 * torch.finfo(dtype).eps)
    out.sum().backward()
    assert layer.core.learned_alpha.raw.grad.dtype == own


def test_autocast():
    _, layer = pair("entmax15", batch_first=True)
    given = inputs(batch_first=True)
    for call in ({}, {"attn_mask": added(L, S)}, {"key_padding_mask": forbidden(N, S), "need_weights": False}):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, _ = layer(*given, **call)
        assert out.dtype == torch.bfloat16
        close(out.float(), layer(*given, **call)[0], 0.15)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own
def test_compile():
    layer = MultiheadAttention(E, H, alpha="learned", batch_first=True)
    q, k, v = inputs(batch_first=True)
    truth = layer(q, k, v, key_padding_mask=forbidden(N, S), need_weights=False)[0]
    run = torch.compile(layer, backend="aot_eager", fullgraph=True)
    ours = run(q, k, v, key_padding_mask=forbidden(N, S), need_weights=False)[0]
    close(ours, truth, 1e-5)
    grads = [torch.autograd.grad(out.square().sum(), list(layer.parameters())) for out in (ours, truth)]
    for a, b in zip(*grads, strict=True):
        close(a, b, 1e-3)


def test_without_weights_nothing_of_their_size_is_made():
    if not library.AVAILABLE:
        pytest.skip(library.PROBLEM)
    length = 2048
    layer = MultiheadAttention(8, 2, alpha="learned", batch_first=True)
    x = normal(1, length, 8).float()
    sizes = []

    def note(t):
        sizes.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        layer(x, x, x, is_causal=True, need_weights=False)
        layer(x, x, x, key_padding_mask=torch.arange(length)[None] > 2000, need_weights=False)
    assert max(sizes) < 2 * length * length / 8


# inside torch's Transformer


def exact_zeros(model):
    """Count calls of our attention, and see that it gives exact zeros."""
    seen = []
    for module in model.modules():
        if isinstance(module, MultiheadAttention):
            module.core.observers[:] = [
                lambda each: seen.append(torch.cat([(w == 0).float().flatten() for _, w in each.blocks()]).mean())
            ]
    return seen


def modes(model, call):
    """The output in training, evaluation, evaluation without gradients and in inference mode."""
    results = [call(model.train())]
    results.append(call(model.eval()))
    with torch.no_grad():
        results.append(call(model))
    with torch.inference_mode():
        results.append(call(model))
    return [result.detach().clone() for result in results]


def encoder_layer_by_hand(layer, x, forbid):
    y, _ = by_hand(layer.self_attn, x, x, x, forbid)
    norms = [
        lambda t, n=n: F.layer_norm(t, (E,), n.weight.double(), n.bias.double(), n.eps)
        for n in (layer.norm1, layer.norm2)
    ]
    x = norms[0](x + y)
    hidden = F.relu(F.linear(x, layer.linear1.weight.double(), layer.linear1.bias.double()))
    return norms[1](x + F.linear(hidden, layer.linear2.weight.double(), layer.linear2.bias.double()))


def encoder(layers=2, **options):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=not options.get("norm_first", False))


PADDING = torch.arange(S) >= torch.tensor([S, 4, 2])[:, None]


@pytest.mark.filterwarnings(NESTED)
@pytest.mark.parametrize("by", ["replace_attention", "hand"])
@pytest.mark.parametrize("settings", [{"mapping": "sparsemax"}, {"alpha": "learned"}], ids=["sparsemax", "learned"])
@pytest.mark.parametrize("masked", ["none", "padding", "causal"])
def test_ours_runs_inside_an_encoder_in_every_mode(by, settings, masked):
    original = encoder()
    x = inputs(batch_first=True)[1]
    padding = PADDING if masked == "padding" else None
    mask = torch.ones(S, S).triu(1).bool() if masked == "causal" else None
    with torch.no_grad():
        softmax = original.eval()(x, mask=mask, src_key_padding_mask=padding)
    model = copy.deepcopy(original)
    if by == "hand":  # and so after the encoder has decided to use nested tensors
        for layer in model.layers:
            weights = layer.self_attn.state_dict()
            layer.self_attn = MultiheadAttention(E, H, batch_first=True, **settings)
            layer.self_attn.load_state_dict(weights, strict="mapping" in settings)
    else:
        assert replace_attention(model, **settings) is model
    seen = exact_zeros(model)
    results = modes(model, lambda m: m(x, mask=mask, src_key_padding_mask=padding))
    assert len(seen) == 4 * 2 and all(0.05 < share < 1 for share in seen)
    truth = x.double()
    for layer in model.layers:
        truth = encoder_layer_by_hand(layer, truth, PADDING[:, None, None] if masked == "padding" else mask)
    real = ~PADDING if masked == "padding" else torch.ones(N, S).bool()
    for result in results:
        close(result.double()[real], truth[real], 1e-5)
    assert (softmax - results[0])[real].abs().max() > 0.05


def test_a_layer_made_around_ours_runs_in_every_mode():
    layer = encoder(1).layers[0]
    layer.self_attn = MultiheadAttention(E, H, batch_first=True, mapping="sparsemax")
    nn.TransformerEncoder(layer, 2)  # with nested tensors, as around torch's own layer
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = inputs(batch_first=True)[1]
    seen = exact_zeros(model)
    results = modes(model, lambda m: m(x, src_key_padding_mask=PADDING))
    assert len(seen) == 8 and all(share > 0.05 for share in seen)
    truth = encoder_layer_by_hand(
        model.layers[1],
        encoder_layer_by_hand(model.layers[0], x.double(), PADDING[:, None, None]),
        PADDING[:, None, None],
    )
    for result in results:
        close(result.double(), truth, 1e-5)


@pytest.mark.filterwarnings(NESTED)
@pytest.mark.parametrize("norm_first", [False, True])
def test_softmax_put_into_a_transformer_changes_nothing(norm_first):
    torch.manual_seed(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's of norm_first and nested tensors
        theirs = nn.Transformer(E, H, 2, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    ours = replace_attention(copy.deepcopy(theirs), "softmax")
    source, target, _ = inputs(batch_first=True, keys=L)
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    for options in ({}, {"tgt_is_causal": True}):

        def call(model, options=options):
            return model(source, target, tgt_mask=causal, src_key_padding_mask=forbidden(N, L), **options)

        for a, b in zip(modes(ours, call), modes(theirs, call), strict=True):
            close(a, b, 1e-5)
    assert {name for name, _ in ours.named_parameters()} == {name for name, _ in theirs.named_parameters()}


def test_ours_runs_inside_of_a_decoder_in_every_mode():
    torch.manual_seed(2)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(E, H, 16, dropout=0.0, batch_first=True), 2)
    twin = copy.deepcopy(model)
    replace_attention(model, alpha="learned")
    target, memory, _ = inputs(batch_first=True)
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    seen = exact_zeros(model)

    def call(m):
        return m(target, memory, tgt_mask=causal, memory_key_padding_mask=PADDING.float().masked_fill(PADDING, -INF))

    first, *others = modes(model, call)
    assert len(seen) == 4 * 4 and all(share > 0.05 for share in seen)
    for other in others:
        close(other, first, 1e-5)
    assert (first - modes(twin, call)[0]).abs().max() > 0.02
    call(model.train()).square().sum().backward()
    alphas = {name: p for name, p in model.named_parameters() if "alpha" in name}
    assert len(alphas) == 4 and all(p.grad.abs().max() > 0 for p in alphas.values())


@pytest.mark.filterwarnings(NESTED)
def test_nested_tensors():
    _, layer = pair("sparsemax", batch_first=True)
    parts = [normal(n, E, seed=n).float() for n in (4, 1, 6)]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(parts, layout=layout)
        out, _ = layer(nested, nested, nested, need_weights=False)
        for a, b in zip(out.unbind(), parts, strict=True):
            close(a, layer(b, b, b)[0])
        with pytest.raises(ValueError, match="pad it with to_padded_tensor"):
            layer(nested, nested, nested)
        with pytest.raises(ValueError, match="can only attend to itself"):
            layer(nested, parts[0], parts[0], need_weights=False)


def test_replace_attention_keeps_what_was_there():
    shared = nn.MultiheadAttention(E, H)
    model = nn.ModuleDict(
        {
            "a": shared,
            "b": nn.Sequential(shared),
            "c": nn.MultiheadAttention(E, H, kdim=3).bfloat16().eval(),
            "again": shared,
        }
    )
    model["c"].out_proj.requires_grad_(False)
    before = dict(model.named_parameters())
    scaling = LengthScaling(H)
    assert replace_attention(model, alpha="learned", length_scaling=scaling) is model
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert {name.split(".", 1)[1] for name in after.keys() - before.keys()} == {
        "core.learned_alpha.raw",
        "core.length_scaling.gamma",
        "core.length_scaling.raw_beta",
    }
    assert model["a"] is model["b"][0] is model["again"] and isinstance(model["a"], MultiheadAttention)
    assert model["a"].training and not model["c"].training
    assert model["c"].core.learned_alpha.raw.dtype == torch.float32
    assert model["a"].core.length_scaling is not model["c"].core.length_scaling
    state = torch.get_rng_state()
    one = replace_attention(nn.MultiheadAttention(E, H), "sparsemax")
    assert isinstance(one, MultiheadAttention)
    torch.set_rng_state(state)
    theirs = nn.MultiheadAttention(E, H)
    torch.set_rng_state(state)
    nn.MultiheadAttention(E, H)
    after_making = torch.get_rng_state()
    replace_attention(theirs, "sparsemax")
    assert torch.equal(torch.get_rng_state(), after_making)


def test_replace_attention_again():
    model = nn.ModuleList([MultiheadAttention(E, H, kdim=3).bfloat16().eval(), nn.MultiheadAttention(E, H)])
    before, layer = dict(model.named_parameters()), model[0]
    assert replace_attention(model, "sparsemax") is model and model[0] is layer and layer.core.name == "sparsemax"
    second = model[1]
    with pytest.raises(TypeError, match="rsoftmax needs a setting"):
        replace_attention(model, "rsoftmax")
    assert layer.core.name == second.core.name == "sparsemax"
    replace_attention(model, alpha="learned", length_scaling=LengthScaling(H))
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert model[0] is layer and model[1] is second
    assert layer.core.learned_alpha.raw.dtype == torch.float32 and not layer.core.training and second.core.training
    assert layer.core.length_scaling is not second.core.length_scaling
    replace_attention(model, "softmax")
    assert dict(model.named_parameters()).keys() == before.keys()
    assert replace_attention(second, "entmax15") is second and second.core.name == "entmax15"


def test_replace_attention_refuses():
    with pytest.raises(ValueError, match=r"Linear has no nn.MultiheadAttention.*huggingface.sparsify"):
        replace_attention(nn.Linear(2, 2), "sparsemax")

    class Other(nn.MultiheadAttention):
        pass

    model = nn.Sequential(nn.MultiheadAttention(4, 2), Other(4, 2))
    with pytest.raises(TypeError, match="1 is a Other"):
        replace_attention(model, "sparsemax")
    assert type(model[0]) is nn.MultiheadAttention
    with pytest.raises(TypeError, match="rsoftmax needs a setting"):
        replace_attention(model[:1], "rsoftmax")
    assert type(model[0]) is nn.MultiheadAttention


# schedules


def test_set_step_reaches_every_layer():
    model = replace_attention(encoder(), alpha=parsimax.schedules.Linear(1.01, 1.5, steps=10))
    parsimax.set_step(model, 5)
    for layer in model.layers:
        close(layer.self_attn.core.alpha, torch.full((H,), 1.255))


def test_a_scheduled_model_loads_into_the_fixed_one():
    model = MultiheadAttention(E, H, alpha=parsimax.schedules.Linear(1.01, 1.5, steps=10))
    parsimax.set_step(model, 10)
    fixed = MultiheadAttention(E, H, alpha=1.5)
    fixed.load_state_dict(model.state_dict())
    x = torch.randn(5, 2, E)
    close(fixed(x, x, x)[0], model(x, x, x)[0])
    model.load_state_dict(fixed.state_dict())
    assert model.core.step == 10
