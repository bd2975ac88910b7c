"""Masks beyond numbers (torch's causal biases, tensor classes), nested tensors, and SDPA's order of arguments."""

import inspect
import warnings

import pytest
import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
from torch.masked import masked_tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import parsimax
from cases import TORCH, pairs
from parsimax import AttentionCore, MultiheadAttention, attention, entmax_attention
from parsimax._attention.biases import check_kind
from parsimax.kernels import dispatch, library
from test_attention import check, close, draw

LENGTHS = [(1, 1), (7, 7), (1, 9), (33, 5), (64, 65), (13, 131)]
BIASES = {"upper-left": causal_upper_left, "lower-right": causal_lower_right}


@pytest.fixture(params=["torch", "cpu"])
def kernels(request):
    if request.param == "cpu" and not library.AVAILABLE:
        pytest.skip(library.PROBLEM)
    with dispatch.use("torch" if request.param == "torch" else "auto"):
        yield


def bias_and_mask(kind, L, S):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a query without keys is NaN, which it is not here
        bias = BIASES[kind](L, S)
    return bias, torch.ones(L, S, dtype=torch.bool).tril(0 if kind == "upper-left" else S - L)


@pytest.mark.parametrize(
    ("lengths", "heads", "kind", "kernels"),
    pairs(LENGTHS, [4, 2, 1], BIASES, ["torch", "cpu"]),
    indirect=["kernels"],
    ids=str,
)
def test_causal_biases(lengths, heads, kind, kernels):
    L, S = lengths
    bias, mask = bias_and_mask(kind, L, S)
    q, k, v = (t.requires_grad_() for t in draw(L=L, S=S, K=heads))
    more = {"enable_gqa": heads < 4}
    weights = torch.randn(2, 4, L, 5)
    for alpha in (1.0, 1.5, torch.linspace(1.1, 2, 4).view(4, 1, 1)):
        check(q, k, v, alpha=alpha, attn_mask=mask, **more)
        truth = entmax_attention(q, k, v, mask, alpha=alpha, **more)
        for function, own in ((entmax_attention, {}), (attention, {"mapping": "entmax"})):
            out = function(q, k, v, bias, alpha=alpha, **own, **more)
            close(out, truth, 1e-6)
            expected = torch.autograd.grad(truth, (q, k, v), weights, retain_graph=True)
            for ours, wanted in zip(torch.autograd.grad(out, (q, k, v), weights), expected, strict=True):
                close(ours, wanted)
    if L <= S:  # else torch gives NaN where no key is left
        theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **more)
        close(entmax_attention(q, k, v, bias, alpha=1.0, **more), theirs)


def test_a_bias_for_other_lengths_is_refused():
    q, k, v = draw(L=7, S=9)
    for kind in BIASES.values():
        with pytest.raises(ValueError, match="bias is for 7 queries and 8 keys, the call has 7 and 9"):
            entmax_attention(q, k, v, kind(7, 8))
    with pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal"):
        entmax_attention(q, k, v, causal_upper_left(7, 9), is_causal=True)


@pytest.mark.parametrize("kind", BIASES)
def test_a_bias_in_a_core(kind):
    bias, mask = bias_and_mask(kind, 7, 9)
    q, k, v = draw(L=7, S=9)
    for options in ({"length_scaling": True}, {"mapping": "rsoftmax", "rate": 0.5, "heads": [1, 2]}):
        core, seen = AttentionCore(4, **options), []
        core.observers.append(
            lambda observation, seen=seen: seen.append((observation.visible(), *observation.blocks()))
        )
        close(core(q, k, v, bias), core(q, k, v, mask), 1e-6)
        (visible, (_, weights)), (same_visible, (_, same_weights)) = seen
        assert torch.equal(visible.expand_as(same_visible), same_visible)
        close(weights, same_weights, 1e-6)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("more", [{}, {"add_zero_attn": True}, {"add_bias_kv": True}], ids=str)
@pytest.mark.parametrize("kind", BIASES)
def test_a_bias_in_multihead_attention(kind, more, need_weights):
    layer = MultiheadAttention(12, 3, batch_first=True, alpha=1.5, **more)
    query, key = torch.randn(2, 5, 12), torch.randn(2, 8, 12)
    padding = torch.arange(8).expand(2, 8) > torch.tensor([[7], [5]])
    bias, mask = bias_and_mask(kind, 5, 8)
    for hidden in (None, padding):
        options = {"key_padding_mask": hidden, "need_weights": need_weights}
        ours, weights = layer(query, key, key, attn_mask=bias, **options)
        truth, truth_weights = layer(query, key, key, attn_mask=~mask, **options)
        close(ours, truth, 1e-6)
        if need_weights:
            close(weights, truth_weights, 1e-6)
    square, _ = layer(key, key, key, attn_mask=BIASES[kind](8, 8))
    close(square, layer(key, key, key, is_causal=True)[0], 1e-6)
    with pytest.raises(ValueError, match="bias is for 5 queries and 8 keys, the call has 8 and 8"):
        layer(key, key, key, attn_mask=bias)


