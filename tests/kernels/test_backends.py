"""What the back ends can do is data: ``explain``, the choice, ``info`` and errors read it, and none is ever wrong."""

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.autograd import forward_ad

import parsimax
from cases import normal
from parsimax import info
from parsimax.kernels import backends, dispatch, library, schemas

pytestmark = [
    pytest.mark.skipif(not library.AVAILABLE, reason=str(library.PROBLEM)),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),  # torch's own, in forward mode
]

X, Y = normal(4, 9).float(), torch.tensor([1, 2, 3, 4])
Q = normal(3, 2, 2, 5, 8).float()
ALPHA = torch.tensor([[1.2], [1.5], [1.8], [2.5]])
HIDDEN, WEIGHT, BIAS = normal(4, 6).float(), normal(9, 6, seed=1).float(), normal(9, seed=2).float()
SOFT = torch.softmax(X, -1)
NET = parsimax.Monotonic(5)

# name: (function, its tensors, other arguments), each in every dtype and mode below
CALLS = {
    "softmax": ("softmax", (X,), {}),
    "sparsemax": ("sparsemax", (X,), {}),
    "sparsemax, masked": ("sparsemax", (X,), {"mask": X > -1}),
    "sparsemax, dim 0": ("sparsemax", (X,), {"dim": 0}),
    "entmax15": ("entmax15", (X,), {}),
    "entmax 1.5": ("entmax", (X,), {}),
    "entmax 1.3": ("entmax", (X,), {"alpha": 1.3}),
    "entmax 3": ("entmax", (X,), {"alpha": 3}),
    "entmax inf": ("entmax", (X,), {"alpha": float("inf")}),
    "entmax, tensor": ("entmax", (X, ALPHA[:3].repeat(2, 1)[:4]), {}),
    "entmax, steep tensor": ("entmax", (X, ALPHA), {}),
    "log_entmax": ("log_entmax", (X,), {}),
    "topk": ("topk_sparsemax", (X,), {"k": 3}),
    "rsoftmax": ("rsoftmax", (X,), {"rate": 0.5}),
    "rsoftmax, detached": ("rsoftmax", (X,), {"rate": 0.5, "detach_threshold": True}),
    "budget": ("budget_sparsemax", (X,), {"budget": 2.0}),
    "normmax": ("normmax", (X,), {"alpha": 2.0}),
    "tsoftmax": ("tsoftmax", (X,), {"t": 1.0}),
    "sparsegen": ("sparsegen", (X,), {"lam": 0.2}),
    "sigsoftmax": ("sigsoftmax", (X,), {}),
    "sparsehourglass": ("sparsehourglass", (X,), {}),
    "normmax 3": ("normmax", (X,), {"alpha": 3.0}),
    "segment_entmax": ("segment_entmax", (X, Y), {"alpha": 1.3}),
    "segment_sparsemax": ("segment_sparsemax", (X, Y), {}),
    "segment_entmax15": ("segment_entmax15", (X, Y), {}),
    "segment_softmax": ("segment_softmax", (X, Y), {}),
    "support": ("support", (X,), {"max_size": 5}),
    "sparsemax_loss": ("sparsemax_loss", (X, Y), {}),
    "entmax15_loss, smoothed": ("entmax15_loss", (X, Y), {"label_smoothing": 0.1}),
    "entmax_loss, tensor": ("entmax_loss", (X, Y, ALPHA), {}),
    "entmax_loss, soft": ("entmax_loss", (X, SOFT), {}),
    "entmax_loss, learned soft": ("entmax_loss", (X, SOFT.clone().requires_grad_()), {}),
    "entmax_loss, weighted": ("entmax_loss", (X, Y), {"weight": torch.ones(9), "label_smoothing": 0.1}),
    "entmax_loss, learned weight": (
        "entmax_loss",
        (X, Y),
        {"weight": torch.ones(9, requires_grad=True), "label_smoothing": 0.1},
    ),
    "fenchel_young sparsemax": ("fenchel_young_loss", (X, Y), {"mapping": "sparsemax"}),
    "fenchel_young softmax": ("fenchel_young_loss", (X, Y), {"mapping": "softmax"}),
    "fenchel_young entmax": ("fenchel_young_loss", (X, Y), {"mapping": "entmax", "alpha": 1.3}),
    "fenchel_young, smoothed": ("fenchel_young_loss", (X, Y), {"mapping": "sparsemax", "label_smoothing": 0.1}),
    "fenchel_young normmax": ("fenchel_young_loss", (X, Y), {"mapping": "normmax", "alpha": 2.0}),
    "multilabel": ("multilabel_loss", (X, SOFT), {}),
    "multilabel rsoftmax": ("multilabel_loss", (X, SOFT), {"mapping": "rsoftmax", "rate": 0.5}),
    "linear": ("linear_entmax_loss", (HIDDEN, WEIGHT, Y), {}),
    "linear, soft": ("linear_entmax_loss", (HIDDEN, WEIGHT, SOFT), {}),
    "linear, smoothed": ("linear_entmax_loss", (HIDDEN, WEIGHT, Y), {"label_smoothing": 0.1, "bias": BIAS}),
    "linear, smoothed and capped": (
        "linear_entmax_loss",
        (HIDDEN, WEIGHT, Y),
        {"label_smoothing": 0.1, "softcap": 9.0},
    ),
    "linear, infinite bias": (
        "linear_entmax_loss",
        (HIDDEN, WEIGHT, Y),
        {"label_smoothing": 0.1, "bias": BIAS.index_fill(0, torch.tensor([7]), -torch.inf)},
    ),
    "entmax_attention": ("entmax_attention", tuple(Q), {}),
    "entmax_attention, dropout": ("entmax_attention", tuple(Q), {"dropout_p": 0.5}),
    "entmax_attention, weights": ("entmax_attention", tuple(Q), {"return_weights": True}),
    "attention sparsemax": ("attention", tuple(Q), {"mapping": "sparsemax"}),
    "attention rsoftmax": ("attention", tuple(Q), {"mapping": "rsoftmax", "rate": 0.5}),
    "plif": ("plif", (X, torch.zeros(4)), {}),
    "monotonic": ("monotonic", (torch.linspace(-3, 3, 5000), *(w.detach() for w in NET.weights)), {}),
    "monotonic, few": ("monotonic", (X, *(w.detach() for w in NET.weights)), {}),
    "head_loss": ("head_loss", (HIDDEN, Y), {"head": parsimax.LinearHead(6, 9)}),
    "head_loss, plif": ("head_loss", (HIDDEN, Y), {"head": parsimax.PLIFHead(6, 9, knots=10)}),
    "head_loss, monotonic": ("head_loss", (HIDDEN, Y), {"head": parsimax.MonotonicHead(6, 9)}),
    "head_loss, mixture": ("head_loss", (HIDDEN, Y), {"head": parsimax.MixtureOfSoftmaxes(6, 9, 3)}),
    "head_loss, sparse mixture": (
        "head_loss",
        (HIDDEN, Y),
        {"head": parsimax.MixtureOfSoftmaxes(6, 9, 3, mapping="sparsemax")},
    ),
    "head_loss, smoothed": ("head_loss", (HIDDEN, Y), {"head": parsimax.SigSoftmaxHead(6, 9), "label_smoothing": 0.1}),
    "head_loss, none": ("head_loss", (HIDDEN, Y), {"head": parsimax.SigSoftmaxHead(6, 9), "reduction": "none"}),
    "head_loss, entmax": ("head_loss", (HIDDEN, Y), {"head": parsimax.LinearHead(6, 9, "entmax15")}),
    "attention normmax": ("attention", tuple(Q), {"mapping": "normmax", "alpha": 2.0}),
}
# The kernel that a function is to run, by the name under which it asks.
KERNEL = {
    **dict.fromkeys(("softmax", "sparsemax", "entmax15", "entmax"), "_entmax"),
    **dict.fromkeys(
        ("sparsemax_loss", "entmax15_loss", "entmax_loss", "fenchel_young_loss"), ("_loss_fwd", "_soft_loss_fwd")
    ),
    **dict.fromkeys(("segment_softmax", "segment_sparsemax", "segment_entmax15", "segment_entmax"), "_segment"),
    "tsoftmax": "_tsoftmax",
    "sigsoftmax": "_sigsoftmax",
    "sparsegen": "_sparsegen",
    "sparsehourglass": "_hourglass",
    "normmax": "_normmax",
    "support": "_support_fwd",
    "topk_sparsemax": "_topk",
    "rsoftmax": "_rsoftmax",
    "budget_sparsemax": "_budget",
    "linear_entmax_loss": "_linear_loss",
    "entmax_attention": "_attention_fwd",
    "attention": "_attention_fwd",
    "plif": "_plif",
    "monotonic": "_pieces",
    "head_loss": "_head",
    "sparsemap": "_sparsemap",
    "structured_topk": "_kbest_structures",
}


