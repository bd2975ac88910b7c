"""Compiled and exported graphs hold the kernels, with the numbers and derivatives of eager code; or torch refuses."""

import math
import shutil
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch.autograd.forward_ad as fwad
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import fresh
import parsimax
from cases import normal
from parsimax.kernels import dispatch
from parsimax.mappings import REGISTRY

# torch itself loads its forward-mode rules and parts of inductor through the old torch.jit, and says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script:DeprecationWarning", "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning"
)


def single(*shape: int, seed: int = 0) -> torch.Tensor:
    return normal(*shape, seed=seed, dtype=torch.float32) * 2


X, ALLOWED, TARGET = single(5, 4, 9), normal(5, 1, 9, seed=2) > -1, torch.tensor([3, 0, -100, 8, 2])
ALPHA = torch.tensor([1.2, 1.5, 1.8, 2.5]).view(4, 1)
HEADS = torch.tensor([1.3, 1.7]).view(2, 1, 1)
Q, K, V = single(5, 2, 6, 8), single(5, 1, 7, 8, seed=1), single(5, 1, 7, 4, seed=2)
HIDDEN, WEIGHT, BIAS = single(5, 8), single(30, 8, seed=1), single(30, seed=2)

# name: (function, inputs with the batch first, what all of the batch shares, operator)
CASES = {
    "sparsemax": (parsimax.sparsemax, (X,), (), "entmax"),
    "entmax15": (parsimax.entmax15, (X,), (), "entmax"),
    "entmax15 masked": (lambda x, m: parsimax.entmax15(x, mask=m), (X, ALLOWED), (), "entmax"),
    "entmax15 over dim 1": (lambda x: parsimax.entmax15(x, 1), (X,), (), "entmax"),
    "entmax at infinity": (lambda x: parsimax.entmax(x, math.inf) * x, (X,), (), "entmax"),
    "entmax float": (lambda x: parsimax.entmax(x, 1.3), (X,), (), "entmax"),
    "entmax": (parsimax.entmax, (X,), (ALPHA,), "entmax"),
    "entmax alpha per row": (parsimax.entmax, (X, single(5, 1, 1).abs() / 3 + 1), (), "entmax"),
    "topk_sparsemax": (lambda x: parsimax.topk_sparsemax(x, 3), (X,), (), "topk_sparsemax"),
    "rsoftmax": (parsimax.rsoftmax, (X,), (torch.tensor(0.55),), "rsoftmax"),
    "budget_sparsemax": (parsimax.budget_sparsemax, (X,), (ALPHA,), "budget_sparsemax"),
    "entmax_loss": (
        lambda x, t, a: parsimax.entmax_loss(x, t, a, reduction="none"),
        (X[:, 0], TARGET),
        (torch.tensor(1.3),),
        "entmax_loss",
    ),
    "entmax15_loss": (
        lambda x, t: parsimax.entmax15_loss(x, t, weight=torch.linspace(0, 2, 9)),
        (X[:, 1], TARGET),
        (),
        "entmax_loss",
    ),
    "sparsemax_loss": (parsimax.sparsemax_loss, (X.mT.contiguous(), TARGET[:, None].repeat(1, 4)), (), "entmax_loss"),
    "linear_entmax_loss": (
        lambda h, t, w, a, b: parsimax.linear_entmax_loss(h, w, t, a, bias=b, softcap=4.0, reduction="none"),
        (HIDDEN, TARGET),
        (WEIGHT, torch.tensor(1.2), BIAS),
        "linear_entmax_loss",
    ),
    "linear smoothed": (
        lambda h, t, w: parsimax.linear_entmax_loss(h, w, t, label_smoothing=0.1),
        (HIDDEN, TARGET),
        (WEIGHT,),
        "linear_entmax_loss",
    ),
    "attention": (
        lambda q, k, v, a: parsimax.entmax_attention(q, k, v, alpha=a, enable_gqa=True),
        (Q, K, V),
        (HEADS,),
        "entmax_attention",
    ),
    "attention causal": (
        lambda q, k, v: parsimax.entmax_attention(q, k, v, is_causal=True, enable_gqa=True),
        (Q, K, V),
        (),
        "entmax_attention",
    ),
    "attention biased": (
        lambda q, k, v, b: parsimax.entmax_attention(q, k, v, alpha=1.3, attn_mask=b, enable_gqa=True),
        (Q, K, V, single(5, 1, 6, 7, seed=5)),
        (),
        "entmax_attention",
    ),
    "attention of three dimensions": (
        lambda q, k, v, m: parsimax.entmax_attention(q, k, v, attn_mask=m),
        (Q[:, 0], K[:, 0], V[:, 0]),
        (normal(6, 7, seed=3) > -1,),
        "entmax_attention",
    ),
}
EVERY = pytest.mark.parametrize("name", CASES)
RAW = {"topk_sparsemax": "_topk_sparsemax_fwd", "budget_sparsemax": "_budget_fwd", "entmax_loss": "_loss_fwd"}
RAW |= {"linear_entmax_loss": "_linear_loss_fwd", "entmax_attention": "_attention_fwd"}


