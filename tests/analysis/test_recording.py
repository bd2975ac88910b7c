"""Recordings hold the exact weights of every layer and example, whatever the model, and leave the model alone."""

import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fresh
import parsimax
from parsimax import analysis
from parsimax.analysis import Recording, SparseWeights
from parsimax.analysis.layers import guess_kinds
from parsimax.analysis.weights import RowBlocks

SIZE = 16


def weights(*shape, density=0.3, dtype=torch.float32, seed=0):
    maker = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, generator=maker, dtype=torch.float64) + 0.01
    kept = torch.rand(shape, generator=maker) < density
    return torch.where(kept, values, 0).to(dtype)


def same(sparse, dense):
    assert sparse.shape == tuple(dense.shape)
    for head in range(len(dense)):
        torch.testing.assert_close(sparse.dense(head), dense[head].float(), rtol=0, atol=0, equal_nan=True)


class Block(nn.Module):
    """Self-attention and, with a memory, cross-attention."""

    def __init__(self, cross=False, **settings):
        super().__init__()
        self.self_attn = parsimax.MultiheadAttention(SIZE, 4, batch_first=True, **settings)
        self.cross_attn = parsimax.MultiheadAttention(SIZE, 4, batch_first=True, **settings) if cross else None

    def forward(self, x, memory=None, padding=None, causal=None):
        x = x + self.self_attn(x, x, x, key_padding_mask=padding, attn_mask=causal, need_weights=False)[0]
        if self.cross_attn is not None:
            x = x + self.cross_attn(x, memory, memory, key_padding_mask=None, need_weights=False)[0]
        return x


class Stack(nn.Module):
    def __init__(self, count=2, **settings):
        super().__init__()
        self.layers = nn.ModuleList(Block(**settings) for _ in range(count))

    def forward(self, x, attention_mask=None):
        padding = None if attention_mask is None else attention_mask == 0
        for layer in self.layers:
            x = layer(x, padding=padding)
        return x


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Stack(1, mapping="sparsemax")
        self.decoder = nn.ModuleList([Block(cross=True, alpha=1.5)])

    def forward(self, source, target):
        memory = self.encoder(source)
        for layer in self.decoder:
            target = layer(target, memory)
        return target


def truth(model, x):
    """The weights (batch, heads, queries, keys) of each layer of a Stack, as the layers themselves return them."""
    found = []
    with torch.no_grad():
        for layer in model.layers:
            found.append(layer.self_attn(x, x, x, average_attn_weights=False)[1])
            x = layer(x)
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 1, 9), (4, 6, 1), (2, 0, 3), (2, 3, 0), (1, 0, 0)])
def test_sparse_weights_are_the_dense_ones(shape, dtype):
    dense = weights(*shape, dtype=dtype)
    sparse = SparseWeights.from_dense(dense)
    same(sparse, dense)
    assert sparse.counts.dtype == torch.int32 and sparse.keys.dtype == torch.int16
    assert torch.equal(sparse.counts, (dense != 0).sum(-1, dtype=torch.int32))
    expected = (dense != 0).float().mean((1, 2)).nan_to_num(0)
    torch.testing.assert_close(sparse.density(), expected)
    if dense.numel():
        keys, values = sparse.row(-1 % shape[0], 0)
        assert torch.equal(keys, dense[-1, 0].nonzero().flatten())
        assert torch.equal(values, dense[-1, 0][keys].float())


def test_heads_and_queries_that_are_not_there_are_refused():
    sparse = SparseWeights.from_dense(weights(3, 5, 7))
    assert torch.equal(sparse.dense(-1), sparse.dense(2)) and torch.equal(sparse.row(-1, -1)[0], sparse.row(2, 4)[0])
    for head in (3, -4, 7):
        with pytest.raises(IndexError, match=f"dense: head must be between 0 and 2, got {head}"):
            sparse.dense(head)
    with pytest.raises(IndexError, match="row: query must be between 0 and 4, got 5"):
        sparse.row(0, 5)


def test_no_weight_is_lost_or_made():
    dense = torch.tensor([[[1e-300, 0.0, 1.0, -0.0], [float("nan"), 0.0, 5e-324, 0.0]]], dtype=torch.float64)
    found = SparseWeights.from_dense(dense).dense(0)
    assert torch.equal(found != 0, dense[0] != 0)
    assert found[1, 0].isnan() and found[0, 2] == 1 and found[0, 0] < 1e-37
    tiny = torch.tensor([[[1e-45, 0.0, 1e-38]]])
    assert torch.equal(SparseWeights.from_dense(tiny).dense(0), tiny[0])


