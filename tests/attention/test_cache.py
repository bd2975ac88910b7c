"""Step-by-step decoding with a cache equals the full pass: tokens, chunks, beams, padding, length scaling."""

import copy

import pytest
import torch

from cases import normal
from parsimax import KeyValueCache, MultiheadAttention

N, H, E, L = 3, 2, 8, 21
LAYERS = {
    "softmax": {"mapping": "softmax"},
    "learned": {"alpha": "learned", "alpha_start": torch.tensor([1.3, 1.8])},
    "rsoftmax": {"mapping": "rsoftmax", "rate": 0.6},
    "scaled": {"alpha": 1.5, "length_scaling": True},
    "added keys": {"mapping": "sparsemax", "add_bias_kv": True, "add_zero_attn": True},
    "sequence first": {"mapping": "entmax15", "batch_first": False},
}
CHUNKS = {"tokens": [1] * L, "chunks": [4, 1, 9, 1, 6], "prompt": [L - 3, 1, 1, 1], "at once": [L]}


def make(name, **more):
    torch.manual_seed(0)
    return MultiheadAttention(E, H, **{"batch_first": True, **LAYERS[name], **more}).eval()


def text(layer, length=L, seed=0, batch=N):
    x = normal(batch, length, E, seed=seed).float() * 2
    return x if layer.batch_first else x.transpose(0, 1)


def decode(layer, x, chunks, padding=None, **options):
    """The outputs and the last weights, a chunk at a time."""
    dim, cache, outs, start = (1 if layer.batch_first else 0), KeyValueCache(), [], 0
    for part, size in zip(x.split(chunks, dim), chunks, strict=True):
        own = {} if padding is None else {"key_padding_mask": padding[:, start : start + size]}
        out, weights = layer(part, part, part, is_causal=True, cache=cache, **own, **options)
        outs.append(out)
        start += size
        assert len(cache) == start
    return torch.cat(outs, dim), weights


def close(ours, truth, tolerance=1e-5):
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("name", LAYERS)
def test_steps_equal_the_full_pass(name, chunks, grad):
    layer = make(name)
    x = text(layer)
    left = torch.arange(L) < torch.tensor([[0], [3], [11]])  # the beginning of a text is missing
    right = torch.arange(L) >= torch.tensor([[L], [L - 2], [4]])
    with torch.set_grad_enabled(grad):
        for padding in (None, left, right):
            whole, weights = layer(x, x, x, is_causal=True, key_padding_mask=padding)
            out, last = decode(layer, x, CHUNKS[chunks], padding)
            close(out, whole)
            close(last, weights[:, -CHUNKS[chunks][-1] :])
            out, _ = decode(layer, x, CHUNKS[chunks], padding, need_weights=False)
            close(out, whole)


def test_gradients_equal_those_of_the_full_pass():
    layer = make("learned").double()
    grads = []
    for run in (lambda x: layer(x, x, x, is_causal=True)[0], lambda x: decode(layer, x, CHUNKS["chunks"])[0]):
        x = text(layer).double().requires_grad_()
        grads.append(torch.autograd.grad(run(x).square().sum(), [x, *layer.parameters()]))
    for a, b in zip(*grads, strict=True):
        assert b.abs().max() > 1e-6 or b.numel() == 3 * E
        close(a, b, 1e-9)


def test_padding_that_begins_later_and_ends():
    layer = make("learned")
    x = text(layer)
    padding = torch.zeros(N, L).bool()
    padding[1, 5:9] = True
    whole, _ = layer(x, x, x, is_causal=True, key_padding_mask=padding)
    cache, outs = KeyValueCache(), []
    with torch.no_grad():
        for i, token in enumerate(x.split(1, 1)):
            own = {"key_padding_mask": padding[:, i : i + 1]} if padding[:, i].any() else {}
            outs.append(layer(token, token, token, is_causal=True, cache=cache, **own)[0])
    close(torch.cat(outs, 1), whole)


def test_a_mask_over_all_keys():
    layer = make("learned")
    x = text(layer)
    window = ~(torch.ones(L, L).tril().bool() & ~torch.ones(L, L).tril(-4).bool())
    whole, _ = layer(x, x, x, attn_mask=window)
    cache, outs = KeyValueCache(), []
    for i, token in enumerate(x.split(1, 1)):
        outs.append(layer(token, token, token, attn_mask=window[i : i + 1, : i + 1], cache=cache)[0])
    close(torch.cat(outs, 1), whole)
    with pytest.raises(ValueError, match=r"\(1, 22\)"):
        layer(token, token, token, attn_mask=window[:1, :1], cache=cache)


