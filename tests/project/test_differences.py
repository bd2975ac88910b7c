"""docs/differences.md, row by row: what torch does, and what is done here instead."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_upper_left

import parsimax

INF = math.inf
PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


def nan(x):
    return bool(x.isnan().any())


def test_a_row_with_nothing_allowed():
    x = torch.tensor([[-INF, -INF], [0.0, 0.0]], requires_grad=True)
    assert nan(torch.softmax(x, -1))
    ours = parsimax.softmax(x)
    assert torch.equal(ours, torch.tensor([[0.0, 0.0], [0.5, 0.5]]))
    assert not nan(torch.autograd.grad(ours.square().sum(), x)[0])


def test_a_term_with_coefficient_zero():
    x, target = torch.tensor([[0.0, -INF]]), torch.tensor([[1.0, 0.0]])
    assert nan(F.cross_entropy(x, target))
    assert parsimax.entmax_loss(x, target, 1.0) == 0


def test_a_loss_with_every_class_forbidden():
    x, target = torch.full((1, 3), -INF), torch.tensor([0])
    assert nan(F.cross_entropy(x, target))
    assert parsimax.entmax_loss(x, target, 1.0) == INF


def test_the_third_argument_of_a_loss():
    x, target, weight = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.ones(3)
    F.cross_entropy(x, target, weight)
    with pytest.raises(TypeError, match="third argument is alpha"):
        parsimax.entmax_loss(x, target, weight)


def test_ignore_index_beside_probabilities():
    x, target = torch.randn(2, 3), torch.rand(2, 3)
    with pytest.raises(RuntimeError):
        F.cross_entropy(x, target, ignore_index=1)
    with pytest.raises(ValueError, match="ignore_index goes with class indices only"):
        parsimax.entmax_loss(x, target, ignore_index=1)


def test_a_value_of_weight_zero():
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4)
    value, mask = torch.ones(1, 1, 3, 4), torch.tensor([True, True, False])
    value[..., 2, :] = math.nan
    assert nan(F.scaled_dot_product_attention(q, k, value, mask.expand(2, 3)))
    ours = parsimax.entmax_attention(q, k, value, mask.expand(2, 3), alpha=1.0)
    assert torch.equal(ours, torch.ones_like(ours))


def test_a_float32_mask_of_half_queries():
    q = torch.randn(1, 1, 3, 4, dtype=torch.float16)
    mask = torch.zeros(3, 3)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, q, q, mask.double())
    with pytest.raises(TypeError, match="attn_mask must be boolean"):
        parsimax.entmax_attention(q, q, q, mask.double())
    assert parsimax.entmax_attention(q, q, q, mask).dtype == torch.float16


def test_a_causal_bias_of_other_lengths():
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    F.scaled_dot_product_attention(q, k, k, causal_upper_left(2, 2))
    with pytest.raises(ValueError, match="bias is for 2 queries and 2 keys, the call has 3 and 5"):
        parsimax.entmax_attention(q, k, k, causal_upper_left(2, 2))


def both(**options):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(4, 2, batch_first=True, **options)
    ours = parsimax.MultiheadAttention(4, 2, batch_first=True, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours, torch.randn(2, 3, 4)


def test_a_query_that_may_attend_to_nothing():
    theirs, ours, x = both()
    hidden = torch.tensor([[True, True, True], [False, False, False]])
    assert nan(theirs(x, x, x, key_padding_mask=hidden)[0][0])
    out, weights = ours(x, x, x, key_padding_mask=hidden)
    assert torch.equal(out[0], ours.out_proj.bias.expand(3, 4)) and torch.equal(weights[0], torch.zeros(3, 3))


def test_the_weights_in_training_with_dropout():
    theirs, ours, x = both(dropout=0.5)
    totals = [layer(x, x, x)[1].sum(-1) for layer in (theirs, ours)]
    assert not torch.allclose(totals[0], torch.ones(2, 3))
    torch.testing.assert_close(totals[1], torch.ones(2, 3))


def test_is_causal_without_a_mask():
    theirs, ours, x = both()
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        theirs(x, x, x, is_causal=True)
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x, x, x, is_causal=True), theirs(x, x, x, attn_mask=mask))


def test_is_causal_with_added_keys():
    theirs, ours, x = both(add_zero_attn=True)
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    seen, hidden = (theirs(x, x, x, attn_mask=mask, is_causal=True, need_weights=need)[0] for need in (True, False))
    assert not torch.allclose(seen, hidden)
    for need in (True, False):
        torch.testing.assert_close(ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=need)[0], seen)


def test_masks_of_two_types():
    theirs, ours, x = both()
    added, hidden = torch.zeros(3, 3), torch.tensor([[False, False, True], [False, False, False]])
    with pytest.warns(UserWarning, match="mismatched"):
        expected, _ = theirs(x, x, x, attn_mask=added, key_padding_mask=hidden)
    torch.testing.assert_close(ours(x, x, x, attn_mask=added, key_padding_mask=hidden)[0], expected)


def test_wrong_shapes():
    theirs, ours, x = both()
    with pytest.raises(AssertionError):
        theirs(x, x[..., :2], x)
    with pytest.raises(ValueError, match="must have"):
        ours(x, x[..., :2], x)
    with pytest.raises(AssertionError):
        nn.MultiheadAttention(5, 2)
    with pytest.raises(ValueError, match="divisible by num_heads, got 5 and 2"):
        parsimax.MultiheadAttention(5, 2)


def test_the_fast_path_of_an_encoder_layer():
    """The attribute that torch asks is as torch's, and ours runs all the same."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8) * 4
    with torch.no_grad():
        softmax = layer(x)
        layer = parsimax.replace_attention(layer, alpha=2.0)
        assert layer.self_attn._qkv_same_embed_dim is True
        out = layer(x)
        calls = []
        layer.self_attn.core.observers.append(calls.append)
        layer(x)
    assert len(calls) == 1 and not torch.allclose(out, softmax)
    torch.testing.assert_close(out, layer(x).detach())
    layer.self_attn._forward_pre_hooks.clear()  # whoever does that gets the old answer, not softmax
    assert layer.self_attn._qkv_same_embed_dim is False
    assert parsimax.MultiheadAttention(8, 2, kdim=4)._qkv_same_embed_dim is False


def test_the_page_names_these_tests_and_no_others():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_names_these_tests_and_no_others"}
    assert named == here