@pytest.mark.parametrize(("keys", "dtype"), [(32767, torch.int16), (32768, torch.int32), (70001, torch.int32)])
def test_keys_are_as_wide_as_they_must_be(keys, dtype):
    dense = torch.zeros(1, 2, keys)
    dense[0, 0, -1], dense[0, 1, 0], dense[0, 1, keys // 2] = 1, 0.5, 0.5
    sparse = SparseWeights.from_dense(dense)
    assert sparse.keys.dtype == dtype
    same(sparse, dense)
    wider = SparseWeights.from_dense(dense[..., -3:]).moved(keys - 3)
    assert wider.keys.dtype == dtype and torch.equal(wider.dense(0)[0], dense[0, 0])


def test_parts_of_sparse_weights_are_parts_of_the_dense_ones():
    dense = weights(3, 8, 6)
    sparse = SparseWeights.from_dense(dense)
    for queries, keys in [((0, 8), (0, 6)), ((2, 5), (1, 6)), ((0, 0), (0, 6)), ((7, 8), (3, 3)), ((0, 8), (0, 2))]:
        same(sparse.trim(queries, keys), dense[:, slice(*queries), slice(*keys)])
    for start, stop in [(0, 8), (3, 7), (4, 4)]:
        head, query, key, value = sparse.entries(start, stop)
        rebuilt = torch.zeros_like(dense)
        rebuilt[head, query, key] = value
        assert torch.equal(rebuilt[:, start:stop], dense[:, start:stop]) and len(value) == (rebuilt != 0).sum()
    parts = [sparse.trim((0, 3), (0, 4)), sparse.trim((3, 3), (0, 6)), sparse.trim((3, 8), (0, 6))]
    expected = dense.clone()
    expected[:, :3, 4:] = 0
    same(SparseWeights.join(parts), expected)


@pytest.mark.parametrize("densities", [(0.01, 0.9, 1.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.2,)])
def test_blocks_of_rows_join_to_the_whole(densities):
    blocks = [weights(4, 3 + i, 11, density=d, seed=i) for i, d in enumerate(densities)]
    whole = torch.cat(blocks, 1)
    collected = RowBlocks(4, whole.shape[1], 11)
    for block in blocks:
        collected.add(block)
    same(collected.join(), whole)


def test_every_layer_example_and_call_is_recorded():
    model = Stack(mapping="sparsemax").eval()
    batches = [torch.randn(3, 7, SIZE), torch.randn(2, 5, SIZE)]
    state, plain = list(model.state_dict()), [model(x) for x in batches]
    with analysis.record(model) as recording:
        outputs = [model(x) for x in batches]
    assert all(torch.equal(a, b) for a, b in zip(plain, outputs, strict=True))
    assert list(model.state_dict()) == state
    assert [layer.name for layer in recording.layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert all((x.kind, x.mapping, x.heads, x.alpha) == ("self", "sparsemax", 4, [2.0] * 4) for x in recording.layers)
    expected = [w for x in batches for w in zip(*truth(model, x), strict=True)]
    assert len(recording.examples) == len(expected) == 5
    for example, layers in zip(recording.examples, expected, strict=True):
        for sparse, dense in zip(example.weights, layers, strict=True):
            for head in range(4):
                torch.testing.assert_close(sparse.dense(head), dense[head], rtol=0, atol=1e-6)
            assert torch.equal(sparse.counts, (dense != 0).sum(-1, dtype=torch.int32))
    assert recording.examples[0].tokens == [str(i) for i in range(7)]


def test_learned_alpha_is_the_last_one_seen():
    model = parsimax.MultiheadAttention(SIZE, 4, alpha="learned")
    x = torch.randn(3, 1, SIZE)
    with analysis.record(model) as recording:
        model(x, x, x)
        with torch.no_grad():
            model.core.learned_alpha.raw.copy_(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
        model(x, x, x)
    expected = (1 + torch.tensor([-1.0, 0.0, 1.0, 2.0]).sigmoid()).tolist()
    assert recording.layers[0].alpha == pytest.approx(expected, abs=1e-6)
    with analysis.record(parsimax.MultiheadAttention(SIZE, 4, mapping="rsoftmax", rate=0.5)) as recording:
        pass
    assert recording.layers == [] and recording.examples == []


@pytest.mark.parametrize("given", ["mask", "positional", "tokens", "both", "padded tokens"])
def test_padding_is_left_out(given):
    model = Stack(alpha=1.5)
    x, mask = torch.randn(2, 6, SIZE), torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    tokens = [list("abcdef"), list("xyz")]
    padded = [list("abcdef"), [*"xyz", *["[PAD]"] * 3]]
    chosen = {"tokens": tokens, "both": tokens, "padded tokens": padded}.get(given)
    with analysis.record(model, tokens=chosen) as recording:
        if given == "positional":
            model(x, mask)
        else:
            model(x, attention_mask=None if given == "tokens" else mask)
    shapes = [[w.shape for w in example.weights] for example in recording.examples]
    assert shapes == [[(4, 6, 6)] * 2, [(4, 3, 3)] * 2]
    if chosen:
        assert recording.tokens == tokens
    with analysis.record(model) as alone:
        model(x[1:, :3])
    if given != "tokens":
        for a, b in zip(recording.examples[1].weights, alone.examples[0].weights, strict=True):
            torch.testing.assert_close(a.dense(0), b.dense(0), rtol=0, atol=1e-6)


def test_padding_on_the_left_is_left_out():
    model = Stack(1, alpha=1.5)
    x, mask = torch.randn(1, 5, SIZE), torch.tensor([[0, 0, 1, 1, 1]])
    for tokens in (["a", "b", "c"], ["<pad>", "<pad>", "a", "b", "c"]):
        with analysis.record(model, tokens=tokens) as recording:
            model(x, attention_mask=mask)
        assert recording.tokens == [["a", "b", "c"]]
        with analysis.record(model) as alone:
            model(x[:, 2:])
        torch.testing.assert_close(
            recording.examples[0].weights[0].dense(2), alone.examples[0].weights[0].dense(2), rtol=0, atol=1e-6
        )


class Padded(nn.Module):
    """Names its arguments as it likes, and hands the padding on in one of the ways there are."""

    def __init__(self, way):
        super().__init__()
        self.way, self.attention = way, parsimax.MultiheadAttention(SIZE, 4, mapping="softmax", batch_first=True)

    def forward(self, x, missing):
        added = torch.zeros(missing.shape).masked_fill(missing, torch.finfo(x.dtype).min)
        if "core" in self.way:
            heads = x.unflatten(2, (4, -1)).transpose(1, 2)
            mask = added if "added" in self.way else ~missing
            return self.attention.core(heads, heads, heads, attn_mask=mask[:, None, None])
        if self.way == "positional":
            return self.attention(x, x, x, missing, False)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if "causal" in self.way else None
        missing = missing if "added" not in self.way else torch.where(missing, -torch.inf, 0.0)
        return self.attention(x, x, x, key_padding_mask=missing, attn_mask=causal, need_weights=False)


@pytest.mark.parametrize("way", ["named", "positional", "added", "causal", "core", "added core"])
def test_padding_is_read_from_what_the_attention_gets(way):
    missing = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [True] * 4 + [False]])
    model = Padded(way)
    with analysis.record(model) as recording:
        model(torch.randn(3, 5, SIZE), missing)
    assert [example.weights[0].shape for example in recording.examples] == [(4, 5, 5), (4, 3, 3), (4, 1, 1)]
    torch.testing.assert_close(analysis.measures(recording).matrix("density"), torch.ones(1, 4, dtype=torch.float64))


def test_padding_of_cross_attention_cuts_no_query():
    layer, missing = parsimax.MultiheadAttention(SIZE, 4, batch_first=True), torch.tensor([[False] * 2 + [True] * 3])
    memory = torch.randn(1, 5, SIZE)
    with analysis.record(layer) as recording:
        layer(torch.randn(1, 3, SIZE), memory, memory, key_padding_mask=missing)
    assert recording.examples[0].weights[0].shape == (4, 3, 2)
    with analysis.record(layer) as alone:  # without a batch
        layer(memory[0], memory[0], memory[0], key_padding_mask=missing[0])
    assert alone.examples[0].weights[0].shape == (4, 2, 2)


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_visible_keys_are_those_of_the_mask(mapping, tmp_path):
    core, (query, key) = parsimax.AttentionCore(2, mapping), torch.randn(2, 3, 2, 7, 8)
    distance = torch.arange(7).view(-1, 1) - torch.arange(7)
    masks = {
        "none": None,
        "window": distance.abs() <= 1,
        "causal window": (distance >= 0) & (distance <= 2),
        "by head": torch.stack([distance >= 0, distance.abs() <= 3])[None],
        "by example": torch.stack([distance >= 0, distance <= 2, distance == 0])[:, None],
        "added": torch.where(distance.abs() <= 2, torch.randn(7, 7), torch.finfo(torch.float32).min),
        "nothing": torch.zeros(7, 7, dtype=torch.bool),
    }
    for name, mask in masks.items():
        with analysis.record(core) as recording:
            core(query, key, key, attn_mask=mask)
        recording.save(tmp_path / name)
        allowed = torch.ones(7, 7, dtype=torch.bool) if mask is None else mask if name != "added" else mask > -1e30
        expected = allowed.expand(3, 2, 7, 7).sum(-1)
        for i, example in enumerate(analysis.load(tmp_path / name).examples):
            found = example.weights[0].visible
            assert found.dtype == torch.int32 and found.shape[0] == (2 if name == "by head" else 1)
            assert torch.equal(found.expand(2, 7).long(), expected[i])
        assert recording.causal(0) == (name in ("causal window", "nothing"))
    with analysis.record(core) as recording:
        core(query, key, key, is_causal=True)
    assert recording.examples[2].weights[0].visible.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    recording.tokens = [list("abcdefg"), list("abc"), list("a")]
    assert [e.weights[0].visible.tolist() for e in recording.examples[1:]] == [[[1, 2, 3]], [[1]]]
    assert recording.causal(0)


def test_token_numbers_are_refused_before_the_model_runs():
    model = Stack(1, alpha=1.5)
    for wrong in ([[101, 7]], [101, 7], torch.tensor([[101, 7]]), [["a", 7]]):
        refused = pytest.raises(TypeError, match=r"must be strings.*got (tensor\()?(101|7)\)?; .*convert_ids_to_tokens")
        with refused, analysis.record(model, tokens=wrong):
            raise ZeroDivisionError
    with analysis.record(model) as recording:
        model(torch.randn(1, 2, SIZE))
    with pytest.raises(TypeError, match=r"recording\.tokens: tokens must be strings"):
        recording.tokens = [[101, 7]]


def test_tokens_that_do_not_fit_are_refused():
    model, x = Stack(1, alpha=1.5), torch.randn(2, 4, SIZE)
    refused = pytest.raises(ValueError, match=r"source of example 1: 5 tokens were given where the model saw 4$")
    with refused, analysis.record(model, tokens=[list("abcd"), list("abcde")]):
        model(x)
    with analysis.record(model) as recording:
        model(x, attention_mask=torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]))
    with pytest.raises(ValueError, match=r"2 tokens were given where the model saw 3 \(4 with padding\)"):
        recording.tokens = [list("ab"), list("abcd")]
    with pytest.raises(ValueError, match="tokens of 3 examples were given, but 2 were recorded"):
        recording.tokens = [["a"]] * 3
    recording.tokens = [list("abc"), list("ab")]  # fewer, without a mask there: padding
    assert [example.weights[0].shape for example in recording.examples] == [(4, 3, 3), (4, 2, 2)]
    with pytest.raises(ValueError, match="4 tokens were given where the model saw 2"):
        recording.tokens = [list("abc"), list("abcd")]