@pytest.mark.parametrize("name", ["learned", "scaled"])
def test_beams(name):
    """Each beam's outputs are those of its own text, after rows are repeated, swapped and dropped."""
    layer = make(name)
    start, cache = text(layer, 3), KeyValueCache()
    padding = torch.arange(3) < torch.tensor([[0], [2], [1]])
    with torch.no_grad():
        layer(start, start, start, key_padding_mask=padding, is_causal=True, cache=cache)
        rows = torch.arange(N).repeat_interleave(2)  # two beams each
        cache.reorder(rows)
        history, pads = start[rows], padding[rows]
        for step in range(25):
            token = text(layer, 1, seed=step + 5, batch=len(history))
            out, _ = layer(token, token, token, is_causal=True, need_weights=False, cache=cache)
            history, pads = torch.cat([history, token], 1), torch.nn.functional.pad(pads, (0, 1))
            whole, _ = layer(history, history, history, key_padding_mask=pads, is_causal=True)
            close(out, whole[:, -1:])
            order = torch.randint(len(history), (max(2, len(history) - (step == 12)),))
            cache.reorder(order)
            history, pads = history[order], pads[order]
    assert cache.key.shape == (5, H, 28, E // H) and cache.padding.shape == (5, 28)


def test_static_keys_are_projected_once():
    layer = MultiheadAttention(E, H, batch_first=True, kdim=5, vdim=6, alpha="learned").eval()
    queries, key, value = text(layer), normal(N, 7, 5, seed=1).float(), normal(N, 7, 6, seed=2).float()
    padding = torch.arange(7) >= torch.tensor([[7], [4], [1]])
    whole, weights = layer(queries, key, value, key_padding_mask=padding)
    cache = KeyValueCache(static=True)
    with torch.no_grad():
        outs = [layer(queries[:, :1], key, value, key_padding_mask=padding, cache=cache)[0]]
        broken = torch.full_like(key, torch.nan), torch.full_like(value, torch.nan)  # nothing reads them again
        for token in queries[:, 1:].split(1, 1):
            out, last = layer(token, *broken, cache=cache)
            outs.append(out)
    close(torch.cat(outs, 1), whole)
    close(last, weights[:, -1:])
    assert len(cache) == 7
    order = torch.tensor([2, 0, 0, 1])
    cache.reorder(order)
    out, _ = layer(queries[order, -1:], *(t[order] for t in broken), cache=cache)
    close(out, whole[order, -1:])
    with pytest.raises(ValueError, match="static"):
        layer(queries[:, -1:], *broken, cache=cache)


def test_crop_copy_and_clear():
    layer = make("learned")
    x = text(layer)
    with torch.no_grad():
        whole, _ = layer(x, x, x, is_causal=True)
        cache = KeyValueCache()
        layer(x, x, x, is_causal=True, key_padding_mask=torch.zeros(N, L).bool(), cache=cache)
        cache.crop(5)
        other = copy.deepcopy(cache)
        noise = text(layer, seed=9)
        layer(noise, noise, noise, is_causal=True, cache=other)
        rest = x[:, 5:]
        close(layer(rest, rest, rest, is_causal=True, cache=cache)[0], whole[:, 5:])
    assert (len(cache), len(other)) == (L, L + 5)
    cache.clear()
    assert not cache.filled and len(cache) == 0 and repr(cache) == "KeyValueCache(empty)"
    close(layer(x, x, x, is_causal=True, cache=cache)[0], whole)


def test_memory_grows_seldom():
    layer, cache, places = make("softmax"), KeyValueCache(), set()
    with torch.no_grad():
        for token in text(layer, 200).split(1, 1):
            layer(token, token, token, is_causal=True, need_weights=False, cache=cache)
            places.add(cache.key.data_ptr())
    assert len(places) <= 6


def test_modes_may_change_between_steps():
    layer = make("learned")
    x = text(layer, 6)
    whole, _ = layer(x, x, x, is_causal=True)
    cache, outs = KeyValueCache(), []
    contexts = [torch.inference_mode, torch.no_grad, torch.enable_grad, torch.no_grad, torch.no_grad, torch.enable_grad]
    for context, token in zip(contexts, x.split(1, 1), strict=True):
        with context():
            outs.append(layer(token, token, token, is_causal=True, need_weights=False, cache=cache)[0].detach().clone())
    close(torch.cat(outs, 1), whole.detach())


def test_without_batch():
    layer = make("learned")
    x = text(layer)[0]
    whole, _ = layer(x, x, x, is_causal=True)
    cache = KeyValueCache()
    close(torch.cat([layer(t, t, t, is_causal=True, cache=cache)[0] for t in x.split(2)]), whole)


def test_errors():
    layer, cache = make("learned"), KeyValueCache()
    with pytest.raises(RuntimeError, match="it is empty"):
        _ = cache.key
    x = text(layer, 2)
    layer(x, x, x, cache=cache)
    with pytest.raises(ValueError, match=r"it holds \(batch, heads\) = \(3, 2\), got \(2, 2\)"):
        layer(x[:2], x[:2], x[:2], cache=cache)
    with pytest.raises(TypeError, match="must be boolean with a cache"):
        layer(x, x, x, key_padding_mask=torch.zeros(N, 2), cache=cache)
    with pytest.raises(ValueError, match=r"\(batch, keys\) = \(3, 2\)"):
        layer(x, x, x, key_padding_mask=torch.zeros(N, 4).bool(), cache=cache)
    with pytest.raises(ValueError, match="length must be in 0…2, got 3"):
        cache.crop(3)
    assert len(cache) == 2
    KeyValueCache().reorder(torch.tensor([0]))  # nothing to reorder yet


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_a_refused_call_leaves_the_cache_as_it_was(grad, filled, static):
    layer, cache = make("learned"), KeyValueCache(static)
    x = text(layer, 3)
    size = 3 if filled and static else 5 if filled else 2
    wrong = {
        "shape": torch.zeros(1, 1).bool(),
        "integers": torch.zeros(2, size).int(),
        "type": torch.zeros(2, size, dtype=torch.float16),  # the core refuses it
    }
    with torch.set_grad_enabled(grad):
        if filled:
            layer(x, x, x, cache=cache)
        truth = cache.key.detach().clone() if filled else None
        for mask in wrong.values():
            for padding in (None, torch.tensor([[False, True]] * N)):
                with pytest.raises((ValueError, TypeError), match="attn_mask"):
                    token = x[:, :2] + 1
                    layer(token, token, token, key_padding_mask=padding, attn_mask=mask, cache=cache)
                assert len(cache) == (3 if filled else 0) and cache.filled == filled and cache.padding is None
        if filled:
            assert torch.equal(cache.key, truth)
        else:
            layer(x, x, x, cache=cache)
            assert len(cache) == 3
