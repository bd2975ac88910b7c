"""Length scaling in transformers models reaches every part of the scores: soft caps and position biases too."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
from parsimax.huggingface import sparsify  # noqa: E402


def gemma():
    config = transformers.Gemma2Config(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=16,
        attn_logit_softcapping=2.0,
    )
    return transformers.Gemma2Model(config)


def t5():
    config = transformers.T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    model = transformers.T5EncoderModel(config)
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        attention.q.weight.zero_()  # only the position bias is left
        attention.relative_attention_bias.weight.normal_(std=2.0)
    return model


@pytest.mark.parametrize("build", [gemma, t5])
def test_the_length_scales_what_is_not_a_product(build):
    torch.manual_seed(0)
    model = build().eval()
    ids = torch.randint(3, 20, (1, 9))
    weights = []
    for scaling in (False, True):
        sparsify(model, alpha=1.5, length_scaling=scaling)
        out = model(ids, output_attentions=True)
        weights.append(out.attentions[0])
    assert (weights[0] - weights[1]).abs().max() > 1e-4
    out.last_hidden_state.square().sum().backward()
    betas = [p for name, p in model.named_parameters() if "raw_beta" in name]
    assert betas and all(beta.grad.abs().sum() > 0 for beta in betas)
    # every row of the scaled weights is entmax of the scores times δ + β log n: more of the mass on the best keys
    assert (weights[1].amax(-1) >= weights[0].amax(-1) - 1e-6).all()