def test_encoder_and_decoder_have_their_own_tokens():
    model = Translator()
    with analysis.record(model, [list("abcde")] * 2, [list("uvw"), list("uv")]) as recording:
        model(torch.randn(2, 5, SIZE), torch.randn(2, 3, SIZE))
    assert [layer.kind for layer in recording.layers] == ["self", "decoder", "cross"]
    first, second = recording.examples
    assert [w.shape for w in first.weights] == [(4, 5, 5), (4, 3, 3), (4, 3, 5)]
    assert [w.shape for w in second.weights] == [(4, 5, 5), (4, 2, 2), (4, 2, 5)]
    cross = recording.layers[2].name
    assert first.query_tokens[cross] == list("uvw") and first.key_tokens[cross] == list("abcde")
    assert second.key_tokens[recording.layers[1].name] == list("uv")


def test_parts_called_one_by_one_are_one_example():
    model = Translator()
    source, target = torch.randn(1, 5, SIZE), torch.randn(1, 3, SIZE)
    with analysis.record(model) as whole:
        model(source, target)
    with analysis.record(model) as parts:
        memory = model.encoder(source)
        for layer in model.decoder:
            layer(target, memory)
    assert len(parts.examples) == 1
    for a, b in zip(whole.examples[0].weights, parts.examples[0].weights, strict=True):
        assert torch.equal(a.values, b.values) and torch.equal(a.keys, b.keys)


