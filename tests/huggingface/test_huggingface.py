"""Sparsified ``transformers`` models: right weights under every mask, in training, generation and after loading."""

import copy
import math

import pytest
import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import parsimax
from hub import (
    DECODERS,
    ENCODERS,
    MODELS,
    PAIRS,
    SMALL,
    WINDOWS,
    all_weights,
    batch,
    cores,
    entmax_per_head,
    make,
    make_config,
    register_truth,
    run,
    seen,
)
from parsimax import schedules
from parsimax.huggingface import desparsify, sparsify
from parsimax.huggingface.interface import MASKED, NAME

ALL = {**MODELS, **WINDOWS}


MAPPINGS = {
    "alpha 1.5": ({"alpha": 1.5}, parsimax.entmax15),
    "sparsemax": ({"mapping": "sparsemax"}, parsimax.sparsemax),
    "alpha per head": ({"alpha": torch.tensor([1.0, 1.25, 1.5, 2.0])}, entmax_per_head([1.0, 1.25, 1.5, 2.0])),
    "rsoftmax": ({"mapping": "rsoftmax", "rate": 0.5}, lambda scores: parsimax.rsoftmax(scores, 0.5)),
    "softmax": ({"mapping": "softmax"}, parsimax.softmax),
}


@pytest.mark.parametrize(("given", "side"), [("alpha 1.5", "right"), *((each, "left") for each in MAPPINGS)])
@pytest.mark.parametrize("name", ALL)
def test_equals_explicit_attention(name, given, side):
    arguments, mapping = MAPPINGS[given]
    inputs = batch(name, side)
    expected = run(make(name, register_truth(mapping)).double(), inputs)
    model = sparsify(make(name).double(), **arguments)
    got = run(model, inputs)
    tokens = ... if name in PAIRS else inputs["attention_mask"].bool()
    assert torch.allclose(got[0][tokens], expected[0][tokens], rtol=1e-8, atol=1e-8)
    assert torch.allclose(seen(model, inputs), expected[0][tokens], rtol=1e-8, atol=1e-8)  # where no weights are kept
    assert len(all_weights(got)) == len(all_weights(expected)) == len(cores(model))
    for mine, truth in zip(all_weights(got), all_weights(expected), strict=True):
        assert torch.allclose(mine, truth, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_in_float32_it_is_as_near_as_the_rest_of_the_model(name):
    inputs = batch(name)
    truth = make(name, register_truth(parsimax.entmax15))
    exact, expected, model = run(copy.deepcopy(truth).double(), inputs), run(truth, inputs), sparsify(make(name))
    got, tokens = run(model, inputs), ... if name in PAIRS else inputs["attention_mask"].bool()
    for mine in (got[0][tokens], seen(model, inputs)):
        rounding = (expected[0] - exact[0])[tokens].abs().max()
        assert (mine - exact[0][tokens]).abs().max() < max(4 * rounding, 1e-5)
    first = all_weights(got)[0], all_weights(expected)[0]
    assert (first[0] - first[1]).abs().max() < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_zeros_are_exact_and_padding_gets_nothing(name):
    inputs = batch(name)
    model = sparsify(make(name), alpha=1.5)
    output = run(model, inputs)
    padding = ~inputs["attention_mask"].bool()
    zeros = allowed = 0
    for kind in ("attentions", "encoder_attentions", "cross_attentions"):
        for weights in getattr(output, kind, None) or ():
            assert weights[padding[:, None, None, :].expand_as(weights)].eq(0).all()
            real = weights[0]
            keep = torch.ones_like(real, dtype=torch.bool)
            keep = keep.tril() if name in DECODERS else keep
            zeros, allowed = zeros + real[keep].eq(0).sum(), allowed + keep.sum()
            assert torch.allclose(real.sum(-1), torch.ones(()), atol=1e-5)
            if name in DECODERS:  # nothing looks ahead; padding on the left has nothing to look at
                assert weights.triu(1).eq(0).all() and weights[1, :, :3].eq(0).all()
    for weights in getattr(output, "decoder_attentions", None) or ():
        assert weights.triu(1).eq(0).all()
    assert 0.2 < zeros / allowed < 0.95
    other = {**inputs, "input_ids": inputs["input_ids"].masked_fill(padding, 7)}
    assert torch.equal(seen(model, inputs), seen(model, other))


@pytest.mark.parametrize("name", ENCODERS)
def test_an_example_of_nothing_but_padding_is_finite(name):
    inputs = batch(name)
    inputs["attention_mask"][1] = 0
    output = run(sparsify(make(name), alpha=1.5), inputs)
    assert all(weights[1].eq(0).all() for weights in output.attentions)
    assert output[0].isfinite().all()


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_a_mask_of_four_dimensions_is_taken_as_it_is(kind):
    model = sparsify(make("LlamaForCausalLM"), alpha=1.5)
    inputs = batch("LlamaForCausalLM")
    allowed = torch.ones(9, 9, dtype=torch.bool).tril() & inputs["attention_mask"].bool()[:, None, None, :]
    mask = allowed if kind == torch.bool else torch.where(allowed, 0.0, torch.finfo(kind).min)
    places = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    expected = run(model, inputs, position_ids=places)
    got = run(model, {"input_ids": inputs["input_ids"], "attention_mask": mask}, position_ids=places)
    for mine, other in zip(got.attentions, expected.attentions, strict=True):
        assert torch.allclose(mine, other, atol=1e-6) and torch.equal(mine == 0, other == 0)


def test_modules_that_do_not_say_whether_they_are_causal_get_their_mask_written_out():
    inputs = {"input_ids": batch("LlamaForCausalLM")["input_ids"]}
    expected = run(sparsify(make("LlamaForCausalLM"), alpha=1.5), inputs)
    model = make("LlamaForCausalLM")
    for layer in model.model.layers:
        del layer.self_attn.is_causal
    assert sparsify(model, alpha=1.5).config._attn_implementation == MASKED
    assert torch.allclose(run(model, inputs).logits, expected.logits, atol=1e-6)
    assert run(model, inputs).attentions[0].triu(1).eq(0).all()
    assert torch.allclose(run(model, inputs).logits, model(**inputs).logits, atol=1e-5)


def test_half_precision():
    inputs = batch("LlamaForCausalLM")
    model = make("LlamaForCausalLM").bfloat16()
    expected = run(copy.deepcopy(model).float(), inputs)
    got = run(sparsify(model, alpha=1.0), inputs)
    assert got.logits.dtype == torch.bfloat16 and got.attentions[0].dtype == torch.bfloat16
    assert (got.logits.float() - expected.logits)[0].abs().max() < 0.05 * expected.logits.abs().max()


@pytest.mark.parametrize("name", MODELS)
def test_alpha_is_a_parameter_that_trains(name):
    model = sparsify(make(name), alpha="learned").train()
    names = [each for each, _ in model.named_parameters() if "alpha" in each]
    assert names == [f"{core}.learned_alpha.raw" for core in cores(model)]
    assert set(names) <= set(model.state_dict())
    optimiser = torch.optim.SGD([model.get_parameter(each) for each in names], lr=0.1)
    model(**batch(name))[0].square().mean().backward()
    gradients = [model.get_parameter(each).grad for each in names]
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)
    optimiser.step()
    assert all((core.alpha != 1.5).any() for core in cores(model).values())


