"""Graphs that leave the library: ONNX and torch.jit.trace hold ordinary operators, for any batch and length."""

import math

import pytest
import torch

import parsimax

pytestmark = [
    # torch says of its own tracers that they are old, and of our checks of shapes that they are not part of the trace.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
FIXED = {
    "softmax": parsimax.softmax,
    "sparsemax": parsimax.sparsemax,
    "entmax15": parsimax.entmax15,
    "entmax": lambda x: parsimax.entmax(x, 1.3),
    "tsoftmax": lambda x: parsimax.tsoftmax(x, 1.0),
    "rsoftmax": lambda x: parsimax.rsoftmax(x, 0.5),
    "sigsoftmax": parsimax.sigsoftmax,
    "topk_sparsemax": lambda x: parsimax.topk_sparsemax(x, 3),
    "normmax": lambda x: parsimax.normmax(x, 1.7),
    "budget_sparsemax": lambda x: parsimax.budget_sparsemax(x, 2.0),
    "sparsegen": lambda x: parsimax.sparsegen(x, 0.3),
    "sparsehourglass": lambda x: parsimax.sparsehourglass(x, 1.0),
}
SIZES = [(3, 7), (5, 40), (2, 300)]  # recorded with the first


def draw(rows, length):
    """Rows of several spreads, one with forbidden entries."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(rows, length, generator=generator) * torch.tensor([0.3, 1.0, 5.0, 2.0, 0.01])[:rows, None]
    x[1, ::3] = -math.inf
    return x


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def assert_same(function, graph):
    for size in SIZES:
        x = draw(*size)
        ours, theirs = function(x), graph(x)
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)
        assert torch.equal(theirs == 0, ours == 0)


def test_every_mapping_is_here():
    assert set(FIXED) == set(parsimax.mappings.REGISTRY)


@pytest.mark.parametrize("name", FIXED)
def test_trace(name):
    with torch.no_grad():
        traced = torch.jit.trace(Model(FIXED[name]), draw(*SIZES[0]))
    assert "parsimax::" not in str(traced.inlined_graph)
    assert_same(FIXED[name], traced)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.1, 1.5, 1.9, 2.0])
def test_searches_written_out_converge(alpha):
    """20 steps are enough for every α in [0.5, 2], spread and length."""
    with torch.no_grad():
        traced = torch.jit.trace(Model(lambda x: parsimax.entmax(x, torch.tensor(alpha))), draw(*SIZES[0]))
    assert_same(lambda x: parsimax.entmax(x, alpha), traced)


def test_trace_of_attention():
    def attend(q):
        return parsimax.entmax_attention(q, q, q, is_causal=True)

    with torch.no_grad():
        traced = torch.jit.trace(Model(attend), torch.randn(2, 4, 8))
    q = torch.randn(3, 6, 8)
    torch.testing.assert_close(traced(q[:, :4]), attend(q[:, :4]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx(name):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=4)}
    program = torch.onnx.export(
        Model(FIXED[name]), (draw(*SIZES[0]),), dynamo=True, dynamic_shapes=(sizes,), verbose=False
    )
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    (given,) = session.get_inputs()
    assert_same(FIXED[name], lambda x: torch.from_numpy(session.run(None, {given.name: x.numpy()})[0]))
