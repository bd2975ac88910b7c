"""LP-SparseMAP against SparseMAP over listed vertices, a quadratic program, and derivatives by differences."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

from cases import normal
from parsimax import FactorGraph, sparsemap, sparsemax
from parsimax import structured as st
from structures import TWINS, all_bits, picked

CLOSE = {"rtol": 0, "atol": 1e-7}
TIGHT = 1e-11

# name: (factor, which of all bit vectors it allows)
LOGIC = {
    "xor": (st.Xor(), lambda z: sum(z) == 1),
    "at most one": (st.AtMostOne(), lambda z: sum(z) <= 1),
    "or": (st.Or(), lambda z: sum(z) >= 1),
    "budget": (st.Budget(2), lambda z: sum(z) <= 2),
    "or out": (st.OrOut(), lambda z: max(z[:-1]) == z[-1]),
}
N = 4


def listed(allowed):
    """The structure of all bit vectors that are allowed, by looking at each."""
    table = torch.tensor([z for z in all_bits(N) if allowed(z)]).double()
    return st.Custom(lambda s: table[picked(table, s[None])[0].argmax()])


@pytest.mark.parametrize("negated", [None, [True, False, False, True]], ids=["plain", "negated"])
@pytest.mark.parametrize("name", LOGIC)
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_a_constraint_is_sparsemap_over_what_it_allows(name, negated, scale):
    factor, allowed = LOGIC[name]
    flip = negated or [False] * N
    scores = scale * normal(20, N) + 0.3
    found = FactorGraph(N).add(factor, range(N), negated=negated).solve(scores, tolerance=1e-9)
    twin = listed(lambda z: allowed([bit != no for bit, no in zip(z, flip, strict=True)]))
    torch.testing.assert_close(found.marginals, sparsemap(scores, twin).marginals, **CLOSE)
    assert found.residual.max() < 1e-9 and (found.marginals >= 0).all() and (found.marginals == 0).any()


@pytest.mark.parametrize(
    "name", ["budget", "exactly", "each", "chain", "permutation", "assignment", "single root", "dense", "custom"]
)
def test_one_factor_is_sparsemap(name):
    twin = TWINS[name]
    scores = twin.scores(4, 1.0)
    unary, *extra = scores if isinstance(scores, tuple) else (scores,)
    index = torch.arange(unary[0].numel()).view(unary.shape[1:])
    if isinstance(twin.structure, st.Tree):  # no variables for words that are their own heads
        own = torch.nn.functional.pad(torch.eye(len(index), dtype=torch.bool), (1, 0))
        kept = (~own).flatten().nonzero()[:, 0]
        index = torch.where(own, -1, (~own).flatten().cumsum(0).view(own.shape) - 1)
        flat = unary.flatten(1)[:, kept]
    else:
        kept, flat = slice(None), unary.flatten(1)
    graph = FactorGraph(flat.shape[1]).add(twin.structure, index)
    found = graph.solve(flat, *(e.unsqueeze(1) for e in extra))
    # A variable is on with probability clip(η): the scores of bits are (1 + t)/2.
    same = 2 * unary - 1 if twin.paired else unary
    truth = sparsemap((same, *extra) if extra else same, twin.structure).marginals
    torch.testing.assert_close(found.marginals, truth.flatten(1)[:, kept], **CLOSE)


def test_pairs_on_a_line_are_a_chain():
    """Without cycles the relaxation is exact."""
    length, scores, pairs = 5, normal(6, 5), 2 * normal(6, 4, seed=1)
    graph = FactorGraph(length).add(st.Pair(), [[i, i + 1] for i in range(length - 1)])
    table = torch.tensor(all_bits(length)).double()
    both = table[:, 1:] * table[:, :-1]

    def oracle(given):
        unary, extra = given
        at = (table @ unary + both @ extra).argmax()
        return table[at], both[at]

    truth = sparsemap((scores, pairs), st.Custom(oracle)).marginals
    torch.testing.assert_close(graph.solve(scores, pairs).marginals, truth, **CLOSE)


def test_rows_and_columns_are_an_assignment():
    scores, at = normal(5, 4, 4), torch.arange(16).view(4, 4)
    found = FactorGraph(16).add(st.Xor(), at).add(st.Xor(), at.T).solve(scores.flatten(1)).marginals
    torch.testing.assert_close(found.view(5, 4, 4), sparsemap(scores, st.Assignment()).marginals, **CLOSE)


def grid(rows, columns):
    at = torch.arange(rows * columns).view(rows, columns)
    across, down = (at[:, :-1], at[:, 1:]), (at[:-1], at[1:])
    return torch.cat([torch.stack([a.flatten(), b.flatten()], 1) for a, b in (across, down)])


def quadratic_program(scores, pairs, edges, others):
    """By a general solver over the probabilities of every factor's vertices; ``others``: (index, vertices)."""
    optimize = pytest.importorskip("scipy.optimize")
    numpy = pytest.importorskip("numpy")
    n = len(scores)
    corners = numpy.array([*itertools.product((0, 1), repeat=2)], dtype=float)
    blocks = [(e, corners, corners.prod(1) * w) for e, w in zip(edges.tolist(), pairs.tolist(), strict=True)]
    blocks += [(i, numpy.array(v, dtype=float), numpy.zeros(len(v))) for i, v in others]
    size = n + sum(len(v) for _, v, _ in blocks)
    linear, rows, right, at = [scores.numpy()], [], [], n
    for index, vertices, extra in blocks:
        linear.append(extra)
        span = slice(at, at + len(vertices))
        row = numpy.zeros(size)
        row[span] = 1
        rows.append(row)
        right.append(1.0)
        for i, variable in enumerate(index):
            row = numpy.zeros(size)
            row[span] = vertices[:, i]
            row[variable] -= 1
            rows.append(row)
            right.append(0.0)
        at = span.stop
    c, a, b = numpy.concatenate(linear), numpy.array(rows), numpy.array(right)
    only = numpy.arange(size) < n
    out = optimize.minimize(
        lambda x: (x[:n] @ x[:n]) / 2 - c @ x,
        numpy.full(size, 0.3),
        jac=lambda x: x * only - c,
        bounds=[(0, 1)] * size,
        constraints={"type": "eq", "fun": lambda x: a @ x - b, "jac": lambda x: a},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return torch.from_numpy(out.x[:n])


def loopy():
    edges = grid(2, 3)
    graph = FactorGraph(6).add(st.Pair(), edges).add(st.Budget(3), range(6)).add(st.Xor(), [[0, 4, 2]])
    return graph, edges


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_a_graph_with_cycles_is_the_quadratic_program(scale):
    graph, edges = loopy()
    scores, pairs = scale * normal(3, 6), scale * normal(3, len(edges), seed=1)
    found = graph.solve(scores, pairs)
    others = [(range(6), [z for z in all_bits(6) if sum(z) <= 3]), ([0, 4, 2], [z for z in all_bits(3) if sum(z) == 1])]
    for item in range(3):
        truth = quadratic_program(scores[item], pairs[item], edges, others)
        torch.testing.assert_close(found.marginals[item], truth, rtol=0, atol=1e-6)


def test_a_knapsack_is_the_nearest_point_under_its_capacity():
    scores, costs = normal(30, 3) + 0.5, torch.tensor([1.0, 2.0, 0.5]).double()
    found = FactorGraph(3).add(st.Knapsack(costs, 1.2), range(3)).solve(scores).marginals
    assert (found @ costs <= 1.2 + 1e-12).all() and (found >= 0).all() and (found <= 1).all()
    # Nearest: no other point of a fine grid under the capacity is on the near side.
    points = torch.tensor([*itertools.product(torch.linspace(0, 1, 9).tolist(), repeat=3)]).double()
    points = points[points @ costs <= 1.2]
    gain = torch.einsum("bd,bpd->bp", scores - found, points[None] - found[:, None])
    assert gain.max() < 1e-7
    loose = scores.clamp(0, 1) @ costs <= 1.2
    assert 0 < loose.sum() < 30
    torch.testing.assert_close(found[loose], scores[loose].clamp(0, 1), **CLOSE)


def differentiated(graph, *inputs):
    """gradcheck along random directions: a solution to 1e-11 takes its time."""
    torch.manual_seed(0)
    leaves = tuple(x.requires_grad_() for x in inputs)
    for _ in range(2):
        assert gradcheck(
            lambda *given: graph.solve(*given, tolerance=TIGHT).marginals, leaves, atol=1e-4, fast_mode=True
        )


@pytest.mark.parametrize("name", LOGIC)
def test_derivatives_of_constraints(name):
    graph = FactorGraph(N).add(LOGIC[name][0], range(N), negated=[False, True, False, False])
    for shift in (-0.4, 0.3, 0.9):
        differentiated(graph, 0.4 * normal(3, N, seed=3) + shift)


def test_derivatives_of_a_knapsack():
    graph = FactorGraph(3).add(st.Knapsack([1.0, 2.0, 0.5], 1.2), range(3))
    differentiated(graph, normal(6, 3) + 0.5)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_derivatives_of_a_graph_with_cycles(scale):
    graph, edges = loopy()
    differentiated(graph, scale * normal(2, 6), scale * normal(2, len(edges), seed=1))


def test_derivatives_of_structures_as_factors():
    at = torch.arange(6).view(3, 2)
    graph = FactorGraph(6).add(st.Chain(), at).add(st.Budget(1), at[:, 1])
    differentiated(graph, 0.5 * normal(2, 6), 0.5 * normal(2, 1, 2, 2, 2, seed=1))


def neighbours(n):
    """Bits in a row with a score for each pair that is on, by an oracle that looks at all vectors."""
    table = torch.tensor(all_bits(n)).double()
    both = table[:, 1:] * table[:, :-1]

    def oracle(given):
        at = (table @ given[0] + both @ given[1]).argmax()
        return table[at], both[at]

    return st.Custom(oracle, extra_dims=1)


def test_a_custom_structure_with_extra_scores_is_pairs_on_a_line():
    scores, pairs = normal(2, 4).requires_grad_(), normal(2, 3, seed=1).requires_grad_()
    line = FactorGraph(4).add(st.Pair(), [[0, 1], [1, 2], [2, 3]]).solve(scores, pairs, tolerance=TIGHT).marginals
    graph = FactorGraph(4).add(neighbours(4), range(4))
    mine = graph.solve(scores, pairs.unsqueeze(1), tolerance=TIGHT).marginals
    torch.testing.assert_close(mine, line, **CLOSE)
    mix = normal(2, 4, seed=2)
    grads = [torch.autograd.grad((mix * each).sum(), (scores, pairs)) for each in (mine, line)]
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-6)