def test_a_bias_with_a_cache_counts_the_cached_keys():
    layer, text = MultiheadAttention(12, 3, batch_first=True, alpha=1.5).eval(), torch.randn(2, 9, 12)
    whole, _ = layer(text, text, text, is_causal=True)
    cache, parts = parsimax.KeyValueCache(), []
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        part = text[:, start:stop]
        parts.append(layer(part, part, part, attn_mask=causal_lower_right(stop - start, stop), cache=cache)[0])
    close(torch.cat(parts, 1), whole, 1e-6)
    with pytest.raises(ValueError, match="bias is for 1 queries and 1 keys, the call has 1 and 10"):
        layer(text[:, :1], text[:, :1], text[:, :1], attn_mask=causal_upper_left(1, 1), cache=cache)


class Coloured(torch.Tensor):
    """A tensor class that parsimax knows nothing about."""


def strangers():
    mask = torch.zeros(7, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masked = masked_tensor(mask, mask == 0)
    nested = torch.nested.nested_tensor([torch.zeros(7, 9), torch.zeros(6, 9)], layout=torch.jagged)
    return {"Coloured": mask.as_subclass(Coloured), "MaskedTensor": masked, "nested": nested}


@pytest.mark.filterwarnings("ignore:.*prototype")  # what masked tensors are
@pytest.mark.parametrize("name", ["Coloured", "MaskedTensor", "nested"])
def test_other_tensor_classes_are_refused_by_name(name):
    q, k, v = draw(L=7, S=9)
    mask = strangers()[name]
    layer, text = MultiheadAttention(16, 4), torch.randn(7, 16)
    calls = {
        "entmax_attention: attn_mask": lambda: entmax_attention(q, k, v, mask),
        "attention: attn_mask": lambda: attention(q, k, v, mask),
        "MultiheadAttention: attn_mask": lambda: layer(text, text, text, attn_mask=mask),
        "MultiheadAttention: key_padding_mask": lambda: layer(text, text, text, key_padding_mask=mask[0]),
    }
    for where, call in calls.items():
        if name == "nested" and "key" in where:
            continue  # a part of it is no nested tensor
        with pytest.raises(TypeError, match=f"{where} must.*{name}"):
            call()
    if name == "Coloured":
        close(entmax_attention(q, k, v, mask.as_subclass(torch.Tensor)), entmax_attention(q, k, v))


def test_tensor_classes_of_torch_itself_are_masks():
    q, k, v = draw(L=7, S=9)
    mask = torch.nn.Parameter(torch.randn(7, 9))
    entmax_attention(q, k, v, mask).sum().backward()
    assert mask.grad is not None and mask.grad.abs().sum() > 0
    buffer = torch.nn.Buffer(mask.detach() > 0)
    close(entmax_attention(q, k, v, buffer), entmax_attention(q, k, v, mask.detach() > 0))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert entmax_attention(*(mode.from_tensor(t) for t in (q, k, v, mask.detach()))).shape == (2, 4, 7, 5)


def test_distributed_tensors_are_masks(tmp_path):
    """DTensor in a group of one process. (Attention has no rule for sharding it yet, so only the mask is looked at.)"""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mask = distribute_tensor(torch.randn(7, 9), init_device_mesh("cpu", (1,)), [Replicate()])
        check_kind(mask, "attn_mask", "here")
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("kind", BIASES)
def test_a_bias_given_to_compiled_code(kind):
    q, k, v = draw(L=7, S=9)
    bias, mask = bias_and_mask(kind, 7, 9)
    compiled = torch.compile(entmax_attention, backend="eager", fullgraph=TORCH >= (2, 10))  # else it breaks there
    close(compiled(q, k, v, bias), entmax_attention(q, k, v, mask), 1e-6)


def test_arguments_stand_in_the_order_of_sdpa():
    q, k, v = draw(L=7, S=9)
    mask = torch.randn(7, 9) > -1
    close(entmax_attention(q, k, v, mask, alpha=1.0), F.scaled_dot_product_attention(q, k, v, mask))
    close(attention(q, k, v, None, 0.0, True), F.scaled_dot_product_attention(q, k, v, None, 0.0, True))
    out = entmax_attention(q, k, v, None, 1.0, True)
    assert torch.equal(out, torch.zeros_like(out)), "dropout of everything"
    sdpa = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal"]  # of torch's schema, where * comes next
    for function in (entmax_attention, attention, AttentionCore(4).forward):
        given = inspect.signature(function).parameters.values()
        assert [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD] == sdpa
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor, got float; alpha goes by name"):
        entmax_attention(q, k, v, 1.5)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors_are_refused(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=layout)
    plain = torch.randn(2, 3, 4)
    for at, name in enumerate(("query", "key", "value")):
        given = [plain, plain, plain]
        given[at] = nested
        for function in (entmax_attention, attention):
            with pytest.raises(TypeError, match=f"{name} must not be a nested tensor; pad it with {name}.to_padded"):
                function(*given)
