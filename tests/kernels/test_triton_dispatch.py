"""A GPU that is not there: fake CUDA tensors choose the Triton kernels; graphs hold the operators of the CPU."""

import importlib
import importlib.util
from contextlib import nullcontext

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

import fresh
import interpreted
import parsimax
from parsimax.kernels import backends, dispatch, schemas, triton

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(interpreted.ON, reason="the interpreter has no CUDA"),
]
CALLS = {
    "softmax": (),
    "sparsemax": (),
    "entmax15": (),
    "entmax": (1.3,),
    "topk_sparsemax": (3,),
    "rsoftmax": (0.5,),
    "budget_sparsemax": (2.0,),
    "tsoftmax": (1.5,),
    "sigsoftmax": (),
    "sparsegen": (0.2,),
    "sparsehourglass": (1.0,),
    "normmax": (1.7,),
}


@pytest.fixture(autouse=True)
def kernels():
    with dispatch.use("auto"):
        yield


def reasons(name, shape=(4, 9), dtype=torch.float32, mode=backends.EAGER, device="cuda", **options):
    with FakeTensorMode():
        x = torch.empty(shape, dtype=dtype, device=device)
        return backends.TRITON.reasons_against(backends.Request(name, mode, (x,), options))


@pytest.mark.parametrize("name", CALLS)
def test_what_runs_on_a_gpu(name):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for mode in (backends.EAGER, backends.GRAPH):
            assert reasons(name, dtype=dtype, mode=mode) == []
    assert reasons(name, dtype=torch.float64) == ["float64 is computed by the formula, in float64"]
    assert "torch.func" in reasons(name, mode=backends.TRANSFORM)[0]
    assert reasons(name, device="cpu") == ["a tensor is on cpu, the Triton kernels run on cuda"]


def test_what_does_not():
    assert reasons("segment_softmax") == ["there is no Triton kernel for segment_softmax"]
    assert reasons("rsoftmax", detach_threshold=True) == ["detach_threshold=True has no kernel"]
    for name in CALLS:
        assert reasons(name, (2, 10**6)) == []
    assert reasons("normmax", alpha=1.001) == reasons("normmax", alpha=2.0) == []
    for alpha in (1.0009, 2.1):
        (reason,) = reasons("normmax", alpha=alpha)
        assert reason == "an alpha outside [1.001, 2] where only the formula is exact"
    assert reasons("entmax_loss") == []


def test_target_probabilities_of_the_layer():
    def reasons(target):
        with FakeTensorMode():
            hidden, weight, y = (torch.empty(4, 9, device="cuda", dtype=d) for d in (torch.bfloat16,) * 2 + (target,))
            request = backends.Request("linear_entmax_loss", backends.EAGER, (hidden, weight, y), {"soft": True})
            return backends.TRITON.reasons_against(request)

    assert reasons(torch.float32) == reasons(torch.bfloat16) == []
    assert reasons(torch.float64) == ["target probabilities of torch.float64 would be rounded to torch.float32"]


def test_attention():
    def reasons(size=64, dtype=torch.bfloat16, **options):
        with FakeTensorMode():
            tensors = tuple(torch.empty(1, 2, 5, n, device="cuda", dtype=dtype) for n in (64, 64, size))
            request = backends.Request("entmax_attention", backends.EAGER, tensors, options)
            return backends.TRITON.reasons_against(request)

    assert reasons() == [] and reasons(256) == []
    assert reasons(256, torch.float32) == []
    assert reasons(257) == reasons(257, torch.float32) == ["heads of more than 256 numbers have no kernel"]
    assert reasons(dropout=0.1) == []


def test_only_the_back_end_of_the_device_is_asked():
    x = torch.randn(2, 3)
    assert "triton" not in parsimax.explain("normmax", x, 2.0)
    with (
        pytest.raises(RuntimeError, match="a tensor is on cpu, the Triton kernels run on cuda"),
        dispatch.use("triton"),
    ):
        parsimax.entmax15(x)


def operators(graph):
    return [str(node.target) for node in graph.nodes if "parsimax" in str(node.target)]


