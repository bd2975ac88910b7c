"""A sparsified model that was saved comes back as it was, or says that it cannot."""

import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModel, AutoModelForCausalLM, BertForSequenceClassification, BertModel

import fresh
import parsimax
from hub import MODELS, batch, cores, make, run, seen
from parsimax import schedules
from parsimax.huggingface import desparsify, from_pretrained, sparsify
from parsimax.huggingface.interface import NAME

SAVED = {
    "learned": {"alpha": "learned", "alpha_start": 1.3},
    "some heads": {"alpha": "learned", "heads": {1: [0, 2]}, "interval": (1.0, 3.0)},
    "fixed": {"mapping": "rsoftmax", "rate": 0.7, "layers": [0]},
    "per head": {"alpha": torch.tensor([1.0, 1.2, 1.5, 2.0]), "length_scaling": True},
    "schedule": {"alpha": schedules.Geometric(1.01, 2.0, steps=10, base=1)},
}


@pytest.mark.parametrize(
    ("name", "given"),
    [*((each, "learned") for each in MODELS), *(("T5ForConditionalGeneration", each) for each in [*SAVED][1:])],
)
def test_saved_and_loaded_it_is_the_same(name, given, tmp_path):
    model, inputs = sparsify(make(name), **SAVED[given]), batch(name)
    with torch.no_grad():
        for parameter in (p for each, p in model.named_parameters() if "parsimax" in each):
            parameter += 0.3 * torch.randn_like(parameter)
    parsimax.set_step(model, 7)
    model.save_pretrained(tmp_path)
    again, info = from_pretrained(tmp_path, type(model), output_loading_info=True)
    assert type(again) is type(model) and not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(seen(model, inputs), seen(again, inputs))
    assert [str(core) for core in cores(model).values()] == [str(core) for core in cores(again).values()]
    assert model.config.parsimax == again.config.parsimax
    assert desparsify(again).config._attn_implementation == "sdpa"
    plain = make(name)
    assert torch.equal(seen(again, inputs), seen(plain, inputs))
    assert again._keep_in_fp32_modules_strict == plain._keep_in_fp32_modules_strict
    assert list(again.state_dict()) == list(plain.state_dict())


def test_loading_by_an_auto_class_and_into_another_head(tmp_path):
    model = sparsify(make("LlamaForCausalLM").bfloat16(), alpha="learned", alpha_start=1.2)  # α stays float32
    model.save_pretrained(tmp_path / "llama")
    again = from_pretrained(tmp_path / "llama", AutoModelForCausalLM)
    assert type(again) is type(model) and again.dtype == torch.bfloat16
    for mine, other in zip(cores(model).values(), cores(again).values(), strict=True):
        assert mine.alpha.dtype == torch.float32 and torch.equal(mine.alpha, other.alpha)
    base = sparsify(make("BertModel"), alpha="learned", alpha_start=1.8)
    base.save_pretrained(tmp_path / "bert")
    classifier = from_pretrained(str(tmp_path / "bert"), BertForSequenceClassification, num_labels=3)
    assert [core.alpha.tolist() for core in cores(classifier).values()] == [
        core.alpha.tolist() for core in cores(base).values()
    ]
    assert classifier.config.num_labels == 3
    assert classifier(**batch("BertModel"), labels=torch.tensor([0, 2])).loss.isfinite()


def learned(name="BertModel"):
    model = sparsify(make(name), alpha="learned", alpha_start=1.3)
    with torch.no_grad():
        for parameter in (p for each, p in model.named_parameters() if "learned_alpha" in each):
            parameter += 0.5 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("load", [AutoModel.from_pretrained, BertModel.from_pretrained])
def test_the_plain_from_pretrained_brings_the_mapping_back(load, tmp_path):
    model = learned()
    model.save_pretrained(tmp_path)
    again, info = load(tmp_path, output_loading_info=True)
    assert type(again) is BertModel and not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(seen(model, batch("BertModel")), seen(again, batch("BertModel")))
    half = load(tmp_path, dtype=torch.bfloat16)
    for mine, other in zip(cores(model).values(), cores(half).values(), strict=True):
        assert other.alpha.dtype == torch.float32 and torch.equal(mine.alpha, other.alpha)


@pytest.mark.parametrize("load", [AutoModel.from_pretrained, BertModel.from_pretrained])
@pytest.mark.parametrize("asked", ["sdpa", "eager"])
def test_no_other_implementation_makes_softmax_of_it(load, asked, tmp_path):
    learned().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"saved with entmax.*attn_implementation='{asked}' would compute softmax"):
        load(tmp_path, attn_implementation=asked)