def test_the_gradient_of_alpha_is_the_slope():
    model = sparsify(make("BartForConditionalGeneration").double(), alpha="learned")
    inputs = batch("BartForConditionalGeneration")
    raw = next(iter(cores(model).values())).double().learned_alpha.raw

    def loss():
        return model(**inputs)[0].sin().mean()

    loss().backward()
    for head in range(4):
        ends = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                raw[head] += step
                ends.append(loss().item())
                raw[head] -= step
        assert math.isclose((ends[0] - ends[1]) / 2e-5, raw.grad[head].item(), rel_tol=1e-4, abs_tol=1e-9)


@pytest.mark.parametrize("name", ["BertModel", "LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_gradient_checkpointing_changes_no_gradient(name):
    inputs, gradients = batch(name), []
    for checkpointing in (False, True):
        model = sparsify(make(name), alpha="learned").train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if hasattr(model.config, "dropout_rate"):
            for module in model.modules():
                module.__dict__.update({"dropout": 0.0} if isinstance(module.__dict__.get("dropout"), float) else {})
        if checkpointing:
            kinds = ("activation", "gradient")  # the second is its name before transformers 5.23
            names = [f"{kind}_checkpointing_enable" for kind in kinds]
            next(getattr(model, name) for name in names if hasattr(model, name))({"use_reentrant": False})
        model(**inputs, use_cache=False)[0].square().mean().backward()
        gradients.append({each: p.grad for each, p in model.named_parameters() if p.grad is not None})
    plain, checkpointed = gradients
    assert plain.keys() == checkpointed.keys() and any("alpha" in each for each in plain)
    for each in plain:
        assert torch.allclose(plain[each], checkpointed[each], rtol=1e-4, atol=1e-6), each


DROPOUT = {
    "BertModel": {"attention_probs_dropout_prob": 0.3},
    "DistilBertModel": {"attention_dropout": 0.3},
    "GPT2LMHeadModel": {"attn_pdrop": 0.3},
    "LlamaForCausalLM": {"attention_dropout": 0.3},
    "BartForConditionalGeneration": {"attention_dropout": 0.3},
    "T5ForConditionalGeneration": {"dropout_rate": 0.3},
}


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_is_that_of_the_model(name):
    model, inputs, used = sparsify(make(name, **DROPOUT[name])), batch(name), []
    for core in cores(model).values():
        core.register_forward_pre_hook(lambda core, args, kwargs: used.append(kwargs["dropout_p"]), with_kwargs=True)
    assert torch.equal(model(**inputs)[0], model(**inputs)[0]) and set(used) == {0.0}
    used.clear()
    model.train()
    assert not torch.allclose(model(**inputs)[0], model(**inputs)[0]) and set(used) == {0.3}
    weights = all_weights(model(**inputs, output_attentions=True))[0]
    assert torch.allclose(weights[0].sum(-1), torch.ones(()), atol=1e-5)  # those before dropout


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_desparsify_takes_everything_back(name, implementation):
    model, inputs = make(name, implementation), batch(name)
    before = seen(model, inputs)
    facts = {
        "class": type(model),
        "config": model.config.to_dict(),
        "state": list(model.state_dict()),
        "attributes": [(each, sorted(module.__dict__)) for each, module in model.named_modules()],
        "implementations": [
            module.config._attn_implementation for module in model.modules() if hasattr(module, "config")
        ],
    }
    sparsify(model, alpha="learned", length_scaling=True)
    assert not torch.allclose(seen(model, inputs), before, atol=1e-3)
    assert desparsify(model) is model
    assert torch.equal(seen(model, inputs), before)
    assert facts == {
        "class": type(model),
        "config": model.config.to_dict(),
        "state": list(model.state_dict()),
        "attributes": [(each, sorted(module.__dict__)) for each, module in model.named_modules()],
        "implementations": [
            module.config._attn_implementation for module in model.modules() if hasattr(module, "config")
        ],
    }
    assert desparsify(model) is model  # a second time does nothing


def test_a_second_time_replaces_the_first():
    inputs = batch("BertModel")
    once = sparsify(make("BertModel", "eager"), "sparsemax")
    twice = sparsify(sparsify(make("BertModel", "eager"), alpha="learned", layers=[0]), "sparsemax")
    assert torch.equal(seen(once, inputs), seen(twice, inputs))
    assert list(once.state_dict()) == list(twice.state_dict()) and once.config.parsimax == twice.config.parsimax
    with pytest.raises(ValueError, match="no attention layer matches"):
        sparsify(twice, alpha=1.5, layers=[9])
    assert torch.equal(seen(once, inputs), seen(twice, inputs))  # an error leaves the model as it was
    assert sparsify(twice) is twice and torch.equal(seen(once, inputs), seen(twice, inputs))
    assert desparsify(twice).config._attn_implementation == "eager"


def test_other_models_of_the_same_config_are_left_alone():
    config = make_config("GPT2LMHeadModel")
    first, second = transformers.GPT2LMHeadModel(config).eval(), transformers.GPT2LMHeadModel(config).eval()
    inputs = batch("GPT2LMHeadModel")
    before = seen(second, inputs)
    sparsify(first, alpha=2.0)
    assert torch.equal(seen(second, inputs), before)
    assert not hasattr(config, "parsimax") and config._attn_implementation == "sdpa"
    assert all(module.config is first.config for module in first.modules() if hasattr(module, "config"))


def test_a_copy_is_sparse_too():
    model = sparsify(make("BertModel"), alpha="learned", alpha_start=1.9)
    twin = copy.deepcopy(model)
    inputs = batch("BertModel")
    assert torch.equal(seen(model, inputs), seen(twin, inputs))
    assert cores(twin).keys() == cores(model).keys() and not set(cores(twin).values()) & set(cores(model).values())


def test_layers_are_numbers_or_parts_of_names():
    def sparse_ones(name, layers):
        return [
            each
            for each, core in cores(sparsify(make(name), "sparsemax", layers=layers)).items()
            if core.name != "softmax"
        ]

    assert sparse_ones("BertModel", 1) == ["encoder.layer.1.attention.self.parsimax"]
    assert sparse_ones("BertModel", ["layer.0"]) == ["encoder.layer.0.attention.self.parsimax"]
    t5 = sparse_ones("T5ForConditionalGeneration", [1])
    assert t5 == [
        "encoder.block.1.layer.0.SelfAttention.parsimax",
        "decoder.block.1.layer.0.SelfAttention.parsimax",
        "decoder.block.1.layer.1.EncDecAttention.parsimax",
    ]
    assert len(sparse_ones("BartForConditionalGeneration", "decoder")) == 4
    assert len(sparse_ones("BartForConditionalGeneration", ["encoder_attn", 0])) == 4
    assert len(sparse_ones("BartForConditionalGeneration", None)) == 6


@pytest.mark.parametrize(
    "given", [{"alpha": 2.0}, {"mapping": "rsoftmax", "rate": 0.6}, {"alpha": "learned", "alpha_start": 1.9}]
)
@pytest.mark.parametrize("name", ["BertModel", "LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_heads_not_chosen_stay_softmax(name, given):
    inputs = batch(name)
    soft = all_weights(run(sparsify(make(name), "softmax"), inputs))[0]
    full = all_weights(run(sparsify(make(name), **given), inputs))[0]
    model = sparsify(make(name), **given, heads=[0, 3])
    mixed = all_weights(run(model, inputs))[0]
    assert torch.allclose(mixed[:, [1, 2]], soft[:, [1, 2]], atol=1e-6)
    assert torch.allclose(mixed[:, [0, 3]], full[:, [0, 3]], atol=1e-6)
    assert not torch.allclose(soft, full, atol=0.05)
    per_layer = sparsify(make(name), **given, heads={0: [0, 3]})
    weights = all_weights(run(per_layer, inputs))
    assert torch.allclose(weights[0], mixed, atol=1e-6)
    for each, core in cores(per_layer).items():
        first = next(part for part in each.split(".") if part.isdigit()) == "0"
        assert core.chosen.tolist() == [True, False, False, True] if first else core.name == "softmax"


def test_only_chosen_heads_of_a_learned_alpha_train():
    model = sparsify(make("BertModel"), alpha="learned", heads={1: [2]})
    model(**batch("BertModel"))[0].square().mean().backward()
    core = cores(model)["encoder.layer.1.attention.self.parsimax"]
    assert core.learned_alpha.raw.grad.nonzero().flatten().tolist() == [2]
    assert core.alpha.tolist() == [1, 1, 1.5, 1]
    assert sum("alpha" in each for each in model.state_dict()) == 1


def test_schedules_follow_the_step():
    model = sparsify(make("BertModel"), alpha=schedules.Linear(1.0, 2.0, steps=10))
    inputs = batch("BertModel")
    for step, fixed in ((0, 1.0), (5, 1.5), (10, 2.0)):
        parsimax.set_step(model, step)
        assert torch.allclose(seen(model, inputs), seen(sparsify(make("BertModel"), alpha=fixed), inputs), atol=1e-5)


def test_what_cannot_be_sparsified_is_named():
    with pytest.raises(ValueError, match=r"MPNetModel does not use the attention interface"):
        sparsify(transformers.MPNetModel(transformers.MPNetConfig(**SMALL)))
    with pytest.raises(TypeError, match=r"PreTrainedModel, got Linear"):
        sparsify(torch.nn.Linear(1, 1))
    mixed = transformers.EncoderDecoderModel(
        encoder=transformers.MPNetModel(transformers.MPNetConfig(**SMALL)),
        decoder=transformers.BertLMHeadModel(
            transformers.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True)
        ),
    )
    with pytest.warns(UserWarning, match=r"MPNetAttention \(encoder\.\S+0\.attention\) keep their own attention"):
        sparsify(mixed)
    assert cores(mixed) and all(name.startswith("decoder.") for name in cores(mixed))
    assert mixed.encoder.config._attn_implementation == "eager"  # who computes masks for MPNet as before
    sparsify(mixed, alpha=1.5, layers="decoder")  # what was chosen is all on the interface: nothing to warn of
    with pytest.raises(ValueError, match=r"'encoder.encoder' matches encoder\.\S+, whose MPNetAttention does not"):
        sparsify(mixed, layers="encoder.encoder")


def test_scores_it_does_not_know_are_refused():
    class Strange(transformers.models.llama.modeling_llama.LlamaAttention):
        def forward(self, hidden_states, **kwargs):
            interface = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
            query = hidden_states[:, None]
            return interface(self, query, query, query, tilt=hidden_states, **kwargs)

    model = make("LlamaForCausalLM")
    model.model.layers[0].self_attn.__class__ = Strange
    sparsify(model)
    with pytest.raises(
        NotImplementedError, match=r"Strange passes tilt to its attention, which parsimax does not know"
    ):
        model(torch.tensor([[1, 2, 3]]))


def test_parts_that_keep_their_attention_are_named():
    options = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**options, image_size=16, patch_size=8))
    with pytest.warns(UserWarning, match=r"MultiheadAttention.* keep their own attention") as caught:
        sparsify(model)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mapping": "entmin"}, ValueError, "no mapping is called 'entmin'"),
        ({"mapping": parsimax.Entmax15()}, TypeError, "mapping must be a name"),
        ({"alpha": "learnt"}, ValueError, "got alpha='learnt'"),
        ({"alpha": -1.0}, ValueError, "alpha must be in"),
        ({"mapping": "rsoftmax"}, TypeError, "needs a setting, such as rate=0.5"),
        ({"mapping": "sparsemax", "rate": 0.5}, TypeError, "sparsemax has no setting rate"),
        ({"layers": "decoder"}, ValueError, r"no attention layer matches 'decoder'; there are 2: encoder\.layer\.0"),
        ({"layers": [True]}, TypeError, "a layer is a number or a part"),
        ({"layers": []}, ValueError, "layers is empty"),
        ({"heads": [4]}, ValueError, "heads must be among 0…3, got 4"),
        ({"heads": "first"}, TypeError, "heads must be numbers"),
        ({"heads": {0: [1]}, "layers": [0]}, ValueError, "already names the layers"),
        ({"length_scaling": parsimax.LengthScaling(4)}, TypeError, "length_scaling must be True or False"),
    ],
)
def test_errors_say_what_was_wrong(arguments, error, message):
    model = make("BertModel")
    with pytest.raises(error, match=message):
        sparsify(model, **arguments)
    assert not cores(model) and model.config._attn_implementation == "sdpa" != NAME


def test_weights_are_asked_for_in_the_call_not_in_the_config():
    model = make("BertModel", "eager")
    model.config.output_attentions = True
    with pytest.raises(ValueError, match=r"config\.output_attentions is True.*model\(…, output_attentions=True\)"):
        sparsify(model)
    assert not cores(model)
