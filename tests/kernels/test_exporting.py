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
onnx = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:onnxscript", "ignore::FutureWarning", "ignore::UserWarning"
)
BATCH = torch.export.Dim("batch")
LENGTH = torch.export.Dim("length", min=4)
KEYS = torch.export.Dim("keys", min=4)
SMALL, NEW = (3, 7), [(5, 40), (2, 300)]  # recorded with the first, run with the others

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
# One parameter a row, given to the graph: it was recorded with another value.
GIVEN = {
    "entmax": (
        0.3,
        0.9,
        1.0,
        1 + 1e-9,
        1 + 1e-6,
        1.0001,
        1.002,
        1.1,
        1.5,
        1.9,
        2.0,
        2.0001,
        2.1,
        2.5,
        3,
        4,
        6,
        10,
        30,
        math.inf,
    ),
    "normmax": (1.01, 1.1, 1.5, 2, 3, 10, 100),
    "budget_sparsemax": (0, 0.1, 0.5, 1, 1.5, 2.3, 5, 17.2, 400),
    "tsoftmax": (0.1, 1, math.inf),
    "rsoftmax": (0, 0.3, 0.5, 1),
    "sparsegen": (-2, 0, 0.5, 0.9),
    "sparsehourglass": (0.1, 1, 10),
}


def draw(rows, length):
    """Rows of several spreads, one with forbidden entries."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(rows, length, generator=generator) * torch.tensor([0.3, 1.0, 5.0, 2.0, 0.01])[:rows, None]
    x[1, ::3] = -math.inf
    return x


def structured(length):
    """What is hard for a search: leaders over plateaus, heavy tails, ladders, ties, forbidden entries."""
    generator = torch.Generator().manual_seed(length)
    noise, place = torch.randn(length, generator=generator), torch.arange(length)
    share = torch.rand(length, generator=generator).clamp(min=1e-6)
    rows = [noise * spread for spread in (0.01, 0.3, 1, 5, 30)]
    for gap in (1e-6, 1e-3, 0.1, 0.3, 0.5, 0.9, 1.0, 1.5, 2.0, 5.0, 12.0):
        for leaders in (1, 2):
            plateau = torch.where(place < leaders, 0.0, -gap)
            rows += [plateau, plateau + 1e-4 * noise]
    rows += [torch.zeros(length), share.log(), -1 / share, torch.tan(math.pi * (share - 0.5)), -4 * share.sqrt()]
    rows += [-0.01 * place, -0.3 * place, -place.float().log1p(), -0.1 * place.float().log1p()]
    rows += [-(2.0**-place), 2.0**-place, torch.where(place % 3 == 0, -math.inf, noise)]
    return torch.stack(rows)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def traced(function, *given):
    with torch.no_grad():
        graph = torch.jit.trace(Model(function), given, check_trace=False)  # else traced twice; it is compared below
    assert "parsimax::" not in str(graph.inlined_graph)
    return graph


def exported(function, *given, sizes):
    """What onnxruntime makes of it, as a function of tensors."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    with torch.no_grad():
        program = torch.onnx.export(Model(function), given, dynamo=True, dynamic_shapes=(sizes,), verbose=False)
    domains = {node.domain for node in program.model_proto.graph.node}
    assert domains == {""}, f"operators beside those of ONNX: {domains}"
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    names = [one.name for one in session.get_inputs()]

    def run(*tensors):
        given = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
        found = [torch.from_numpy(one) for one in session.run(None, given)]
        return found if len(found) > 1 else found[0]

    return run


def assert_same(theirs, ours, name):
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5, msg=lambda text: f"{name}: {text}")
    # What softmax and its neighbours have around the least normal number the kernels may round to 0.
    both = torch.cat([theirs.flatten(), ours.flatten()])
    low = 1e-36 if (both[both > 0] < 1e-30).any() else 0
    other = (theirs <= low) != (ours <= low)  # a score at the threshold itself may be a rounding above it
    assert theirs[other].max(ours[other]).lt(1e-7).all(), f"{name}: zeros at other places"


def assert_same_parameters(name, graph):
    """``graph(x, parameter)`` against the mapping, for every hard row with every parameter."""
    for length in (5, 40, 300):
        x, values = structured(length), torch.tensor(GIVEN[name], dtype=torch.float32)
        rows, parameter = x.repeat(len(values), 1), values.repeat_interleave(len(x)).unsqueeze(-1)
        assert_same(graph(rows, parameter), getattr(parsimax, name)(rows, parameter), f"{name} of {length}")


def test_every_mapping_is_here():
    registry = parsimax.mappings.REGISTRY
    assert set(FIXED) == set(registry)
    assert set(GIVEN) == {name for name, entry in registry.items() if entry.setting and entry.setting.continuous}


@pytest.mark.parametrize("name", FIXED)
def test_trace(name):
    graph = traced(FIXED[name], draw(*SMALL))
    for size in [SMALL, *NEW]:
        assert_same(graph(draw(*size)), FIXED[name](draw(*size)), name)


@pytest.mark.parametrize("name", GIVEN)
def test_trace_of_given_parameters(name):
    parameter = torch.full((SMALL[0], 1), GIVEN[name][2], dtype=torch.float32)
    assert_same_parameters(name, traced(getattr(parsimax, name), draw(*SMALL), parameter))


