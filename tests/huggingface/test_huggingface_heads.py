"""``replace_head``: the model says what the head says, trains it, and is saved and loaded with it."""

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    MarianConfig,
    MarianMTModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    Trainer,
    TrainingArguments,
)

import parsimax
from parsimax.huggingface import replace_head, sparsify

KINDS = {"linear": {}, "sigsoftmax": {}, "monotonic": {"units": 20}, "plif": {"knots": 100}}
KINDS |= {"mixture": {"components": 2}, "mixture-plif": {"knots": 50}}
SEQ2SEQ = {"layers": 1, "attention_heads": 2, "ffn_dim": 8}
IDS = torch.randint(40, (3, 11), generator=torch.Generator().manual_seed(0))


def gpt2(**more):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0, **more
    )
    return GPT2LMHeadModel(config).eval()


def bert():
    torch.manual_seed(0)
    own = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertForMaskedLM(BertConfig(vocab_size=40, **own)).eval()


def test_a_head_that_starts_as_the_identity_changes_nothing():
    plain, model = gpt2(), replace_head(gpt2(), "plif")
    assert_close(model(IDS).logits, plain(IDS).logits.log_softmax(-1), rtol=0, atol=1e-5)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(IDS, **options), plain.generate(IDS, **options))
    assert not hasattr(plain.config, "parsimax_head") and model.lm_head.weight is model.transformer.wte.weight


def test_the_model_still_reads_its_config():
    plain = gpt2()
    model = replace_head(GPT2LMHeadModel(plain.config), "plif", knots=100)
    model.config.use_cache, model.config.output_hidden_states = False, True
    out = model(IDS)
    assert out.past_key_values is None and len(out.hidden_states) == 2
    model.resize_token_embeddings(44)
    assert model.transformer.config.vocab_size == 44
    assert plain.config.vocab_size == 40 and plain(IDS).hidden_states is None


@pytest.mark.parametrize("kind", KINDS)
def test_trained_saved_and_loaded(kind, tmp_path):
    model = replace_head(gpt2(), kind, **KINDS[kind]).train()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    losses = []
    for _ in range(20):
        loss = model(IDS, labels=IDS).loss
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.lm_head.parameters())
        optimiser.step()
    assert losses[-1] < losses[0] - 0.2
    hidden = model.eval().transformer(IDS).last_hidden_state
    own = model.lm_head.loss(hidden[:, :-1], IDS[:, 1:])
    assert_close(own, model(IDS, labels=IDS).loss, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    for loader in (GPT2LMHeadModel, AutoModelForCausalLM):
        again, info = loader.from_pretrained(tmp_path, output_loading_info=True)
        assert type(again) is GPT2LMHeadModel and not info["missing_keys"] and not info["unexpected_keys"]
        assert torch.equal(again(IDS).logits, model(IDS).logits)
        assert again.lm_head.weight is again.transformer.wte.weight
        assert again.config.parsimax_head == {"kind": kind, **KINDS[kind]}


@pytest.mark.parametrize("make", [GPT2LMHeadModel, AutoModelForCausalLM.from_config])
def test_a_model_made_from_the_config_has_the_head(make, tmp_path):
    model = make(replace_head(gpt2(), "plif", knots=10).config)
    assert isinstance(model.lm_head, parsimax.PLIFHead) and model.lm_head.weight is model.transformer.wte.weight
    model.eval().save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert isinstance(GPT2Model(model.config), GPT2Model)  # which has no output


@pytest.mark.parametrize("make", [gpt2, lambda: gpt2(tie_word_embeddings=False), bert], ids=["tied", "untied", "bias"])
def test_a_new_vocabulary(make, tmp_path):
    plain, model = make(), replace_head(make(), "plif", knots=100)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    for each in (plain, model):
        torch.manual_seed(1)
        each.resize_token_embeddings(44)
    assert_close(model(IDS).logits, plain(IDS).logits.log_softmax(-1), rtol=0, atol=1e-5)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)


SPARSE = {"sparsemax": {"kind": "linear"}, "rsoftmax": {"kind": "linear", "rate": 0.9}}
SPARSE["entmax15"] = {"kind": "mixture", "components": 2, "tanh": False}


@pytest.mark.parametrize("mapping", SPARSE)
def test_the_loss_of_a_model_with_a_sparse_head_is_that_of_the_head(mapping, tmp_path):
    """Cross-entropy of its logits would be infinite."""
    model = replace_head(gpt2(), mapping=mapping, **SPARSE[mapping])
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    labels = IDS.masked_fill(torch.rand(IDS.shape) < 0.3, -100)
    whole = model.transformer(IDS).last_hidden_state
    hidden, target = whole[:, :-1], labels[:, 1:]
    assert (model(IDS).logits == -torch.inf).any()
    assert_close(model(IDS, labels=labels).loss, model.lm_head.loss(hidden, target))
    total = model.lm_head.loss(hidden, target, reduction="sum")
    for count in (9, torch.tensor(9)):
        assert_close(model(IDS, labels=labels, num_items_in_batch=count).loss, total / 9)
    assert_close(model(IDS, labels=labels, shift_labels=labels).loss, model.lm_head.loss(whole, labels))
    model.save_pretrained(tmp_path)
    again = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert_close(again(IDS, labels=labels).loss, model(IDS, labels=labels).loss)
    replace_head(again, "linear")
    assert_close(again(IDS, labels=IDS).loss, again.lm_head.loss(again.transformer(IDS)[0][:, :-1], IDS[:, 1:]))


