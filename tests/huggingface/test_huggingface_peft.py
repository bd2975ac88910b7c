"""PEFT: the mapping goes into the model under the adapters, α trains, and the adapter records both."""

import json
import warnings

import pytest
import torch
from transformers import LlamaForCausalLM

from hub import batch, cores, make, seen
from parsimax.huggingface import desparsify, from_pretrained, sparsify

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peft = pytest.importorskip("peft", reason="PEFT is not installed")

INPUTS = batch("LlamaForCausalLM")


@pytest.fixture
def base(tmp_path):
    make("LlamaForCausalLM").save_pretrained(tmp_path / "base")
    return LlamaForCausalLM.from_pretrained(tmp_path / "base")


def adapted(base):
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    return peft.get_peft_model(base, config).eval()


def test_a_peft_model_is_sparsified_and_trains_alpha(base):
    model = adapted(base)
    before = seen(model, INPUTS)
    assert sparsify(model, alpha="learned") is model and not torch.allclose(seen(model, INPUTS), before, atol=1e-3)
    model.train()
    model(**INPUTS)[0].square().mean().backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert {kind for kind in ("lora_", "learned_alpha") for name in trained if kind in name} == {
        "lora_",
        "learned_alpha",
    }
    assert not any("base_layer" in name for name in trained)
    assert torch.equal(seen(desparsify(model).eval(), INPUTS), before)


@pytest.mark.parametrize("order", ["sparsify first", "adapter first"])
def test_the_adapter_records_the_mapping_and_what_was_learned(base, order, tmp_path):
    given = {"alpha": "learned", "alpha_start": 1.3, "length_scaling": True}
    model = sparsify(adapted(sparsify(base, **given) if order == "sparsify first" else base), **given)
    with torch.no_grad():
        for parameter in (p for name, p in model.named_parameters() if "parsimax" in name):
            parameter += 0.4 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "adapter")
    entry = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["parsimax"]
    assert entry["mapping"] == "entmax" and entry["alpha"] == "learned"
    again = from_pretrained(tmp_path / "adapter", LlamaForCausalLM)
    assert isinstance(again, peft.PeftModel)
    assert [str(core) for core in cores(again).values()] == [str(core) for core in cores(model).values()]
    assert torch.equal(seen(again, INPUTS), seen(model, INPUTS))


def test_a_plain_load_of_such_an_adapter_is_not_silent(base, tmp_path):
    sparsify(adapted(base), "sparsemax").save_pretrained(tmp_path / "adapter")
    plain = LlamaForCausalLM.from_pretrained(tmp_path / "base")
    with pytest.warns(UserWarning, match=r"Unexpected keyword arguments \['parsimax'\]"):
        peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