def test_several_targets_of_one_source_share_its_weights():
    model = Translator()
    source, target = torch.randn(2, 5, SIZE), torch.randn(4, 3, SIZE)
    with analysis.record(model) as recording:
        memory = model.encoder(source, attention_mask=torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]))
        for layer in model.decoder:
            layer(target, memory.repeat_interleave(2, 0))
    assert [example.weights[0].shape[1] for example in recording.examples] == [5, 5, 3, 3]
    assert all(len(example.target_tokens) == 3 for example in recording.examples)


def test_steps_with_a_cache_are_rows_of_one_example():
    core = parsimax.AttentionCore(4, alpha=1.5)
    query, key, value = torch.randn(3, 2, 4, 7, 8)
    with analysis.record(core) as whole:
        core(query, key, value, is_causal=True)
    with analysis.record(core) as steps:
        for prompt, x in ((3, query), (3, query + 1)):
            core(x[..., :prompt, :], key[..., :prompt, :], value[..., :prompt, :], is_causal=True)
            for i in range(prompt, 7):
                core(x[..., i : i + 1, :], key[..., : i + 1, :], value[..., : i + 1, :])
    assert len(steps.examples) == 4 and all(example.generated for example in steps.examples)
    for a, b in zip(whole.examples, steps.examples[:2], strict=True):
        torch.testing.assert_close(a.weights[0].dense(3), b.weights[0].dense(3), rtol=0, atol=1e-6)
    steps.tokens = [list("abcdefgh")] * 4  # with the last token, which was never a query
    assert steps.tokens[3] == list("abcdefg")


