"""Models that ask for more than scores and a mask: sinks, masks read as numbers, towers off the interface, keywords."""

import warnings

import pytest
import torch
import transformers

import parsimax
from hub import CAUSAL, PAIR, SMALL, cores, run
from parsimax.huggingface import sparsify
from parsimax.huggingface.interface import ADDED, MASKED, NAME, attend

VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
}


def rough(model, amount=0.2):
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += amount * torch.randn_like(parameter)
    return model.double().eval()


def text(side="left"):
    ids = torch.randint(4, 40, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    return {"input_ids": ids, "attention_mask": mask}


def gpt_oss():
    options = dict(**CAUSAL, num_local_experts=2, num_experts_per_tok=1, sliding_window=4)
    config = transformers.GptOssConfig(**options)
    return rough(transformers.GptOssForCausalLM._from_config(config, experts_implementation="eager"))


def sink_truth(mapping):
    def attend(module, query, key, value, mask, scaling, **_):
        key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
        scores = (query @ key.mT * scaling).masked_fill(mask < -1e9, float("-inf"))
        sinks = module.sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = mapping(torch.cat([scores, sinks], -1))[..., :-1]
        return (weights @ value).transpose(1, 2).contiguous(), weights

    transformers.AttentionInterface.register("truth", attend)
    transformers.AttentionMaskInterface.register("truth", transformers.masking_utils.eager_mask)
    return "truth"


@pytest.mark.parametrize(
    ("given", "mapping"),
    [
        ({"mapping": "softmax"}, parsimax.softmax),
        ({"alpha": 1.5}, parsimax.entmax15),
        ({"mapping": "rsoftmax", "rate": 0.5}, lambda scores: parsimax.rsoftmax(scores, 0.5)),
    ],
)
def test_sinks_are_one_more_score_in_the_row(given, mapping):
    model, inputs = gpt_oss(), text("right")
    own = run(model, inputs)
    model.config._attn_implementation = sink_truth(mapping)
    expected = run(model, inputs)
    model.config._attn_implementation = "eager"
    got = run(sparsify(model, **given), inputs)
    tokens = inputs["attention_mask"].bool()
    assert torch.allclose(got.logits[tokens], expected.logits[tokens], rtol=1e-9, atol=1e-9)
    assert got.attentions[0].shape == expected.attentions[0].shape
    for mine, truth in zip(got.attentions, expected.attentions, strict=True):
        assert torch.allclose(mine[0], truth[0], atol=1e-9)
    with torch.no_grad():
        assert torch.allclose(model(**inputs).logits[tokens], got.logits[tokens], atol=1e-9)  # no weights kept
    assert (got.attentions[0][0].sum(-1) < 0.999).any()  # what the sink took is gone
    if given.get("mapping") == "softmax":
        assert torch.allclose(got.logits[tokens], own.logits[tokens], atol=1e-9)


def test_sinks_are_trained_through_entmax():
    layer = sparsify(gpt_oss(), alpha=1.5).model.layers[0].self_attn
    torch.manual_seed(0)
    query, key, value = (2 * torch.randn(1, heads, 5, 8).double().requires_grad_() for heads in (4, 2, 2))

    def context(*tensors):
        return attend(layer, *tensors[:3], None, scaling=0.5, s_aux=tensors[3])[0]

    assert torch.autograd.gradcheck(context, (query, key, value, torch.randn(4).double().requires_grad_()))


@pytest.mark.parametrize("name", ["git", "nllb-moe"])
def test_who_reads_the_mask_as_numbers_gets_numbers(name):
    """GIT adds the mask to scores of its own; the router of NLLB-MoE reads it inverted."""
    inputs = text()
    if name == "git":
        config = transformers.GitConfig(**SMALL, vision_config=VISION, bos_token_id=1, eos_token_id=2)
        model = rough(transformers.GitModel(config))
        inputs["pixel_values"] = torch.randn(2, 3, 16, 16).double()
    else:
        more = {"num_experts": 2, "encoder_sparse_step": 1, "decoder_sparse_step": 1, "expert_capacity": 4}
        model = rough(transformers.NllbMoeModel(transformers.NllbMoeConfig(**PAIR, **more)))
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :5]
    with torch.no_grad():
        own = model(**inputs)[0]
        got = sparsify(model, "softmax", layers="encoder")(**inputs)[0]
    assert torch.allclose(got, own, atol=1e-5)  # eager functions compute softmax in float32
    assert {core.reached for core in cores(model).values()} == {True}
    if name == "git":
        assert model.config._attn_implementation == "eager" and model.config.vision_config._attn_implementation == ADDED
    else:
        assert model.config._attn_implementation == ADDED