def test_tables_with_the_scores_of_pairs_are_pairs():
    scores, pairs = normal(3, 6), normal(3, 7, seed=1)
    table = torch.zeros(3, 7, 2, 2).double()
    table[..., 1, 1] = pairs
    with_pairs = FactorGraph(6).add(st.Pair(), grid(2, 3)).solve(scores, pairs).marginals
    with_tables = FactorGraph(6).add(st.Dense(), grid(2, 3)).solve(scores, table).marginals
    torch.testing.assert_close(with_tables, with_pairs, **CLOSE)


def test_a_table_negated_is_the_table_turned_around():
    scores, table = normal(3, 3), normal(1, 2, 2, 2, seed=1)
    turned = FactorGraph(3).add(st.Dense(), range(3)).solve(scores, table.flip(2)).marginals
    negated = FactorGraph(3).add(st.Dense(), range(3), negated=[False, True, False]).solve(scores, table).marginals
    torch.testing.assert_close(negated, turned, **CLOSE)


def test_derivatives_of_tables():
    graph = FactorGraph(5).add(st.Dense(), [[0, 1, 2], [2, 3, 4]]).add(st.Budget(2), range(5))
    differentiated(graph, 0.5 * normal(2, 5), 0.5 * normal(2, 2, 2, 2, 2, seed=1))