def test_a_cache_from_before_the_block_is_numbered():
    core = parsimax.AttentionCore(4, alpha=1.5)
    query, key, value = torch.randn(3, 1, 4, 6, 8)
    model = nn.ModuleDict({"self_attn": core})
    with analysis.record(model, tokens=["x", "y"]) as recording:
        core(query[..., 4:, :], key, value)
    example = recording.examples[0]
    assert example.weights[0].shape == (4, 2, 6)
    assert example.key_tokens["self_attn"] == ["‹0›", "‹1›", "‹2›", "‹3›", "x", "y"]
    with analysis.record(model) as prefixed:  # the same number of keys twice, too few for all these queries
        core(query[..., 2:, :], key, value)
        core(query[..., 2:, :], key, value)
    assert [example.weights[0].shape for example in prefixed.examples] == [(4, 4, 6)] * 2
    dense = weights(1, 2, 3, 5)
    cut = Recording.from_weights({"self_attn": dense}, attention_mask=torch.tensor([[0, 1, 1]]))
    same(cut.examples[0].weights[0], dense[0, :, 1:])


def test_a_sliding_cache_keeps_its_keys_in_place():
    core = parsimax.AttentionCore(1, "sparsemax")
    query, key, value = torch.randn(3, 1, 1, 6, 8)
    with analysis.record(core) as recording:
        for i in range(6):
            first = max(0, i - 2)
            core(query[..., i : i + 1, :], key[..., first : i + 1, :], value[..., first : i + 1, :])
    dense = recording.examples[0].weights[0].dense(0)
    band = torch.ones(6, 6).tril().triu(-2)
    assert dense.shape == (6, 6) and torch.equal(dense * band, dense)
    torch.testing.assert_close(dense.sum(1), torch.ones(6))


def test_batches_of_cross_attention_stay_apart():
    layer = parsimax.MultiheadAttention(SIZE, 4, batch_first=True, mapping="sparsemax")
    masks = [None, torch.arange(10) > 4, torch.arange(10) > 7]  # three keys more: as many as there are queries
    with analysis.record(layer) as recording:
        for mask in masks:
            memory = torch.randn(2, 10, SIZE)
            layer(
                torch.randn(2, 3, SIZE), memory, memory, key_padding_mask=None if mask is None else mask.expand(2, -1)
            )
    assert [example.weights[0].shape for example in recording.examples] == [(4, 3, n) for n in (10, 10, 5, 5, 8, 8)]
    assert not any(example.generated for example in recording.examples)


def test_several_queries_go_on_in_a_cache_of_fixed_size():
    core, (query, key) = parsimax.AttentionCore(2, "sparsemax"), torch.randn(2, 1, 2, 8, 4)
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    with analysis.record(nn.ModuleDict({"self_attn": core})) as recording:
        for rows in (slice(0, 3), slice(3, 5), slice(5, 6)):
            core(query[..., rows, :], key, key, attn_mask=causal[rows])
    (example,) = recording.examples
    assert example.weights[0].shape == (2, 6, 6) and example.weights[0].visible.tolist() == [[1, 2, 3, 4, 5, 6]]
    expected = core(query, key, key, attn_mask=causal, return_weights=True)[1]
    torch.testing.assert_close(example.weights[0].dense(1), expected[0, 1, :6, :6], rtol=0, atol=1e-6)