def test_trainer_trains_a_sparse_head(tmp_path):
    pytest.importorskip("accelerate", reason="Trainer needs accelerate")
    model = replace_head(gpt2(), "linear", mapping="sparsemax")
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    own = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
    arguments = TrainingArguments(str(tmp_path), max_steps=20, learning_rate=0.05, seed=0, **own)
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in IDS])
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == 20 and losses[-1] < losses[0] - 0.5


def test_a_masked_model_does_not_shift_its_labels():
    torch.manual_seed(0)
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    own = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = ModernBertForMaskedLM(ModernBertConfig(vocab_size=40, **own, **tokens)).eval()
    replace_head(model, "linear", mapping="sparsemax")
    assert_close(model(IDS, labels=IDS).loss, model.decoder.loss(model.head(model.model(IDS)[0]), IDS))


def test_a_model_that_computes_its_own_loss_refuses_labels_with_a_sparse_head():
    model = replace_head(bert(), "linear", mapping="sparsemax")
    with pytest.raises(ValueError, match=r"BertForMaskedLM computes the cross-entropy.*sparsemax.*leave out labels"):
        model(IDS, labels=IDS)
    assert (model(IDS).logits.exp().sum(-1) - 1).abs().max() < 1e-5
    assert replace_head(model, "linear", mapping="softmax")(IDS, labels=IDS).loss.isfinite()


def test_with_sparse_attention_too(tmp_path):
    model = replace_head(sparsify(gpt2(), alpha="learned", alpha_start=1.3), "plif", knots=100)
    with torch.no_grad():
        model.lm_head.function.raw_slopes.normal_()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_bias_and_a_layer_deep_in_the_model(tmp_path):
    plain = bert()
    with torch.no_grad():
        plain.cls.predictions.bias.normal_()
    expected = plain(IDS).logits.log_softmax(-1)
    model = replace_head(plain, "plif", knots=1000)
    assert_close(model(IDS).logits, expected, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = BertForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize(("cls", "config"), [(BartForConditionalGeneration, BartConfig), (MarianMTModel, MarianConfig)])
def test_what_a_model_adds_to_its_logits_goes_into_the_head(cls, config, tmp_path):
    torch.manual_seed(0)
    own = {"vocab_size": 40, "d_model": 8, "max_position_embeddings": 32, "pad_token_id": 0, "eos_token_id": 0}
    own |= {f"{part}_{each}": size for part in ("encoder", "decoder") for each, size in SEQ2SEQ.items()}
    plain = cls(config(decoder_start_token_id=0, **own)).eval()
    plain.final_logits_bias.normal_()
    expected = plain(IDS, decoder_input_ids=IDS).logits.log_softmax(-1)
    model = replace_head(plain, "plif", knots=1000)
    out = model(IDS, decoder_input_ids=IDS, output_hidden_states=True)
    assert_close(out.logits, expected, rtol=0, atol=1e-5)
    hidden = out.decoder_hidden_states[-1]
    assert_close(model.lm_head.loss(hidden, IDS), model(IDS, decoder_input_ids=IDS, labels=IDS).loss)
    model.save_pretrained(tmp_path)
    again, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(again(IDS, decoder_input_ids=IDS).logits, out.logits)
    replace_head(again, "linear").save_pretrained(tmp_path)
    linear = cls.from_pretrained(tmp_path)
    assert_close(linear(IDS, decoder_input_ids=IDS).logits, expected, rtol=0, atol=1e-5)


def test_a_bias_where_there_was_none():
    model = replace_head(gpt2(), "plif", knots=100, bias=True)
    assert model.lm_head.bias.shape == (40,)
    with pytest.raises(ValueError, match="bias=False would take out"):
        replace_head(gpt2(), "plif", bias=False)


def test_what_cannot_be_done_is_said(tmp_path):
    with pytest.raises(ValueError, match="must be a linear layer, found none"):
        replace_head(GPT2Model(gpt2().config))
    with pytest.raises(TypeError, match="must be a transformers PreTrainedModel, got Linear"):
        replace_head(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no head is called 'plof'"):
        replace_head(gpt2(), "plof")
    with pytest.raises(TypeError, match="function must be a number or a name"):
        replace_head(gpt2(), "mixture", function=parsimax.PLIF(10))
    own = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "head_dim": 4}
    capped = Gemma2ForCausalLM(Gemma2Config(num_attention_heads=2, num_key_value_heads=1, **own))
    with pytest.raises(ValueError, match=r"behind the output layer \(final_logit_softcapping=30"):
        replace_head(capped)
    assert isinstance(capped.lm_head, torch.nn.Linear)
    gpt2().save_pretrained(tmp_path)
    config = replace_head(gpt2(), "plif", knots=100).config
    with pytest.raises(ValueError, match=r"does not hold the parameters of the output head.*raw_slopes"):
        GPT2LMHeadModel.from_pretrained(tmp_path, config=config)