class Counted:
    """Counts the kernels that run, from below: by implementations that stand before the real ones."""

    def __init__(self, monkeypatch):
        self.ran = Counter()
        from parsimax.engine.fused import Fixed, _FixedRows
        from parsimax.mappings import entmax_rule

        def spied(overload):
            def run(*args):
                self.ran[overload.name().removeprefix("parsimax::")] += 1
                return overload(*args)

            return run

        packets = {name: getattr(torch.ops.parsimax, name) for name in schemas.OPERATORS}
        for name, packet in packets.items():
            monkeypatch.setattr(torch.ops.parsimax, name, spied(packet.default))
        forward = spied(packets["_entmax_fwd"].default)
        monkeypatch.setattr(entmax_rule, "_entmax_fwd", forward)
        monkeypatch.setattr(Fixed, "__call__", lambda fixed, x: _FixedRows.apply(replace(fixed, forward=forward), x))


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch).ran


@pytest.fixture(autouse=True)
def kernels():
    """Each test chooses for itself."""
    with dispatch.use("auto"):
        yield


def cast(tensors, dtype):
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)


def made(name, dtype, grad=False):
    function, tensors, options = CALLS[name]
    tensors = cast(tensors, dtype)
    if grad:
        tensors = (tensors[0].clone().requires_grad_(), *tensors[1:])
    options = {
        k: v.to(dtype) if isinstance(v, torch.Tensor) and v.dim() == 1 and k == "bias" else v
        for k, v in options.items()
    }
    if "head" in options:
        options["head"] = copy.deepcopy(options["head"]).to(dtype)
    return function, tensors, options