def test_single_queries_in_a_loop_are_rows():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = parsimax.AttentionCore(2, "sparsemax")

        def forward(self, query, key):
            return [self.attention(query[..., i : i + 1, :], key, key) for i in range(query.shape[-2])]

    model, (query, key) = Loop(), torch.randn(2, 3, 2, 5, 8)
    with analysis.record(model, tokens=[list("abcde")] * 6, target_tokens=[list("wxyz")] * 6) as recording:
        model(query[..., :4, :], key)
        model(query[..., :4, :], key)
    assert recording.layers[0].kind == "cross"
    expected = parsimax.attention(query[..., :4, :], key, key, mapping="sparsemax", return_weights=True)[1]
    for example, dense in zip(recording.examples, [*expected, *expected], strict=True):
        torch.testing.assert_close(example.weights[0].dense(1), dense[1], rtol=0, atol=1e-6)


def test_a_layer_used_twice_is_two_layers():
    block = Block(mapping="sparsemax")
    model = nn.Sequential(block, block)
    with analysis.record(model) as recording:
        model(torch.randn(2, 3, SIZE))
    assert [layer.name for layer in recording.layers] == ["0.self_attn", "0.self_attn (2)"]
    assert len(recording.examples) == 2


def test_an_exception_leaves_the_model_as_it_was():
    model, x = Stack(alpha=1.5), torch.randn(1, 3, SIZE)
    cores = [m for m in model.modules() if isinstance(m, parsimax.AttentionCore)]

    def hooks():
        return [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()]

    before = hooks()
    with pytest.raises(ZeroDivisionError), analysis.record(model, tokens=["too", "few"] * 9) as recording:
        model(x)
        raise ZeroDivisionError
    assert len(recording.examples) == 1
    with pytest.raises(ValueError, match="17"), analysis.record(model):
        model(torch.randn(1, 3, SIZE + 1))
    assert hooks() == before and all(core.observers == [] for core in cores)
    with analysis.record(model) as recording:
        with pytest.raises(ValueError, match="17"):
            model(torch.randn(1, 3, SIZE + 1))  # fails in the first layer
        model.layers[1].self_attn.core.observers.append(lambda seen: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(x)  # the first layer ran, the second did not
        model.layers[1].self_attn.core.observers.pop()
        model(x)
    assert len(recording.examples) == 1 and len(recording.examples[0].weights) == 2


def test_recordings_may_be_nested():
    model, x = Stack(alpha=1.5), torch.randn(1, 3, SIZE)
    with analysis.record(model) as outer:
        model(x)
        with analysis.record(model.layers[1]) as inner:
            model(x)
        model(x)
    assert [len(outer.examples), len(inner.examples)] == [3, 1]
    assert [layer.name for layer in inner.layers] == ["self_attn"]


def test_training_goes_on_as_without():
    torch.manual_seed(1)
    model, x = Stack(alpha="learned", dropout=0.3).train(), torch.randn(2, 5, SIZE)

    def step():
        model.zero_grad()
        torch.manual_seed(0)
        (model(x) ** 2).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = step()
    with analysis.record(model) as recording:
        seen = step()
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    sums = torch.stack([w.dense(0).sum(1) for e in recording.examples for w in e.weights])
    torch.testing.assert_close(sums, torch.ones_like(sums))  # before dropout
    assert not any(w.values.requires_grad for e in recording.examples for w in e.weights)


def test_checkpointing_does_not_show_a_layer_twice():
    block, x = Block(alpha="learned"), torch.randn(2, 5, SIZE, requires_grad=True)
    with analysis.record(block) as recording:
        checkpoint(block, x, use_reentrant=False).sum().backward()
        checkpoint(block, x, use_reentrant=True).sum().backward()
    assert len(recording.examples) == 4 and len(recording.layers) == 1


def test_a_compiled_model_is_recorded():
    model, x = Stack(1, alpha=1.5), torch.randn(2, 5, SIZE)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    for watched in (model, compiled):
        with analysis.record(watched) as recording:
            compiled(x)
        assert len(recording.examples) == 2 and recording.layers[0].name == "layers.0.self_attn"


def test_a_model_that_went_around_our_attention_is_told():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.use = parsimax.AttentionCore(2), False

        def forward(self, x):
            return self.attention(x, x, x) if self.use else x

    model, x = Around(), torch.randn(1, 2, 3, 4)
    told = pytest.raises(RuntimeError, match=r"Around ran.*none of its attention layers was called")
    with told, analysis.record(model):
        model(x)
    assert not model._forward_hooks and model.attention.observers == []
    with pytest.raises(ZeroDivisionError), analysis.record(model):
        model(x)
        raise ZeroDivisionError
    with analysis.record(model) as recording:
        model(x)
        model.use = True
        model(x)
    assert len(recording.examples) == 1


def test_another_attention_implementation_is_named():
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    model, ids = tiny("BertModel", **size)
    model.set_attn_implementation("eager")
    told = pytest.raises(RuntimeError, match=r"BertModel ran.*implementation was changed to 'eager'.*sparsify")
    with told, analysis.record(model), pytest.warns(UserWarning, match="ran without its mapping"):
        model(ids)


def test_a_model_without_our_attention_is_refused():
    advice = r"Linear has no attention layer of parsimax.*huggingface\.sparsify.*MultiheadAttention"
    with pytest.raises(ValueError, match=advice), analysis.record(nn.Linear(2, 2)):
        pass


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["layers.0.self_attn", "layers.1.self_attn"], ["self", "self"]),
        (["h.0.attn", "h.0.crossattention"], ["decoder", "cross"]),
        (["model.decoder.layers.0.self_attn"], ["self"]),  # a decoder alone
        (["encoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"], ["self", "cross"]),
        (
            ["encoder.encoder.layer.0.attention.self", "decoder.bert.encoder.layer.0.attention.self"],
            ["self", "decoder"],
        ),
        (["m.encoder.layers.0.self_attn", "m.decoder.layers.0.encoder_attn"], ["self", "cross"]),
        (["context_encoder.layer.0.attention", "decoder.0.attention"], ["self", "decoder"]),
        (["encoder.0", "decoder.0", "cross.0"], ["self", "decoder", "cross"]),
    ],
)
def test_kinds_are_read_from_names(names, kinds):
    assert list(guess_kinds(names).values()) == kinds