def kosmos():
    sizes = {"layers": 1, "embed_dim": 32, "attention_heads": 4, "ffn_dim": 48}
    words = dict(**sizes, vocab_size=40, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    config = transformers.Kosmos2_5Config(
        text_config=words,
        vision_config={**VISION, "patch_embed_hidden_size": 12, "max_num_patches": 16, "head_dim": 8},
        latent_query_num=4,
    )
    return transformers.Kosmos2_5Model(config)


def test_a_tower_that_never_asks_the_interface_is_named():
    """``getattr(ALL_ATTENTION_FUNCTIONS, …)`` finds no registered name: the tower would run softmax unnoticed."""
    model = kosmos()
    with pytest.warns(UserWarning, match=r"Kosmos2_5VisionAttention \(vision_model\S+\) keep their own attention"):
        sparsify(model)
    assert cores(model) and not any("vision_model" in name for name in cores(model))


def test_attention_of_another_name_is_named_too():
    """Chameleon's image tokenizer has attention blocks of its own."""
    blocks = {"base_channels": 32, "num_res_blocks": 1, "channel_multiplier": [1, 1], "resolution": 8, "embed_dim": 8}
    tokens = {**blocks, "latent_channels": 8, "num_embeddings": 8, "attn_resolutions": [4], "double_latent": False}
    config = transformers.ChameleonConfig(**CAUSAL, vq_config=tokens, vocabulary_map={"<image>": 5})
    model = transformers.ChameleonModel(config)
    with pytest.warns(UserWarning, match=r"ChameleonVQVAEEncoderAttnBlock \(vqmodel\S+\) keep their own attention"):
        sparsify(model)
    assert cores(model) and not any("vqmodel" in name for name in cores(model))


def test_a_layer_that_ran_without_its_core_says_so():
    model = sparsify(transformers.BertModel(transformers.BertConfig(**SMALL)).eval())
    model.config._attn_implementation = "sdpa"  # as code that switches the implementation behind our back does
    with pytest.warns(UserWarning, match=r"encoder\.layer\.\d\.attention\.self \(BertSelfAttention\) ran without its"):
        model(**text())
    fine = sparsify(transformers.BertModel(transformers.BertConfig(**SMALL)).eval())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine(**text())
    assert not any(module._forward_hooks for module in fine.modules())  # one pass tells


def llava(**more):
    words = transformers.LlamaConfig(**CAUSAL)
    vision = transformers.CLIPVisionConfig(**VISION)
    return transformers.LlavaConfig(text_config=words, vision_config=vision, image_token_index=39, **more)


def test_what_a_model_hands_down_does_not_stop_it():
    """``labels``, ``pixel_values`` and the like reach attention in models that hand on all they are called with."""
    model = transformers.LlavaForConditionalGeneration(llava(vision_feature_layer=-1)).eval()
    sparsify(model, alpha=1.5)
    inputs = text()
    inputs["input_ids"].clamp_(max=38)[:, 3:7] = 39
    inputs["attention_mask"][:] = 1
    extra = {"pixel_values": torch.randn(2, 3, 16, 16), "vision_feature_select_strategy": "default"}
    assert model(**inputs, **extra, labels=inputs["input_ids"]).loss.isfinite()
    assert {core.reached for core in cores(model).values()} >= {True}
    bert = sparsify(transformers.BertModel(transformers.BertConfig(**SMALL)).eval())
    plain = bert(**text())[0]
    assert torch.equal(bert(**text(), mm_token_type_ids=torch.ones(2, 9), image_position_ids=1)[0], plain)


def test_a_tower_is_chosen_by_its_name():
    model = transformers.LlavaForConditionalGeneration(llava())
    sparsify(model, alpha=1.5, layers="language_model")
    chosen = [name for name, core in cores(model).items() if core.alpha[0] > 1]
    assert len(chosen) == 2 and all("language_model" in name for name in chosen)
    assert {model.config._attn_implementation, model.config.text_config._attn_implementation} <= {NAME, MASKED}