def asked(name, dtype):
    function, tensors, options = made(name, dtype)
    request = dispatch.request_of(getattr(parsimax, function), *tensors, **options)
    assert request is not None
    return request


def says(function, tensors, options):
    return parsimax.explain(function, *tensors, **options).partition("\n")[0].partition(": ")[2].partition(" ")[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_explain_says_is_what_runs(name, dtype, counted):
    for grad in (False, True):
        function, tensors, options = made(name, dtype, grad)
        said = says(function, tensors, options)
        assert not counted, "explain runs no kernel"
        getattr(parsimax, function)(*tensors, **options)
        kernel = KERNEL.get(asked(name, dtype).name)
        ran = kernel is not None and any(each.startswith(kernel) for each in counted)
        assert said == ("cpu" if ran else "torch"), (said, dict(counted))
        counted.clear()


TREES = {
    "sparsemap": (HIDDEN[:, :5], parsimax.structured.Tree()),
    "structured_topk": (Q[0, 0], parsimax.structured.Bits(), 3),
}


@pytest.mark.parametrize("name", TREES)
def test_what_explain_says_of_structures_is_what_runs(name, counted):
    scores, structure, *rest = TREES[name]
    kernel = KERNEL[name]
    assert parsimax.explain(name, scores, structure, *rest).startswith(f"{name}: cpu") and not counted
    getattr(parsimax, name)(scores, structure, *rest)
    assert counted[kernel] == 1
    with parsimax.use_kernels("torch"):
        getattr(parsimax, name)(scores, structure, *rest)
    assert counted[kernel] == 1
    own = parsimax.structured.Custom(lambda s: (s > 0).double(), kbest=lambda s, k: [(s > 0).double()][:k])
    assert "oracle in Python has no kernel" in parsimax.explain(name, scores, own, *rest)


@pytest.mark.parametrize("name", CALLS)
def test_nothing_runs_under_a_transform(name, counted):
    function, tensors, options = made(name, torch.float32)
    said = parsimax.explain(function, *tensors, **options)
    with forward_ad.dual_level():
        getattr(parsimax, function)(*tensors, **options)
        assert says(function, tensors, options) == "torch"
    assert not counted
    if ": cpu" in said.partition("\n")[0]:
        assert "under torch.func and forward-mode derivatives: torch" in said


GRAPHS = ["sparsemax", "entmax, tensor", "support", "entmax_loss, soft", "linear, smoothed", "attention rsoftmax"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_what_explain_says_of_a_graph_is_what_it_holds(name, dtype):
    function, tensors, options = made(name, dtype)
    said = parsimax.explain(function, *tensors, **options)
    request = asked(name, dtype)

    class Model(torch.nn.Module):
        def forward(self, *given):
            return getattr(parsimax, function)(*given, **options)

    graph = torch.export.export(Model(), tensors).graph
    operators = {str(node.target) for node in graph.nodes if "parsimax" in str(node.target)}
    operator = "entmax" if request.name in ("sparsemax", "entmax15", "softmax") else request.name
    operator = "entmax_soft_loss" if "soft" in name and request.name.endswith("_loss") else operator
    held = f"parsimax.{operator}.default" in operators
    if ": cpu" not in said.partition("\n")[0]:
        assert not held
    else:
        assert held == ("under torch.compile and torch.export: cpu" in said), (operators, said)


@pytest.mark.parametrize("name", CALLS)
def test_who_asks_for_kernels_gets_them_or_the_reasons(name, counted):
    function, tensors, options = made(name, torch.float32)
    reasons = backends.CPU.reasons_against(asked(name, torch.float32))
    with parsimax.use_kernels("cpu"):
        if not reasons:
            getattr(parsimax, function)(*tensors, **options)
            assert counted
            return
        assert says(function, tensors, options) == "an"  # an error
        with pytest.raises(RuntimeError, match="C\\+\\+ kernels were asked for, but ") as error:
            getattr(parsimax, function)(*tensors, **options)
    assert all(reason in str(error.value) for reason in reasons) and not counted


def test_who_asks_for_kernels_under_a_transform_gets_the_reason():
    with parsimax.use_kernels("cpu"), pytest.raises(RuntimeError, match="only the formula"):
        torch.func.vmap(parsimax.sparsemax)(X)
    with parsimax.use_kernels("cpu"), pytest.raises(RuntimeError, match="a tensor is on meta"):
        parsimax.entmax(X.to("meta"), 1.3)


def test_explain_of_what_has_no_choice():
    assert "nothing to choose" in parsimax.explain("support_size", SOFT)
    with pytest.raises(ValueError, match="no function is called 'entmx'; there are attention"):
        parsimax.explain("entmx", X)
    with parsimax.use_kernels("torch"):
        assert parsimax.explain("entmax", X) == "entmax: torch\n  cpu: not used: torch kernels were asked for"


def test_info_lists_every_function_with_a_choice_and_no_other():
    text = info.text()
    rows = {line.split()[0]: line.split()[1] for line in text.partition("function ")[2].splitlines()[1:]}
    with_kernels = {name for name, chosen in rows.items() if chosen == "cpu"}
    assert with_kernels == {*backends.CPU.serves, "attention"}
    assert {"multilabel_loss"} <= {name for name, chosen in rows.items() if chosen == "torch"}
    assert "set_step" not in rows and "replace_attention" not in rows


def test_info_has_a_row_for_every_back_end():
    """On a machine without a GPU too: what a declaration says does not depend on the machine."""
    lines = info.text().splitlines()
    for backend in backends.BACKENDS.values():
        (row,) = (line for line in lines if line.split()[:2] == [backend.name, backend.device])
        said = "cannot be used here" if backend.problem else "ready"
        assert f"{said}: kernels for {len(backend.serves)} functions" in row
        lacking = row.partition(", none for ")[2].split(", ")
        assert {*lacking} - {""} == {*info._samples()} - {*backend.serves}


def test_the_grid_has_every_function_with_a_choice():
    structures = {"sparsemap", "structured_topk"}  # tests/structured
    assert {*info._samples()} - structures <= {function for function, _, _ in CALLS.values()}


@pytest.fixture
def second(monkeypatch):
    """A back end of another device, declared as CONTRIBUTING says."""

    def declare(problem):
        added = backends.Backend(
            "gpu", "GPU kernels", "cuda", (torch.float32,), problem, {"sparsemax": (), "normmax": ()}
        )
        monkeypatch.setitem(backends.BACKENDS, "gpu", added)
        monkeypatch.setattr(dispatch, "CHOICES", ("auto", *backends.BACKENDS, "torch"))

    return declare


def test_kernels_of_another_device_are_not_replaced_by_these(second, counted):
    """Small tensors on the CPU take a shortcut, which must not pass by who asked for another back end."""
    second(None)
    with parsimax.use_kernels("gpu"):
        for function in (
            parsimax.softmax,
            parsimax.sparsemax,
            parsimax.entmax15,
            parsimax.entmax,
            parsimax.entmax_loss,
        ):
            with pytest.raises(RuntimeError, match="GPU kernels were asked for, but a tensor is on cpu"):
                function(*((X, Y) if function is parsimax.entmax_loss else (X,)))
    assert not counted
    parsimax.sparsemax(X)
    assert counted


def test_a_machine_without_a_device_is_not_told_to_miss_its_kernels(second, monkeypatch):
    """Warnings are errors here."""
    second("there is no GPU")
    monkeypatch.setattr(dispatch.process, "told", False)
    parsimax.normmax(X, 2.0)  # no C++ kernel: it is asked whether the GPU has one
    assert not dispatch.process.told


def test_every_condition_belongs_to_a_kernel():
    assert {*backends.CPU.serves} == {*KERNEL}
    for name in schemas.OPERATORS:
        assert name == "_isa" or getattr(torch.ops.parsimax, name).default is not None


def samples():
    """Arguments of every operator. What lies beyond the end of a support is not written, so supports are whole rows."""
    flat, near = X / 100, Q / 10
    p, g = parsimax.entmax15(X), normal(4, 9, seed=3).float()
    alpha = ALPHA[:, 0].double()
    yield "_entmax_fwd", (X, alpha, 0.0)
    yield "_entmax_fwd", (X, None, 1.5)
    yield "_entmax_bwd", (p, g, None, 1.5, False)
    yield "_entmax_bwd", (p, g, alpha, 0.0, True)
    learned = torch.tensor([1.1], dtype=torch.float64)
    wide = normal(4, 300).float() / 100
    yield "_entmax_learned_fwd", (wide, learned)
    q, state = torch.ops.parsimax._entmax_learned_fwd(wide, learned)
    yield "_entmax_learned_bwd", (q, wide, q, learned, state, True)
    yield "_support_fwd", (X, alpha, 0.0, 3)
    yield "_topk_sparsemax_fwd", (X, 3)
    yield "_rsoftmax_fwd", (X, None, 0.5)
    yield "_rsoftmax_bwd", (X, g, None, 0.5, None, True)
    yield "_rsoftmax_keep", (X, None, 0.5)
    yield "_rsoftmax_bwd", (X, g, None, 0.5, torch.ops.parsimax._rsoftmax_keep(X, None, 0.5)[1], True)
    yield "_tsoftmax_fwd", (X, None, 1.5)
    yield "_tsoftmax_bwd", (X, g, None, 1.5, True)
    yield "_sigsoftmax_fwd", (X,)
    yield "_sigsoftmax_bwd", (X, g)
    yield "_sparsegen_fwd", (X, None, 0.3)
    yield "_sparsegen_bwd", (parsimax.sparsegen(X, 0.3), g, None, 0.3, True)
    yield "_hourglass_fwd", (X, None, 2.0)
    yield "_hourglass_bwd", (X, parsimax.sparsehourglass(X, 2.0), g, None, 2.0, True)
    yield "_normmax_fwd", (X, None, 2.0)
    yield "_normmax_bwd", (parsimax.normmax(X, 2.0), g, None, 2.0, True)
    yield "_entmax_dx", (parsimax.entmax15(X), g, 1.5)
    ptr = torch.tensor([0, 4, 4, 9])
    yield "_segment_fwd", (X.t(), ptr, None, 1.5, 5)
    yield "_segment_bwd", (torch.ops.parsimax._segment_fwd(X.t(), ptr, None, 1.5, 5), g.t(), ptr, None, 1.5, 5, True)
    soft = torch.ops.parsimax._soft_loss_fwd(flat, SOFT, None, 1.5)
    yield "_soft_loss_fwd", (flat, SOFT, None, 1.5)
    yield "_soft_loss_bwd", (flat, SOFT, g[:, 0].contiguous(), None, 1.5, *soft[1:])
    yield "_budget_fwd", (X, None, 2.0)
    yield "_budget_bwd", (parsimax.budget_sparsemax(X, 2.0), g, True)
    yield "_loss_fwd", (flat, Y, alpha, 0.0, 0.1, torch.ones(9, dtype=torch.float64))
    _, *state = torch.ops.parsimax._loss_fwd(X, Y, None, 1.5, 0.0, None)
    yield "_loss_bwd", (X, Y, torch.ones(4), None, 1.5, 0.0, None, *state)
    yield "_linear_loss_fwd", (HIDDEN / 100, WEIGHT, None, Y, None, 1.5, 0.0, True)
    _, *state = torch.ops.parsimax._linear_loss_fwd(HIDDEN, WEIGHT, BIAS, Y, None, 1.5, 0.0, True)
    yield "_linear_loss_bwd", (torch.ones(4), HIDDEN, WEIGHT, BIAS, Y, None, 1.5, 0.0, *state)
    seed = torch.tensor(5)
    yield "_attention_fwd", (*near, None, None, 1.5, 0, False, 0.3, 0.0, None, True)
    yield "_attention_fwd", (*near, None, None, 1.5, 0, False, 0.3, 0.4, seed, True)
    own = torch.full((1, 2, 1, 1), 1.5, dtype=torch.float64)
    _, *state = torch.ops.parsimax._attention_fwd(*Q, None, own, 0.0, 0, False, 0.3, 0.4, seed, True)
    yield "_attention_bwd", (Q[0], *Q, None, own, 0.0, 0, False, 0.3, 0.4, seed, *state, False)
    table, sums = torch.ops.parsimax._plif_table(torch.zeros(4), 20.0), torch.zeros(8, 4, 2)
    places = (table, 0.1, 2.0)
    yield "_plif_table", (torch.zeros(4), 20.0)
    yield "_plif_slopes", (sums, torch.zeros(4), 20.0)
    yield "_pieces_fwd", (X, *places)
    yield "_pieces_bwd", (g, X, *places)
    yield "_head_rows", (X.clone(), Y, True)
    yield "_head_pieces", (X.clone(), Y, torch.ones(4), *places, sums.clone())
    yield "_head_norms", (X, Y, *places)
    yield "_head_gradient", (X.clone(), Y, torch.ones(4), torch.ones(4), *places, sums.clone())
    trees = normal(2, 3, 4)
    yield "_sparsemap", (trees, None, 3, 0, 0, None, None, None, 100, 100, 1e-11)
    codes, weights, counts, _ = torch.ops.parsimax._sparsemap(trees, None, 3, 0, 0, None, None, None, 99, 99, 1e-11)
    yield "_sparsemap", (trees, None, 3, 0, 0, codes, weights, counts, 100, 100, 1e-11)
    yield "_sparsemap", (normal(2, 70), None, 0, 0, 9, None, None, None, 100, 100, 1e-11)
    yield "_sparsemap", (normal(2, 3), normal(1, 8), 5, 0, 0, None, None, None, 100, 100, 1e-11)
    yield "_sparsemap_grad", (codes, counts, weights)
    yield "_kbest_structures", (trees, normal(1, 2, 4, 4), 1, 0, 0, 3)
    x = X.clone().requires_grad_()
    yield "entmax", (x, ALPHA, 0.0)
    yield "topk_sparsemax", (x, 3)
    yield "rsoftmax", (x, torch.full((1, 1), 0.5))
    yield "budget_sparsemax", (x, torch.full((1, 1), 2.0))
    yield "entmax_loss", (x, Y, None, 1.5, 0.1, None)
    yield "linear_entmax_loss", (HIDDEN.clone().requires_grad_(), WEIGHT, None, None, Y, 1.5, 0.0)
    for i, value in ((2, 3.0), (4, 0.5)):
        given = (None, None, value, i, True, 0.3, 0.4, seed)
        yield "_attention_fwd", (*near, *given, False)
        _, *state = torch.ops.parsimax._attention_fwd(*near, *given, True)
        yield "_attention_bwd", (Q[0], *near, *given, *state, False)
        given = (None, None, value, schemas.MAPPINGS[i], False, 0.3, 0.4, seed)
        yield "attention", (Q[0].clone().requires_grad_(), Q[1], Q[2], *given)
    for dropout in ((), (0.4, seed)):
        yield "entmax_attention", (Q[0].clone().requires_grad_(), Q[1], Q[2], None, None, 1.5, True, 0.3, *dropout)


SAMPLES = list(samples()) if library.AVAILABLE else []


def test_every_operator_has_a_sample():
    assert {*schemas.OPERATORS} <= {name for name, _ in SAMPLES}


@pytest.mark.parametrize("at", range(len(SAMPLES)), ids=lambda at: SAMPLES[at][0])
def test_opcheck(at):
    name, args = SAMPLES[at]
    torch.library.opcheck(getattr(torch.ops.parsimax, name).default, args)


def test_a_second_back_end_of_a_device_is_refused():
    slow = replace(backends.CPU, name="slow")
    with pytest.raises(ValueError, match="back end slow: cpu has the back end cpu already"):
        backends.by_device([backends.CPU, slow])


def test_a_reason_is_given_once():
    x = torch.zeros(2, device="meta")
    reasons = backends.CPU.reasons_against(backends.Request("entmax", backends.EAGER, (x, x), {}))
    assert reasons == ["a tensor is on meta, the C++ kernels run on cpu"]
