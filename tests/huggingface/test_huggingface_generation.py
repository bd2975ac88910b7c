"""Generation by sparse attention and by sparse output probabilities."""

import pytest
import torch
from transformers import LogitsProcessorList

import parsimax
from hub import DECODERS, PAIRS, WINDOWS, batch, make
from parsimax.huggingface import EntmaxLogitsProcessor, sparsify


@pytest.mark.parametrize("name", [*DECODERS, *PAIRS, *WINDOWS])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_cache_equals_generation_without(name, beams):
    inputs = batch(name)
    inputs.pop("decoder_input_ids", None)
    model = sparsify(make(name), alpha=1.5)
    options = {
        "max_new_tokens": 8,
        "do_sample": False,
        "num_beams": beams,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    options |= {"min_new_tokens": 8}
    cached, plain = (model.generate(**inputs, **options, use_cache=use) for use in (True, False))
    assert torch.equal(cached.sequences, plain.sequences)
    assert not torch.allclose(*cached.scores[-1][::beams], atol=1e-2)  # the two examples do differ
    for mine, other in zip(cached.scores, plain.scores, strict=True):
        assert torch.allclose(mine, other, atol=1e-4)


@pytest.mark.parametrize("name", [*DECODERS, "MistralForCausalLM"])
def test_a_batch_with_padding_generates_what_each_example_does_alone(name):
    inputs = batch(name)
    model = sparsify(make(name), alpha="learned", alpha_start=1.7)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    both = model.generate(**inputs, **options)
    alone = model.generate(input_ids=inputs["input_ids"][1:, 3:], **options)
    assert torch.equal(both[1, 9:], alone[0, 6:])
    static = model.generate(**inputs, **options, cache_implementation="static", disable_compile=True)
    assert torch.equal(both, static)


def test_generate_gives_the_weights_of_every_step():
    model = sparsify(make("GPT2LMHeadModel"), alpha=1.5)
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "return_dict_in_generate": True, "output_attentions": True}
    steps = model.generate(**batch("GPT2LMHeadModel"), **options).attentions
    assert [layers[0].shape[-2:] for layers in steps] == [(9, 9), (1, 10), (1, 11)]
    assert all(weights[1, :, :, :3].eq(0).all() for layers in steps for weights in layers)


def generate(model, processor, **options):
    """From the prompt of one example, with scores."""
    inputs = {"input_ids": torch.tensor([[5, 11, 7]]), "max_new_tokens": 6, "min_new_tokens": 6, **options}
    return model.generate(
        **inputs,
        logits_processor=LogitsProcessorList([processor]),
        return_dict_in_generate=True,
        output_scores=True,
    )


def log_probabilities(model, sequences, mapping, eos=1):
    """Of the tokens after the prompt, in float64, from a pass over the whole sequences; the end is forbidden."""
    with torch.no_grad():
        logits = model(sequences).logits[:, 2:-1].double()
    logits[..., eos] = -torch.inf
    return mapping(logits).log().gather(-1, sequences[:, 3:, None]).squeeze(-1)


def entmax_of_2_5(scores):
    return parsimax.entmax(scores, 2.5)


PROCESSORS = {
    "default": (EntmaxLogitsProcessor, {}, parsimax.entmax15),
    "alpha": (EntmaxLogitsProcessor, {"alpha": 2.5}, entmax_of_2_5),
    "mapping": (EntmaxLogitsProcessor, {"mapping": "sparsemax"}, parsimax.sparsemax),
    "temperature": (EntmaxLogitsProcessor, {"temperature": 0.5}, lambda scores: parsimax.entmax15(2 * scores)),
}


@pytest.fixture(scope="module")
def model():
    return make("GPT2LMHeadModel")