def test_derivatives_where_the_active_set_would_not_span_the_face():
    graph = FactorGraph(64).add(st.Bits(at_most=20), range(64)).add(st.Bits(at_least=12), range(32))
    differentiated(graph, normal(2, 64))


@pytest.mark.parametrize("negated", [None, [False, False, True, False]], ids=["plain", "negated"])
@pytest.mark.parametrize("name", [*LOGIC, "chain", "tree", "dense"])
def test_a_forbidden_variable_is_zero_with_zero_gradient(name, negated):
    """As if it had a score so low that it is never worth its place."""
    extras = ()
    if name == "chain":
        graph, extras = (
            FactorGraph(N).add(st.Chain(), [[0, 1], [2, 3]], negated=negated and [negated[:2], negated[2:]]),
            (normal(1, 1, 2, 2, seed=4),),
        )
    elif name == "tree":
        graph = FactorGraph(N).add(st.Tree(), [[0, -1, 1], [2, 3, -1]])
    elif name == "dense":
        graph, extras = FactorGraph(N).add(st.Dense(), range(N), negated=negated), (normal(1, 2, 2, 2, 2, seed=4),)
    else:
        graph = FactorGraph(N).add(LOGIC[name][0], range(N), negated=negated)
    scores = 0.5 * normal(6, N) + 0.2
    scores[2, 2] = -math.inf
    low = torch.where(scores.isinf(), -30.0, scores).requires_grad_()
    scores.requires_grad_()
    found = graph.solve(scores, *extras)
    assert found.marginals[2, 2] == 0 and found.marginals.isfinite().all() and found.residual.max() < 1e-8
    truth = graph.solve(low, *extras)
    torch.testing.assert_close(found.marginals, truth.marginals, rtol=0, atol=1e-6)
    for each in (found, truth):
        (each.marginals * normal(6, N, seed=3)).sum().backward()
    assert scores.grad[2, 2] == 0
    torch.testing.assert_close(scores.grad, low.grad, rtol=0, atol=1e-6)