class Checked(TorchDispatchMode):
    """Every operator of ours returns what its shape rule says."""

    def __init__(self):
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function.namespace == "parsimax" and not function.__name__.endswith("_root.default"):
            self.seen.add(function.__name__)
            free = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
            with FakeTensorMode() as mode:
                told = function(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in free))
            pairs = [(out, told)] if isinstance(out, torch.Tensor) else zip(out, told, strict=True)
            for a, b in pairs:
                assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), function
        return out


class Graphs:
    """``aot_eager`` that keeps the names of the operators in its graphs."""

    def __init__(self):
        torch._dynamo.reset()
        self.names: list[str] = []
        self.backend = aot_autograd(fw_compiler=self.keep, bw_compiler=self.keep)

    def keep(self, graph, _):
        self.names += [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        return torch._dynamo.backends.debugging.boxed_nop(graph, None)

    def compile(self, function, **options):
        return torch.compile(function, backend=self.backend, fullgraph=True, **options)

    def ours(self) -> list[str]:
        return [name.split(".")[1] for name in self.names if name.startswith("parsimax.")]


def leaves(inputs):
    return [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]


def slopes(function, inputs):
    """The result and the gradients by every floating-point input."""
    at = leaves(inputs)
    out = function(*at)
    weights = single(*out.shape, seed=9).to(out.dtype)
    grads = torch.autograd.grad(out, [t for t in at if t.requires_grad], weights, allow_unused=True)
    return [out.detach(), *(g for g in grads if g is not None)]


def close(ours, truth):
    ours, truth = (list(t) if isinstance(t, (list, tuple)) else [t] for t in (ours, truth))
    assert len(ours) == len(truth) and all(t.abs().max() > 1e-3 for t in truth), "a truth of zero cannot fail"
    for a, b in zip(ours, truth, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def grown(batched, shared):
    """A larger batch."""
    return [*(torch.cat([t, t.flip(0), t]) for t in batched), *shared]


@EVERY
def test_training_runs_the_kernels(name):
    function, batched, shared, operator = CASES[name]
    graphs = Graphs()
    run = graphs.compile(function, dynamic=True)
    close(slopes(run, [*batched, *shared]), slopes(function, [*batched, *shared]))
    raw = RAW.get(operator, f"_{operator}_fwd")
    kept = "_rsoftmax_keep" if operator == "rsoftmax" else raw  # what its backward would find again
    assert graphs.ours() == [kept, ("_entmax_fwd" if raw.startswith("_topk") else raw).replace("fwd", "bwd")]
    larger = grown(batched, shared)
    close(slopes(run, larger), slopes(function, larger))
    assert len(graphs.ours()) == 2, "another size was compiled anew"


@EVERY
def test_inference_and_export(name):
    function, batched, shared, operator = CASES[name]
    inputs, larger = [*batched, *shared], grown(batched, shared)
    graphs = Graphs()
    with torch.no_grad():
        close(graphs.compile(function)(*inputs), function(*inputs))
    assert graphs.ours() == [RAW.get(operator, f"_{operator}_fwd")]

    class Model(torch.nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    batch = torch.export.Dim("batch", min=2)
    shapes = (tuple({0: batch} if i < len(batched) else None for i in range(len(inputs))),)
    exported = torch.export.export(Model(), tuple(inputs), dynamic_shapes=shapes)
    for program in (exported, exported.run_decompositions()):
        kept = [str(n.target).split(".")[1] for n in program.graph.nodes if str(n.target).startswith("parsimax.")]
        assert kept == [operator]
        run = program.module()
        close(slopes(run, larger), slopes(function, larger))
    with Checked() as checked:
        slopes(run, larger)
        with torch.no_grad():
            run(*larger)
    assert len(checked.seen) == 3
    with dispatch.use("torch"):  # the formula stands in where the kernels cannot run
        close(run(*larger), function(*larger))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["entmax", "entmax_loss", "linear_entmax_loss", "attention"])
def test_other_types(name, dtype):
    function, batched, shared, _ = CASES[name]
    inputs = [t.to(dtype) if t.is_floating_point() else t for t in (*batched, *shared)]
    graphs = Graphs()
    for ours, eager in zip(slopes(graphs.compile(function), inputs), slopes(function, inputs), strict=True):
        assert ours.dtype == eager.dtype
        torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-12 if dtype == torch.float64 else 1e-3)
    assert len(graphs.ours()) == 2


@pytest.mark.parametrize("name", ["entmax", "entmax_loss", "linear_entmax_loss", "attention"])
def test_autocast(name):
    function, batched, shared, _ = CASES[name]
    inputs = [t.bfloat16() if t is X else t for t in (*batched, *shared)]
    graphs = Graphs()

    def cast(f):
        def run(*inputs):
            with torch.autocast("cpu", torch.bfloat16):
                return f(*inputs)

        return run

    for ours, eager in zip(slopes(graphs.compile(cast(function)), inputs), slopes(cast(function), inputs), strict=True):
        assert ours.dtype == eager.dtype
        torch.testing.assert_close(ours, eager, rtol=1e-2, atol=1e-3)
    assert len(graphs.ours()) == 2


@pytest.mark.parametrize("name", ["entmax15", "entmax_loss"])
def test_the_choice_of_kernels_is_respected(name):
    function, batched, shared, operator = CASES[name]
    inputs = [*batched, *shared]
    graphs = Graphs()
    run = graphs.compile(function)
    with dispatch.use("torch"):
        close(slopes(run, inputs), slopes(function, inputs))
        assert not {n for n in graphs.ours() if not n.endswith("_root")}
    close(slopes(run, inputs), slopes(function, inputs))  # compiled anew
    assert RAW.get(operator, "_entmax_fwd") in graphs.ours()


def test_what_the_kernels_do_not_take_stays_a_formula():
    graphs = Graphs()
    # Infinite biases cannot be ruled out in a graph.
    fused = graphs.compile(parsimax.linear_entmax_loss)
    given = {"bias": BIAS, "label_smoothing": 0.1}
    close(fused(HIDDEN, WEIGHT, TARGET, **given), parsimax.linear_entmax_loss(HIDDEN, WEIGHT, TARGET, **given))
    assert graphs.ours() == ["entmax15_root"]
    weights = graphs.compile(parsimax.entmax_attention)
    close(weights(Q, Q, Q, return_weights=True), parsimax.entmax_attention(Q, Q, Q, return_weights=True))
    assert graphs.ours()[1:] == ["_entmax_fwd"]  # of all scores


def cubed(function):
    return lambda *inputs: function(*inputs).pow(3).sum()


@pytest.mark.parametrize("name", ["entmax", "rsoftmax", "entmax_loss", "attention"])
def test_no_derivative_of_an_exported_program_is_lost(name):
    function, batched, shared, _ = CASES[name]
    inputs = tuple(t for t in (*batched, *shared))
    moving = tuple(i for i, t in enumerate(inputs) if t.is_floating_point())
    at = tuple(inputs[i] for i in moving)

    def of(run):
        def call(*moved):
            each = iter(moved)
            return run(*(next(each) if i in moving else t for i, t in enumerate(inputs)))

        return call

    class Model(torch.nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    exported = torch.export.export(Model(), inputs)
    direct = of(function)
    every = tuple(range(len(at)))
    tangents = tuple(single(*t.shape, seed=7) for t in at)
    for program in (exported.module(), exported.run_decompositions().module()):
        ours = of(program)
        close(grad(cubed(ours), every)(*at), grad(cubed(direct), every)(*at))
        close(jvp(ours, at, tangents), jvp(direct, at, tangents))
        with fwad.dual_level():
            duals = [fwad.make_dual(t, d) for t, d in zip(at, tangents, strict=True)]
            close(fwad.unpack_dual(ours(*duals)).tangent, fwad.unpack_dual(direct(*duals)).tangent)
        close(vmap(ours)(*(t[None] for t in at))[0], direct(*at))
        first = leaves(at)
        for run in (ours, direct):
            (slope,) = torch.autograd.grad(cubed(run)(*first), first[0], create_graph=True)
            second = torch.autograd.grad(slope.square().sum(), first)
            if run is ours:
                kept = second
        close(kept, second)


def test_derivatives_through_a_compiled_function_are_right_or_refused():
    run = Graphs().compile(parsimax.entmax15)
    x = X.clone().requires_grad_()
    run(x)
    for transform in (grad(cubed(run)), jacrev(run), vmap(run), lambda t: jvp(run, (t,), (t,))):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            transform(X)
    (slope,) = torch.autograd.grad(run(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        slope.sum().backward()
    with fwad.dual_level(), pytest.raises(Exception, match="drops forward-mode tangents"):
        run(fwad.make_dual(X, X))
    loose = torch.compile(parsimax.entmax15, backend="aot_eager")  # without fullgraph torch goes on in eager code
    with fwad.dual_level():
        dual = fwad.make_dual(X, X)
        close(fwad.unpack_dual(loose(dual)).tangent, fwad.unpack_dual(parsimax.entmax15(dual)).tangent)


def test_transforms_inside_of_a_graph_take_the_formula():
    graphs = Graphs()
    for of in (lambda f: grad(cubed(f)), vmap, lambda f: lambda x: jvp(f, (x,), (x,))):
        close(graphs.compile(of(parsimax.entmax15))(X), of(parsimax.entmax15)(X))
    assert set(graphs.ours()) == {"entmax15_root"}


def test_a_second_derivative_inside_of_a_graph():
    def penalty(x, alpha):
        (slope,) = torch.autograd.grad(parsimax.entmax(x, alpha).pow(3).sum(), x, create_graph=True)
        return slope.square().sum()

    at = leaves((X, ALPHA))
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        ours = torch.autograd.grad(Graphs().compile(penalty)(*at), at)
    close(ours, torch.autograd.grad(penalty(*at), at))


@pytest.mark.parametrize("name", ["entmax", "attention"])
def test_inductor(name):
    function, batched, shared, _ = CASES[name]
    torch._dynamo.reset()
    run = torch.compile(function, fullgraph=True)
    close(slopes(run, [*batched, *shared]), slopes(function, [*batched, *shared]))
    with torch.no_grad():
        close(run(*batched, *shared), function(*batched, *shared))


def test_numbers_may_change():
    graphs = Graphs()
    alpha, rate = graphs.compile(parsimax.entmax), graphs.compile(parsimax.rsoftmax)
    attention = graphs.compile(lambda x, a, s: parsimax.entmax_attention(x, x, x, alpha=a, scale=s))
    few = graphs.compile(parsimax.topk_sparsemax)
    for i in range(3):
        number = 1.2 + 0.1 * i
        close(alpha(X, number), parsimax.entmax(X, number))
        close(rate(X, number / 3), parsimax.rsoftmax(X, number / 3))
        close(attention(Q, number, number), parsimax.entmax_attention(Q, Q, Q, alpha=number, scale=number))
        close(few(X, 2 + i), parsimax.topk_sparsemax(X, 2 + i))


def test_a_saved_program_runs_without_kernels(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, alpha, q):
            return parsimax.entmax(x, alpha), parsimax.entmax_attention(q, q, q, is_causal=True)

    given = (X, ALPHA, Q)
    torch.export.save(torch.export.export(Model(), given), tmp_path / "model.pt2")
    torch.save([given, Model()(*given)], tmp_path / "data.pt")
    shutil.copytree(
        Path(parsimax.__file__).parent, tmp_path / "parsimax", ignore=shutil.ignore_patterns("_cpu.so", "cpu")
    )
    code = """
import warnings, torch, parsimax
from parsimax.kernels import library
assert not library.AVAILABLE
given, wanted = torch.load("data.pt")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ours = torch.export.load("model.pt2").module()(*given)
for a, b in zip(ours, wanted, strict=True):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
print("right")
"""
    run = fresh.run("-c", code, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert run.stdout == "right\n", run.stderr


@pytest.mark.parametrize("entry", REGISTRY.values(), ids=REGISTRY)
def test_every_mapping_is_one_graph(entry):
    torch._dynamo.reset()
    own = {entry.setting.name: entry.setting.example} if entry.setting else {}
    found = torch._dynamo.explain(lambda x: 2 * entry.function(x, **own))(single(3, 50))
    assert (found.graph_count, found.graph_break_count) == (1, 0)