class Model(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.call, self.more = getattr(parsimax, name), CALLS[name]

    def forward(self, x):
        return self.call(x * 2, *self.more)


@pytest.mark.parametrize("name", CALLS)
def test_exported_graphs_hold_the_same_operators(name):
    """A graph that is made here runs there: on a fake GPU the export holds what it holds on the CPU."""
    here = torch.export.export(Model(name), (torch.randn(4, 9),))
    with FakeTensorMode():
        x = torch.empty(4, 9, device="cuda")
    there = torch.export.export(Model(name), (x,))
    assert operators(there.graph) == operators(here.graph) != []
    out = next(iter(there.graph.output_node().args[0]))
    assert out.meta["val"].device.type == "cuda" and out.meta["val"].shape == (4, 9)


class Attend(torch.nn.Module):
    def forward(self, q, k, v):
        return parsimax.entmax_attention(q, k, v, is_causal=True)


class Loss(torch.nn.Module):
    def forward(self, x, y):
        return parsimax.entmax15_loss(x, y)


class Layer(torch.nn.Module):
    def forward(self, x, weight, y):
        return parsimax.linear_entmax_loss(x, weight, y)


@pytest.mark.parametrize("model, shapes", [(Attend, [(1, 2, 5, 8)] * 3), (Loss, [(4, 9)]), (Layer, [(4, 9), (20, 9)])])
def test_losses_and_attention_are_exported_the_same(model, shapes):
    def given(device):
        targets = [torch.zeros(4, dtype=torch.long, device=device)] * (model is not Attend)
        return (*(torch.empty(shape, device=device) for shape in shapes), *targets)

    here = torch.export.export(model(), given("cpu"))
    with FakeTensorMode():
        fake = given("cuda")
    there = torch.export.export(model(), fake)
    assert operators(there.graph) == operators(here.graph) != []


def every_function(x, alpha, y, weight):
    q = x.view(1, 2, 2, 9)
    out = [getattr(parsimax, name)(x, *more).sum() for name, more in CALLS.items()]
    out += [parsimax.entmax(x, alpha).sum(), parsimax.entmax15_loss(x, y), parsimax.linear_entmax_loss(x, weight, y)]
    out += [parsimax.entmax_loss(x, y, alpha, label_smoothing=0.1)]
    out += [parsimax.entmax_attention(q, q, q, alpha=alpha.view(1, 2, 2, 1), is_causal=True).sum()]
    return torch.stack(out)


def compiled(device, train):
    """The operators of the graphs that torch.compile makes of all functions, forward, and backward if ``train``."""
    graphs = []

    def keep(module, _):
        graphs.append(operators(module.graph))
        return make_boxed_func(module.forward)

    sizes = [(4, 9), (4, 1), (20, 9)]
    x, alpha, weight = (torch.full(size, 1.3, device=device, requires_grad=train) for size in sizes)
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    y = torch.zeros(4, dtype=torch.long, device=device)
    out = torch.compile(every_function, fullgraph=True, backend=backend)(x, alpha, y, weight)
    assert out.device.type == device
    if train:
        out.sum().backward()
    return graphs


def test_compiled_graphs_hold_the_same_operators():
    here = compiled("cpu", False)
    with FakeTensorMode():
        assert compiled("cuda", False) == here
    assert len(here[0]) == len(CALLS) + 5


def test_compiled_graphs_of_training_hold_operators_that_a_gpu_has():
    """Traced for the CPU: autograd asks for a real GPU, fake tensors or not."""
    forward, backward = compiled("cpu", True)
    assert len(backward) == len(forward) == len(CALLS) + 5
    names = {name.removeprefix("parsimax.").removesuffix(".default") for name in forward + backward}
    assert names <= {*triton.IMPLEMENTED}


def test_every_operator_has_a_kernel_for_cuda():
    for name in triton.IMPLEMENTED:
        assert name in schemas.OPERATORS
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"parsimax::{name}", "CUDA")


def test_kernels_run_on_the_gpu_of_their_tensors(monkeypatch):
    """Triton launches on the current one, which torch does not change for operators written in Python."""
    rows = importlib.import_module("parsimax.kernels.triton.rows")
    current = [0]

    def exchange(index):
        current[0], before = (index if index >= 0 else current[0]), current[0]
        return before

    monkeypatch.setattr(torch.cuda, "_exchange_device", exchange)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", exchange)
    monkeypatch.setattr(rows, "entmax_fwd", lambda x, *_: current[0])
    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda:1")
        assert triton.implementation("_entmax_fwd")(x, None, 1.5) == 1
    assert current == [0]


def test_products_of_half_types_are_float32_where_torch_cannot_widen(monkeypatch):
    """Before 2.8, and for ROCm before 2.10."""
    linear = importlib.import_module("parsimax.kernels.triton.linear")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which warns that there is no GPU
    for widens in (True, False):
        monkeypatch.setattr(linear, "WIDENS", widens)
        with FakeTensorMode():
            a, b = (torch.empty(3, 3, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            assert linear.product(a, b).dtype == torch.float32


def test_importing_the_package_imports_no_triton():
    """Nor does importing the folder; calling an operator on a GPU would."""
    code = "import sys, torch; before = 'triton' in sys.modules; import parsimax, parsimax.kernels.triton; "
    code += "print(before, 'triton' in sys.modules)"
    ran = fresh.run("-c", code)
    assert ran.stdout.split() == ["False", "False"]


def test_without_triton_the_formula_runs_and_the_reason_is_told():
    code = "import sys, importlib.util as u; find = u.find_spec; "
    code += "u.find_spec = lambda name, *a: None if name == 'triton' else find(name, *a)\n"
    code += (
        "import parsimax\nfrom parsimax.kernels import triton\nprint(triton.PROBLEM)\nparsimax.use_kernels('triton')"
    )
    ran = fresh.run("-c", code)
    assert "Triton is not installed; pip install 'parsimax[triton]'" in ran.stdout
    assert "the Triton kernels cannot be used: Triton is not installed" in ran.stderr