def test_a_forbidden_pair_is_never_both():
    graph = FactorGraph(2).add(st.Pair(), [0, 1])
    scores, pair = (normal(20, 2) + 0.5).requires_grad_(), torch.tensor([-math.inf]).double().requires_grad_()
    found = graph.solve(scores, pair).marginals
    torch.testing.assert_close(found, FactorGraph(2).add(st.AtMostOne(), [0, 1]).solve(scores).marginals, **CLOSE)
    found.square().sum().backward()
    assert pair.grad == 0 and scores.grad.isfinite().all()


def test_items_types_and_shared_scores():
    graph, edges = loopy()
    scores, pairs = normal(2, 3, 6), normal(len(edges), seed=1)
    found = graph.solve(scores.float(), pairs.float())
    assert found.marginals.shape == (2, 3, 6) and found.marginals.dtype == torch.float32
    assert found.residual.shape == (2, 3) and found.residual.max() < 1e-8
    one = graph.solve(scores[1, 2], pairs)
    torch.testing.assert_close(one.marginals, graph.solve(scores, pairs).marginals[1, 2], **CLOSE)
    bad = scores.clone()
    bad[0, 1, 0] = math.nan
    spoiled = graph.solve(bad.requires_grad_(), pairs)
    assert (
        spoiled.marginals[0, 1].isnan().all()
        and spoiled.marginals.isnan().sum() == 6
        and spoiled.residual[0, 1].isnan()
    )
    spoiled.marginals.sum().backward()
    assert bad.grad[0, 1].isnan().all() and bad.grad[1].isfinite().all()
    short = graph.solve(scores, pairs, max_iter=2)
    assert short.iterations == 2 and short.residual.max() > 1e-3


@pytest.mark.parametrize("shared", [True, False])
def test_extra_scores_with_nan_have_a_gradient_of_nan(shared):
    graph, edges = loopy()
    scores, pairs = normal(3, 6), normal(*(() if shared else (3,)), len(edges), seed=1)
    pairs[..., 0][() if shared else 1] = math.nan
    scores.requires_grad_(), pairs.requires_grad_()
    found = graph.solve(scores, pairs).marginals
    bad = torch.tensor([shared, True, shared])
    assert torch.equal(found.isnan().all(-1), bad) and found[~bad].isfinite().all()
    found.square().sum().backward()
    assert torch.equal(scores.grad.isnan().any(-1), bad)
    assert pairs.grad.isnan().any() if shared else torch.equal(pairs.grad.isnan().any(-1), bad)


def test_a_part_that_is_no_variable_is_in_no_structure():
    at = torch.tensor([[0, 1, -1], [2, -1, 3]])
    scores, moves = 2 * normal(5, 4), normal(5, 1, 3, 3, seed=1)
    whole = torch.full((5, 2, 3), -math.inf, dtype=torch.float64)
    whole[:, at >= 0] = scores
    found = FactorGraph(4).add(st.Assignment(), at).solve(scores).marginals
    torch.testing.assert_close(found, sparsemap(whole, st.Assignment()).marginals[:, at >= 0], **CLOSE)
    found = FactorGraph(4).add(st.Chain(), at).solve(scores, moves.unsqueeze(1)).marginals
    torch.testing.assert_close(found, sparsemap((whole, moves), st.Chain()).marginals[:, at >= 0], **CLOSE)
    for negated in ([False] * 5, [True, False, False, False, True]):
        graph = FactorGraph(4).add(st.Bits(1, 2), [0, 1, 2, 3, -1], negated=negated)
        expected = FactorGraph(4).add(st.Bits(1, 2), range(4), negated=negated[:4]).solve(scores)
        torch.testing.assert_close(graph.solve(scores).marginals, expected.marginals, **CLOSE)
        assert gradcheck(lambda s, graph=graph: graph.solve(s).marginals, (scores.clone().requires_grad_(),))