@pytest.mark.parametrize("load", [AutoModel.from_pretrained, BertModel.from_pretrained])
def test_the_name_alone_puts_entmax_into_any_saved_model(load, tmp_path):
    model = make("BertModel")
    model.save_pretrained(tmp_path)
    again = load(tmp_path, attn_implementation="parsimax")
    expected = sparsify(model, alpha=1.5)
    assert torch.equal(seen(expected, batch("BertModel")), seen(again, batch("BertModel")))
    assert again.config.parsimax == expected.config.parsimax
    assert not cores(load(tmp_path)) and load(tmp_path).config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_alpha_stays_in_float32_when_the_model_goes_to_half_precision(kind):
    model = learned()
    before = {name: core.alpha.clone() for name, core in cores(model).items()}
    model.to(kind)
    assert model.dtype == kind and {p.dtype for n, p in model.named_parameters() if "learned_alpha" in n} == {
        torch.float32
    }
    for name, core in cores(model).items():
        assert torch.equal(core.alpha, before[name]) and core.learned_alpha.raw.requires_grad
    model(**batch("BertModel"))[0].float().square().mean().backward()
    assert all(core.learned_alpha.raw.grad.dtype == torch.float32 for core in cores(model).values())
    assert next(iter(cores(model.double()).values())).alpha.dtype == torch.float64


def test_a_sentence_transformer_of_the_folder_is_sparse(tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    model = learned()
    model.save_pretrained(tmp_path)
    words = {**{f"w{n}": n for n in range(4, 40)}, "[PAD]": 0, "[UNK]": 1}
    raw = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")
    tokens.save_pretrained(tmp_path)
    made = library.SentenceTransformer(str(tmp_path), device="cpu")
    assert [core.alpha.tolist() for core in cores(made).values()] == [c.alpha.tolist() for c in cores(model).values()]


def test_a_pipeline_of_the_folder_is_sparse(tmp_path):
    model = learned("LlamaForCausalLM")
    model.save_pretrained(tmp_path)
    words = {**{f"w{n}": n for n in range(4, 40)}, "<pad>": 0, "</s>": 1, "<unk>": 2, "<s>": 3}
    raw = Tokenizer(WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **special).save_pretrained(tmp_path)
    made = transformers.pipeline("text-generation", str(tmp_path))
    assert [core.alpha.tolist() for core in cores(made.model).values()] == [
        core.alpha.tolist() for core in cores(model).values()
    ]
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(made.model(ids).logits, model(ids).logits)


def test_importing_parsimax_alone_is_enough(tmp_path):
    model = learned()
    model.save_pretrained(tmp_path)
    code = """
import sys
{first}
{second}
assert "parsimax.huggingface" not in sys.modules
model = transformers.AutoModel.from_pretrained({path!r})
print(model.encoder.layer[1].attention.self.parsimax.alpha.tolist())
"""
    imports = ["import parsimax", "import transformers"]
    for first, second in (imports, ["import transformers.modeling_utils", "import parsimax"]):
        run = fresh.run("-c", code.format(first=first, second=second, path=str(tmp_path)))
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == str(model.encoder.layer[1].attention.self.parsimax.alpha.tolist())


def test_without_its_weights_or_without_parsimax_it_is_refused(tmp_path, monkeypatch):
    learned().save_pretrained(tmp_path)
    plain = AutoModel.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    with pytest.raises(RuntimeError, match=r"no mapping.*parsimax\.huggingface\.sparsify"):
        plain(**batch("BertModel"))
    with pytest.raises(ValueError, match=r"learned parameters.*not in the model; load it by from_pretrained"):
        sparsify(plain)
    assert run(sparsify(plain, alpha="learned"), batch("BertModel")).attentions[0].eq(0).any()
    monkeypatch.delitem(transformers.AttentionInterface._global_mapping, NAME)  # as if parsimax were not imported
    with pytest.raises(ValueError, match=r'attn_implementation="parsimax"` is not supported'):
        AutoModel.from_config(transformers.AutoConfig.from_pretrained(tmp_path))


def test_a_fixed_mapping_comes_back_by_sparsify_without_arguments(tmp_path):
    model = sparsify(make("EncoderDecoderModel"), "sparsemax", layers="crossattention")
    model.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    again = transformers.EncoderDecoderModel(config).eval()
    again.load_state_dict(model.state_dict())
    sparsify(again)
    assert torch.equal(seen(model, batch("EncoderDecoderModel")), seen(again, batch("EncoderDecoderModel")))


def test_what_loading_cannot_do_it_says(tmp_path):
    make("BertModel").save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="says nothing of parsimax"):
        from_pretrained(tmp_path / "plain", BertModel)
    sparsify(make("BertModel"), alpha=lambda step: 1.5).save_pretrained(tmp_path / "function")
    with pytest.raises(ValueError, match=r"alpha=<function.*no file can hold"):
        from_pretrained(tmp_path / "function", BertModel)
    sparsify(make("BertModel"), alpha=1.5).save_pretrained(tmp_path / "lost")
    file = tmp_path / "lost" / "config.json"
    config = json.loads(file.read_text())
    config["parsimax"]["alpha"] = "learned"
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"does not hold the learned parameters.*learned_alpha\.raw"):
        from_pretrained(tmp_path / "lost", BertModel)
