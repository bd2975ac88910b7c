"""What parsimax takes from ``transformers`` beside its public face, by name: a release that moves one fails here."""

import ast
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, BertConfig, BertModel, PreTrainedModel

import parsimax.huggingface
from hub import SMALL, batch, make
from parsimax.huggingface import layers, private

FOLDER = Path(parsimax.huggingface.__file__).parent


def outer_keywords():
    assert {"output_attentions", "num_items_in_batch", "position_ids", "is_causal"} <= private.outer_keywords()


def collects_attentions():
    seen = []

    def attend(module, query, key, value, mask, **kwargs):
        seen.append(private.collects_attentions())
        return torch.zeros_like(query).transpose(1, 2), query @ query.mT

    AttentionInterface.register("canary", attend)
    AttentionMaskInterface.register("canary", private.boolean_mask)
    model = make("LlamaForCausalLM", "canary")
    assert not private.collects_attentions()
    model(**batch("LlamaForCausalLM"))
    model(**batch("LlamaForCausalLM"), output_attentions=True)
    assert seen == [False, False, True, True]


def _mask(function, padded):
    """The causal mask that a model makes by this function, for five tokens; two of the second row may be padding."""
    AttentionMaskInterface.register("canary", function)
    config = transformers.LlamaConfig(**SMALL)
    config._attn_implementation = "canary"
    given = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]) if padded else None
    return transformers.masking_utils.create_causal_mask(
        config=config, inputs_embeds=torch.zeros(2, 5, 32), attention_mask=given, past_key_values=None
    )


def boolean_mask():
    assert _mask(private.boolean_mask, padded=False) is None
    mask = _mask(private.boolean_mask, padded=True)
    assert mask.dtype == torch.bool and mask.shape == (2, 1, 5, 5)
    assert torch.equal(mask[0, 0], torch.ones(5, 5, dtype=torch.bool).tril())


def boolean_mask_written_out():
    mask = _mask(private.boolean_mask_written_out, padded=False)
    assert mask.dtype == torch.bool and torch.equal(mask[0, 0], torch.ones(5, 5, dtype=torch.bool).tril())


def added_mask():
    for padded in (False, True):
        mask = _mask(private.added_mask, padded)
        assert mask.dtype == torch.float32
        assert torch.equal(mask[0, 0] == 0, torch.ones(5, 5, dtype=torch.bool).tril())
        assert mask.min() == torch.finfo(torch.float32).min


def _composite():
    return transformers.EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**SMALL), BertConfig(**SMALL))


def implementation():
    assert private.implementation(make("BertModel", "eager").config) == "eager"
    assert private.implementation(make("BertModel").config) == "sdpa"


def set_implementation():
    config = _composite()
    before = [private.implementation(each) for each in (config.encoder, config.decoder)]
    private.set_implementation(config, "canary")
    assert private.implementation(config) == "canary"
    assert [private.implementation(each) for each in (config.encoder, config.decoder)] == before


def without_implementation():
    config = _composite()
    config._attn_implementation = "eager"
    assert private.implementation(config.encoder) == "eager"
    bare = private.without_implementation(config)
    assert [private.implementation(each) for each in (bare, bare.encoder, bare.decoder)] == [None] * 3
    assert private.implementation(config) == "eager"


def takes_boolean_masks():
    assert private.takes_boolean_masks(make("BertModel"))
    config = transformers.GitVisionConfig(hidden_size=24, num_hidden_layers=1, image_size=16, patch_size=8)
    assert not private.takes_boolean_masks(transformers.GitVisionModel(config))


def keep_float32():
    class Kept(BertModel):
        def __init__(self, config):
            super().__init__(config)
            private.keep_float32(self, "pooler", True)

    state = make("BertModel").state_dict()
    model = Kept.from_pretrained(None, config=BertConfig(**SMALL), state_dict=state, dtype=torch.bfloat16)
    assert model.pooler.dense.weight.dtype == torch.float32 and model.dtype == torch.bfloat16
    private.keep_float32(model, "pooler", False)
    assert "pooler" not in model._keep_in_fp32_modules_strict


NAMES = [name for name, each in vars(private).items() if getattr(each, "__module__", "") == private.__name__]


@pytest.mark.parametrize("name", NAMES)
def test_a_private_name_still_means_what_it_did(name):
    assert name in globals(), f"private.{name} has no canary in this file"
    globals()[name]()


def test_modules_still_ask_the_interface_in_their_forward():
    """Which modules are attention is read from what ``forward`` asks for."""
    for name, kind in (("BertModel", "BertSelfAttention"), ("LlamaForCausalLM", "LlamaAttention")):
        found, others = layers.find(make(name), "here")
        assert {type(module).__name__ for module in found.values()} == {kind} and not others


def test_from_pretrained_is_still_one_method_of_the_base_class():
    assert hasattr(PreTrainedModel.from_pretrained.__func__, "parsimax")
    assert "from_pretrained" not in vars(BertModel)


def test_making_a_model_still_ends_with_post_init(monkeypatch):
    seen = []
    monkeypatch.setattr(PreTrainedModel, "post_init", lambda self: seen.append(type(self).__name__))
    make("LlamaForCausalLM")
    assert seen == ["LlamaModel", "LlamaForCausalLM"]


def test_no_other_file_touches_a_private_name_of_transformers():
    """Attributes that begin with _ and do not belong to self or to a class of ours, and imports from inside."""
    allowed = {"_forward_hooks", "_forward_pre_hooks", "_modules", "_given"}  # of torch, and of our own cores
    for file in FOLDER.glob("*.py"):
        if file.name == "private.py":
            continue
        tree = ast.parse(file.read_text())
        defined = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                assert node.attr in allowed | defined, f"{file.name}:{node.lineno} touches {node.attr}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers."):
                raise AssertionError(f"{file.name}:{node.lineno} imports from {node.module}")


def _is_self(node):
    return isinstance(node.value, ast.Name) and node.value.id == "self"