@onnx
def test_onnx():
    """One graph of the mappings without a parameter, which the next test gives to the others."""
    alone = {name: function for name, function in FIXED.items() if name not in GIVEN}
    graph = exported(
        lambda x: tuple(function(x) for function in alone.values()), draw(*SMALL), sizes=({0: BATCH, 1: LENGTH},)
    )
    for size in [SMALL, *NEW]:
        x = draw(*size)
        for theirs, (name, function) in zip(graph(x), alone.items(), strict=True):
            assert_same(theirs, function(x), name)


@onnx
def test_onnx_of_given_parameters():
    parameters = [torch.full((SMALL[0], 1), grid[2], dtype=torch.float32) for grid in GIVEN.values()]
    graph = exported(
        lambda x, *given: tuple(getattr(parsimax, name)(x, one) for name, one in zip(GIVEN, given, strict=True)),
        draw(*SMALL),
        *parameters,
        sizes=({0: BATCH, 1: LENGTH}, *({0: BATCH} for _ in GIVEN)),
    )
    for place, name in enumerate(GIVEN):

        def one(x, parameter, place=place):
            given = [torch.ones_like(parameter) / 2 for _ in GIVEN]
            given[place] = parameter
            return graph(x, *given)[place]

        assert_same_parameters(name, one)


LOSSES = {
    "entmax15_loss": parsimax.entmax15_loss,
    "sparsemax_loss": parsimax.sparsemax_loss,
    "entmax_loss": lambda x, t: parsimax.entmax_loss(x, t, 1.3, label_smoothing=0.1, reduction="none"),
    "normmax": lambda x, t: parsimax.fenchel_young_loss(x, t, "normmax", alpha=2.0, reduction="sum"),
    "sparsegen": lambda x, t: parsimax.fenchel_young_loss(x, t, "sparsegen", lam=0.3, label_smoothing=0.2),
}


def targets(rows, classes):
    """Scores and class indices, one of them to be ignored."""
    generator = torch.Generator().manual_seed(classes)
    index = torch.randint(classes, (rows,), generator=generator)
    index[-1] = -100
    return 2 * torch.randn(rows, classes, generator=generator), index


def every_loss(x, t):
    return tuple(loss(x, t) for loss in LOSSES.values())


def assert_same_losses(graph):
    for size in NEW:
        for theirs, (name, loss) in zip(graph(*targets(*size)), LOSSES.items(), strict=True):
            torch.testing.assert_close(
                theirs, loss(*targets(*size)), rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_trace_of_losses():
    assert_same_losses(traced(every_loss, *targets(*SMALL)))


@onnx
def test_onnx_of_losses():
    assert_same_losses(exported(every_loss, *targets(*SMALL), sizes=({0: BATCH, 1: LENGTH}, {0: BATCH})))


def attend(q, k, v, mask):
    """One α a head, above 2 too, causal, of the queries alone, with fewer heads of keys; another mapping, masked."""
    alpha = torch.tensor([1.0, 1.3, 3.0]).view(3, 1, 1)
    return (
        parsimax.entmax_attention(q, q[:, :1], q[:, :1], alpha=alpha, is_causal=True, enable_gqa=True),
        parsimax.attention(q, k, v, mask, mapping="rsoftmax", rate=0.5),
    )


def sequences(batch, queries, keys):
    generator = torch.Generator().manual_seed(keys)
    q, k, v = (torch.randn(batch, 3, n, 8, generator=generator) for n in (queries, keys, keys))
    return q, k, v, torch.rand(batch, 1, queries, keys, generator=generator) > 0.3


def assert_same_attention(graph):
    for size in [(4, 9, 13), (2, 31, 6)]:
        for theirs, ours in zip(graph(*sequences(*size)), attend(*sequences(*size)), strict=True):
            torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


def test_trace_of_attention():
    assert_same_attention(traced(attend, *sequences(2, 5, 7)))


@onnx
def test_onnx_of_attention():
    sizes = ({0: BATCH, 2: LENGTH}, {0: BATCH, 2: KEYS}, {0: BATCH, 2: KEYS}, {0: BATCH, 2: LENGTH, 3: KEYS})
    assert_same_attention(exported(attend, *sequences(2, 5, 7), sizes=sizes))


class Two(torch.nn.Module):
    """One mapping with a kernel and one without, beside a product that a compiler can work on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(7) + 0.1)

    def forward(self, x):
        scores = x @ self.weight
        return parsimax.entmax(scores, 1.3), parsimax.normmax(scores, 3.0)


def programmed(kernels):
    with torch.no_grad(), parsimax.use_kernels(kernels):
        return torch.export.export(Two(), (draw(*SMALL).clamp(min=-9),), dynamic_shapes=({0: BATCH},))


def test_a_program_says_what_it_holds():
    said = parsimax.explain(programmed("torch"))
    assert "entmax_root: the search of a formula" in said and "normmax_root: the search of a formula" in said
    plain = torch.export.export(torch.nn.Softmax(-1), (torch.zeros(2, 3),))
    assert "nothing of parsimax" in parsimax.explain(plain)


@pytest.mark.skipif(parsimax.kernels.library.PROBLEM is not None, reason="the kernels were not built")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, about names of its own
def test_aot_inductor(tmp_path):
    """A package holds what the program held, and agrees on batches it never saw."""
    program = programmed("auto")
    said = parsimax.explain(program)
    assert "entmax: the kernel" in said and "normmax_root: the search" in said
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "two.pt2"))
    run = torch._inductor.aoti_load_package(package)
    x = torch.randn(11, 7)
    for theirs, ours in zip(run(x), Two()(x), strict=True):
        assert_same(theirs, ours.detach(), "package")