def test_plain_weights_become_a_recording():
    given = {"encoder.0": weights(2, 3, 6, 6), "decoder.0": weights(2, 3, 4, 4), "cross.0": weights(2, 3, 4, 6)}
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    recording = Recording.from_weights(
        given,
        [list("abcdef"), list("cdef")],
        [list("uvwx"), list("uv")],
        attention_mask=mask,
        alpha={"cross.0": [1.0, 1.5, 2.0]},
    )
    assert [layer.alpha for layer in recording.layers] == [None, None, [1.0, 1.5, 2.0]]
    same(recording.examples[0].weights[2], given["cross.0"][0])
    for sparse, dense in zip(
        recording.examples[1].weights,
        [given["encoder.0"][1, :, 2:, 2:], given["decoder.0"][1, :, :2, :2], given["cross.0"][1, :, :2, 2:]],
        strict=True,
    ):
        same(sparse, dense)
    with pytest.raises(ValueError, match=r"'a' must be \(examples, heads, queries, keys\), got \(3, 4, 4\)"):
        Recording.from_weights({"a": torch.zeros(3, 4, 4)})
    with pytest.raises(ValueError, match="every layer must have the same examples, got '0' 2, '1' 3"):
        Recording.from_weights([torch.zeros(2, 1, 4, 4), torch.zeros(3, 1, 4, 4)])
    with pytest.raises(KeyError, match=r"no layer 'b'.*encoder\.0, decoder\.0, cross\.0"):
        recording.index("b")


def test_a_saved_recording_is_the_same(tmp_path):
    model = Translator()
    with analysis.record(model, [list("abcde")] * 2) as recording:
        model(torch.randn(2, 5, SIZE), torch.randn(2, 3, SIZE))
    recording.save(tmp_path / "attention.pt")
    again = analysis.load(tmp_path / "attention.pt")
    assert again.layers == recording.layers and again.tokens == recording.tokens
    for a, b in zip(recording.examples, again.examples, strict=True):
        assert a.query_tokens == b.query_tokens and a.key_tokens == b.key_tokens
        for x, y in zip(a.weights, b.weights, strict=True):
            assert x.shape == y.shape and x.keys.dtype == y.keys.dtype
            assert all(torch.equal(getattr(x, name), getattr(y, name)) for name in ("counts", "keys", "values"))
    again.target_tokens = [list("xyz"), list("x")]
    assert again.examples[1].weights[2].shape == (4, 1, 5)
    (tmp_path / "text.pt").write_text("no recording")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "bytes.pt").write_bytes(bytes(range(256)))
    torch.save({"other": 1}, tmp_path / "other.pt")
    torch.save(model, tmp_path / "model.pt")
    for name in ("text.pt", "empty.pt", "bytes.pt", "other.pt", "model.pt"):
        with pytest.raises(ValueError, match=f"{name} is not a recording") as refused:
            analysis.load(tmp_path / name)
        assert "weights_only" not in str(refused.value) and refused.value.__suppress_context__ == (name != "other.pt")
    with pytest.raises(FileNotFoundError):
        analysis.load(tmp_path / "nowhere.pt")