@pytest.mark.parametrize("kind", PROCESSORS)
def test_the_softmax_of_what_it_returns_is_the_mapping(kind):
    make_it, arguments, mapping = PROCESSORS[kind]
    scores = 3 * torch.randn(50, 1000, generator=torch.Generator().manual_seed(0))
    scores[:, ::7] = -torch.inf
    processor, truth = make_it(**arguments), mapping(scores.double())
    for given in (scores, scores.log_softmax(-1)):  # what sampling and what beam search hands over
        got = processor(None, given)
        assert torch.equal(got == -torch.inf, truth == 0)
        assert (got.softmax(-1) - truth).abs().max() < 1e-5
        assert (got.exp().sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("kind", PROCESSORS)
def test_sampling_never_takes_a_token_of_probability_zero(model, kind):
    make_it, arguments, mapping = PROCESSORS[kind]
    torch.manual_seed(0)
    sampled = generate(model, make_it(**arguments), do_sample=True, num_return_sequences=200).sequences
    assert log_probabilities(model, sampled, mapping).isfinite().all()
    torch.manual_seed(0)
    free = generate(model, lambda ids, scores: scores, do_sample=True, num_return_sequences=200).sequences
    assert log_probabilities(model, free, mapping).isinf().any()  # softmax does


def test_sampling_follows_the_probabilities(model):
    torch.manual_seed(0)
    options = {"max_new_tokens": 1, "min_new_tokens": 1, "do_sample": True, "top_k": 0, "num_return_sequences": 4000}
    tokens = generate(model, EntmaxLogitsProcessor(), **options).sequences[:, 3]
    with torch.no_grad():
        logits = model(torch.tensor([[5, 11, 7]])).logits[0, -1].double()
    logits[1] = -torch.inf
    p = parsimax.entmax15(logits)
    assert 1 < (p > 0).sum() < 40
    spread = (p * (1 - p) / 4000).sqrt()
    assert (((tokens.bincount(minlength=40) / 4000) - p).abs() <= 5 * spread).all()


def test_greedy_search_takes_the_same_tokens_as_softmax(model):
    mine = generate(model, EntmaxLogitsProcessor(), do_sample=False)
    plain = generate(model, lambda ids, scores: scores, do_sample=False)
    assert torch.equal(mine.sequences, plain.sequences)
    assert all((scores == -torch.inf).sum() > 1 for scores in mine.scores)


@pytest.mark.parametrize("kind", PROCESSORS)
@pytest.mark.parametrize("sparse_attention", [False, True])
def test_the_score_of_a_beam_is_the_sum_of_log_probabilities(kind, sparse_attention):
    make_it, arguments, mapping = PROCESSORS[kind]
    model = make("GPT2LMHeadModel")
    model = sparsify(model) if sparse_attention else model
    options = {"num_beams": 5, "num_return_sequences": 5, "do_sample": False, "length_penalty": 0.0}
    found = generate(model, make_it(**arguments), **options)
    alive = found.sequences_scores > -1e8
    assert alive[0] and not found.sequences_scores.isnan().any()
    truth = log_probabilities(model, found.sequences[alive], mapping).sum(-1)
    assert (found.sequences_scores[alive] - truth).abs().max() < 1e-4
    assert truth.isfinite().all()  # beams of probability zero were pruned


def test_more_beams_than_possible_continuations_end_far_below_all_others(model):
    options = {"num_beams": 5, "num_return_sequences": 5, "do_sample": False, "length_penalty": 0.0}
    found = generate(model, EntmaxLogitsProcessor(alpha=50.0), **options)
    alive = found.sequences_scores > -1e8
    assert 1 <= alive.sum() < 5 and (found.sequences_scores[~alive] <= -5e8 / 6).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mapping": "budget_sparsemax", "budget": 2.0}, ValueError, "budget_sparsemax sums to 2"),
        ({"mapping": "sigsoftmax"}, ValueError, "beam search adds a constant to the logits"),
        ({"mapping": "rsoftmax"}, TypeError, "rate"),
        ({"mapping": "entmin"}, ValueError, "no mapping is called 'entmin'"),
        ({"mapping": "sparsemax", "k": 3}, TypeError, "sparsemax has no setting k"),
        ({"alpha": -1.0}, ValueError, "alpha must be in"),
        ({"temperature": 0.0}, ValueError, "temperature must be in"),
    ],
)
def test_what_is_no_distribution_of_the_next_token_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        EntmaxLogitsProcessor(**arguments)


def test_a_processor_follows_a_schedule():
    scores = torch.tensor([[2.0, 1.0, 0.5, -1.0]])
    processor = EntmaxLogitsProcessor(parsimax.schedules.Linear(1.0, 2.0, steps=10))
    for step in (0, 5, 10):
        parsimax.set_step(processor, step)
        torch.testing.assert_close(processor(None, scores).exp(), parsimax.entmax(scores, 1 + step / 10))
