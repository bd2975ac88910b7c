"""What ``verify`` counts is what ran, whatever the model was configured for."""

import sys

import pytest
import torch
from torch import nn

import parsimax
from parsimax import sparsemax as imported_by_another_name


class Head(nn.Module):
    """Scores to probabilities by a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def told(model, *inputs, **keywords):
    result = parsimax.verify(model, *inputs, **keywords)
    return {layer.name: dict(layer.ran) for layer in result.layers}, result


FUNCTIONS = {
    "softmax": [
        torch.softmax,
        nn.functional.softmax,
        torch.Tensor.softmax,
        parsimax.softmax,
        lambda x, dim: parsimax.entmax(x, 1.0, dim),
    ],
    "log_softmax": [nn.functional.log_softmax, torch.log_softmax],
    "sparsemax": [imported_by_another_name, lambda x, dim: parsimax.entmax(x, 2.0, dim)],
    "entmax15": [parsimax.entmax15, parsimax.entmax],
    "entmax α=1.25": [
        lambda x, dim: parsimax.entmax(x, 1.25, dim),
        lambda x, dim: parsimax.entmax(x, torch.tensor(1.25)),
    ],
    "rsoftmax": [lambda x, dim: parsimax.rsoftmax(x, 0.5, dim)],
    "sigsoftmax": [parsimax.sigsoftmax],
}


@pytest.mark.parametrize("kernels", ["cpu", "torch"], indirect=True)
@pytest.mark.parametrize(("name", "function"), [(n, f) for n, each in FUNCTIONS.items() for f in each])
def test_functions_count_by_what_they_compute(name, function, kernels):
    layers, result = told(Head(lambda x: function(x, dim=-1) + function(x, dim=-1)), torch.randn(3, 5))
    assert layers == {"": {name: 2}} and result.ok


def test_softmax_where_sparse_was_meant_is_found():
    """A layer that holds a sparse mapping and forgets to call it, as two public projects do."""

    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.mapping = parsimax.Sparsemax()

        def forward(self, x):
            return torch.softmax(x, -1)

    layers, result = told(Forgetful(), torch.randn(3, 5))
    assert layers == {"": {"softmax": 1}, "mapping": {}}
    assert not result.ok and [layer.name for layer in result.problems] == ["mapping"]
    assert "meant to compute sparsemax, but the layer around it computed softmax instead" in str(result)


def test_a_mapping_module_counts_as_itself():
    model = nn.Sequential(nn.Linear(5, 5), parsimax.Entmax(1.3, learnable=True), parsimax.RSoftmax(0.5), nn.Softmax(-1))
    layers, result = told(model, torch.randn(3, 5))
    assert layers == {"1": {"entmax α=1.3": 1}, "2": {"rsoftmax": 1}, "3": {"softmax": 1}} and result.ok


@pytest.mark.parametrize("grad", [False, True])
def test_attention_of_torch_and_its_replacement(grad):
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).eval()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for parameter in model.parameters():
        parameter.requires_grad_(grad)
    layers, result = told(model, torch.randn(2, 3, 8))
    assert sum(sum(ran.values()) for ran in layers.values()) == 2 and result.ok
    assert all("softmax (" in what for ran in layers.values() for what in ran)  # by whichever path torch takes
    sparse, result = told(parsimax.replace_attention(model, alpha=1.5), torch.randn(2, 3, 8))
    assert sparse == {f"layers.{n}.self_attn.core": {"entmax15": 1} for n in (0, 1)} and result.ok


def test_other_mappings_in_attention_and_masks():
    layer = parsimax.MultiheadAttention(8, 2, mapping="rsoftmax", rate=0.5, batch_first=True)
    x = torch.randn(2, 3, 8)
    assert told(layer, x, x, x, need_weights=False)[0] == {"core": {"rsoftmax": 1}}
    assert told(layer, x, x, x)[0] == {"core": {"rsoftmax": 1}}


def test_a_layer_that_did_not_run_is_told():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = parsimax.Sparsemax(), parsimax.Sparsemax()

        def forward(self, x):
            return self.used(x)

    result = parsimax.verify(Half(), torch.randn(3))
    assert [layer.name for layer in result.problems] == ["unused"]
    assert "never ran in this pass" in result.problems[0].problem


def test_transformers_models_layer_by_layer():
    pytest.importorskip("transformers")
    from hub import batch, make
    from parsimax.huggingface import sparsify

    model = make("BertModel")
    inputs = batch("BertModel")
    layers, result = told(model, **inputs)
    assert len(layers) == 2 and all("scaled_dot_product" in what for ran in layers.values() for what in ran)
    sparsify(model, alpha=torch.tensor([1.2, 1.5, 1.5, 1.9]), layers=[1])
    layers, result = told(model, **inputs)
    assert result.ok and layers == {
        "encoder.layer.0.attention.self.parsimax": {"softmax": 1},
        "encoder.layer.1.attention.self.parsimax": {"entmax α=1.2…1.9": 1},
    }
    model.config._attn_implementation = "eager"  # configured for parsimax a moment ago, and still holding its cores
    with pytest.warns(UserWarning, match="ran without its mapping"):
        sparsify(model, "sparsemax").config._attn_implementation = "eager"
        result = parsimax.verify(model, **inputs)
    assert not result.ok and len(result.problems) == 2 and "computed softmax instead" in str(result)


def test_nothing_is_left_behind_and_errors_go_through():
    before = sys.getprofile()
    with pytest.raises(RuntimeError, match="no"):
        parsimax.verify(Head(lambda x: (_ for _ in ()).throw(RuntimeError("no"))), torch.randn(3))
    assert sys.getprofile() is before
    assert not torch.nn.modules.module._global_forward_pre_hooks and not torch.nn.modules.module._global_forward_hooks
    with pytest.raises(TypeError, match=r"verify: model must be a torch\.nn\.Module, got function"):
        parsimax.verify(parsimax.softmax, torch.randn(3))
    assert str(parsimax.verify(nn.Linear(2, 2), torch.randn(2))) == "no layer computed a mapping"


def test_the_peer_package_counts_too():
    entmax = pytest.importorskip("entmax")
    assert told(Head(lambda x: entmax.sparsemax(x, dim=-1)), torch.randn(3, 5))[0] == {
        "": {"sparsemax (entmax package)": 1}
    }