def tiny(name, **more):
    """A small transformers model with entmax attention, and two examples of it."""
    transformers = pytest.importorskip("transformers")
    from parsimax.huggingface import sparsify

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind._from_config(kind.config_class(vocab_size=40, pad_token_id=0, eos_token_id=1, bos_token_id=2, **more))
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return sparsify(model.eval(), alpha=1.5), torch.randint(3, 40, (2, 6))


def test_generation_of_a_padded_batch_equals_one_pass():
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model, ids = tiny("LlamaForCausalLM", num_key_value_heads=2, **size)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    with analysis.record(model) as steps:
        out = model.generate(ids, attention_mask=mask, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    steps.tokens = [[f"t{i}" for i in row] for row in out.tolist()]
    assert [len(tokens) for tokens in steps.tokens] == [10, 8] and steps.tokens[1][0] == f"t{ids[1, 2]}"
    with analysis.record(model, steps.tokens) as whole:
        model(out[:, :-1], attention_mask=torch.cat([mask, torch.ones(2, 4)], 1))
    for a, b in zip(steps.examples, whole.examples, strict=True):
        for x, y in zip(a.weights, b.weights, strict=True):
            for head in range(4):
                torch.testing.assert_close(x.dense(head), y.dense(head), rtol=0, atol=1e-5)
    assert whole.causal(0) and [layer.kind for layer in whole.layers] == ["self", "self"]


@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_decoder_generates(beams):
    size = {"encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
    model, ids = tiny(
        "BartForConditionalGeneration", decoder_start_token_id=2, forced_eos_token_id=None, **size, **heads
    )
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with analysis.record(model) as recording:
        for _ in range(2):
            model.generate(
                ids, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, num_beams=beams, do_sample=False
            )
    kinds = ["self", "decoder", "cross", "decoder", "cross"]
    assert [layer.kind for layer in recording.layers] == kinds and len(recording.examples) == 4 * beams
    lengths = {"self": (6, 6), "decoder": (4, 4), "cross": (4, 6)}
    assert [w.shape[1:] for w in recording.examples[0].weights] == [lengths[kind] for kind in kinds]
    assert recording.examples[beams].weights[2].shape == (2, 4, 4)  # without the padding of the second source


def test_padding_of_source_and_target_is_left_out():
    size = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    model, ids = tiny("BartForConditionalGeneration", decoder_start_token_id=2, **size, **heads)
    source, target = torch.tensor([[1] * 6, [1] * 4 + [0] * 2]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    masks = {"attention_mask": source, "decoder_attention_mask": target}
    with analysis.record(model) as recording:
        model(input_ids=ids, decoder_input_ids=ids[:, :3], **masks)
    assert [w.shape[1:] for w in recording.examples[1].weights] == [(4, 4), (2, 2), (2, 4)]
    with analysis.record(torch.nn.ModuleDict({"inner": model})) as wrapped:  # the masks are seen further inside, too
        model(input_ids=ids, decoder_input_ids=ids[:, :3], **masks)
    assert [w.shape for w in wrapped.examples[1].weights] == [w.shape for w in recording.examples[1].weights]


MEMORY = """
import resource, sys, torch, parsimax
from parsimax import analysis

torch.set_num_threads(1)
torch.manual_seed(0)
unit = 1 if sys.platform == "darwin" else 1024
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(parsimax.AttentionCore(12, alpha=1.5) for _ in range(2))

    def forward(self, queries, x):
        for layer in self.layers:
            layer(queries, x, x)

model, (queries, x) = Model(), torch.randn(2, 1, 12, 2000, 32)
queries = 1.2 * queries
with torch.no_grad():
    model(queries, x)
    before = peak()
    with analysis.record(model) as recording:
        model(queries, x)
    after = peak()
table = [float(w.density().mean()) for w in recording.examples[0].weights]
print(len(table), sum(table) / 2, recording.nbytes / 2**20, after - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_a_long_input_needs_little_memory():
    run = fresh.run("-c", MEMORY)
    assert run.returncode == 0, run.stderr
    layers, density, stored, extra = map(float, run.stdout.split())
    assert layers == 2 and 0.008 < density < 0.015
    assert stored < 8
    assert extra < 100, f"{extra:.0f} MB more than without recording"