def test_a_budget_beyond_all_numbers():
    scores = normal(3, N)
    found = FactorGraph(N).add(st.Budget(2**70), range(N)).solve(scores).marginals
    torch.testing.assert_close(found, scores.clamp(0, 1), **CLOSE)


def test_no_places():
    """A grid of one cell has no edges."""
    edges, scores = torch.zeros(0, 2, dtype=torch.long), normal(3, N).requires_grad_()
    coupling = torch.zeros(3, 0, requires_grad=True)
    graph = FactorGraph(N).add(st.Pair(), edges).add(st.Xor(), range(N)).add(st.Bits(), edges)
    found = graph.solve(scores, coupling).marginals
    torch.testing.assert_close(found, sparsemax(scores), **CLOSE)
    found.square().sum().backward()
    assert scores.grad.isfinite().all() and coupling.grad.shape == (3, 0)


def test_a_second_derivative_is_refused():
    scores = normal(1, N).requires_grad_()
    found = FactorGraph(N).add(st.Xor(), range(N)).solve(scores).marginals
    (first,) = torch.autograd.grad(found.square().sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


ERRORS = {
    "variables": (lambda: FactorGraph(0), "1 or more, got 0"),
    "index": (lambda: FactorGraph(3).add(st.Xor(), [0, 3]), r"variables 0 to 2, got \[\[0, 3\]\]"),
    "mask": (lambda: FactorGraph(3).add(st.Xor(), [True, False, True]), r"are indices .* \(3,\) of torch.bool"),
    "list": (lambda: FactorGraph(2).add(st.Xor(), [0, 1]).solve([0.0, 1.0]), "floating point, got a list of 2"),
    "pair": (lambda: FactorGraph(3).add(st.Pair(), [0, 1, 2]), r"Pair\(\) takes 2 variables, got 3"),
    "knapsack": (lambda: FactorGraph(3).add(st.Knapsack([1.0], 1), [0, 1]), "takes 1 variables, got 2"),
    "capacity": (lambda: st.Knapsack([1.0], -1), "0 or more, got -1"),
    "budget": (lambda: st.Budget(-1), "0 or more, got -1"),
    "factor": (lambda: FactorGraph(3).add("xor", [0, 1]), "got 'xor'"),
    "shape": (lambda: FactorGraph(4).add(st.Assignment(), [0, 1]), r"2 or 3 dimensions, got \(2,\)"),
    "free": (
        lambda: FactorGraph(3).add(st.Xor(), [0, 1]).solve(torch.zeros(3)),
        r"no factor holds the variables \[2\]",
    ),
    "scores": (lambda: FactorGraph(2).add(st.Xor(), [0, 1]).solve(torch.zeros(3)), r"\(…, 2\) .* got \(3,\)"),
    "extras": (lambda: FactorGraph(2).add(st.Pair(), [0, 1]).solve(torch.zeros(2)), "1 factors have scores .* got 0"),
    "extra": (
        lambda: FactorGraph(2).add(st.Pair(), [0, 1]).solve(torch.zeros(2), torch.zeros(3)),
        r"scores of Pair\(\) are \(1,\) or \(1,\), got \(3,\)",
    ),
    "number": (
        lambda: FactorGraph(2).add(st.Pair(), [0, 1]).solve(torch.zeros(2), 0.5),
        r"the scores of Pair\(\) are a floating point tensor, got float",
    ),
    "whole numbers": (
        lambda: FactorGraph(2).add(st.Pair(), [0, 1]).solve(torch.zeros(2), torch.ones(1).long()),
        r"the scores of Pair\(\) are a floating point tensor, got torch.int64",
    ),
    "iterations": (
        lambda: FactorGraph(2).add(st.Xor(), [0, 1]).solve(torch.zeros(2), max_iter=2.5),
        "max_iter is a whole number, 1 or more, got 2.5",
    ),
    "tolerance": (
        lambda: FactorGraph(2).add(st.Xor(), [0, 1]).solve(torch.zeros(2), tolerance="x"),
        "tolerance is a number above 0, got 'x'",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, words = ERRORS[name]
    with pytest.raises((ValueError, TypeError), match=words):
        call()
