"""SparseMAP against all structures listed, a quadratic program on them, and derivatives by differences."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import parsimax
from cases import normal
from parsimax import sparsemap
from parsimax import structured as st
from parsimax.kernels import library
from structures import TWINS

EVERY = [(name, rule) for name, twin in TWINS.items() for rule in twin.structure.rules]
both_ways = pytest.mark.parametrize("kernels", ["cpu", "torch"], indirect=True)
GAP = 1e-10


def every(names=EVERY):
    return pytest.mark.parametrize(("name", "rule"), names, ids=[f"{n}-{r}" for n, r in names])


def first_of(scores, items):
    return tuple(s[:items] for s in scores) if isinstance(scores, tuple) else scores[:items]


@both_ways
@every()
@pytest.mark.parametrize("scale", [0.3, 1, 3])
def test_no_structure_of_all_gains(name, rule, scale, kernels):
    twin = TWINS[name]
    scores = twin.scores(20 if kernels == "cpu" else 3, scale)
    found = sparsemap(scores, twin.structure, rule=rule)
    p = found.probabilities
    assert (p > 0).all() and (found.counts > 0).all() and found.structures.shape[0] == found.counts.sum()
    torch.testing.assert_close(found.expectation(torch.ones_like(p)), torch.ones_like(found.gap), rtol=0, atol=1e-12)
    assert twin.gap(scores, found).max() <= GAP
    assert found.gap.max() <= GAP
    marginals = torch.einsum("bs,s...->b...", twin.dense(found), twin.parts)
    torch.testing.assert_close(found.marginals, marginals, rtol=0, atol=1e-12)


def quadratic_program(twin, scores, steps=2000):
    """Accelerated projected gradient over the whole list of structures, by the projection onto the simplex."""
    unary, more = scores if isinstance(scores, tuple) else (scores, None)
    parts = twin.parts.flatten(1)
    theta = twin.values((twin.penalised(unary), more) if more is not None else twin.penalised(unary))
    gram = parts @ parts.T
    rate = 1 / torch.linalg.matrix_norm(gram, 2)
    p = y = torch.full_like(theta, 1 / len(parts))
    t = 1.0
    for _ in range(steps):
        following = parsimax.sparsemax(y + rate * (theta - y @ gram))
        t, before = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
        restart = ((y - following) * (following - p)).sum(1, keepdim=True) > 0
        y = following + torch.where(restart, 0, (before - 1) / t) * (following - p)
        p = following
    return (p @ parts).view(-1, *twin.parts.shape[1:])


@pytest.mark.parametrize("name", TWINS)
def test_marginals_are_those_of_a_quadratic_program(name):
    twin = TWINS[name]
    scores = twin.scores(3, 1.0)
    found = sparsemap(scores, twin.structure)
    torch.testing.assert_close(found.marginals, quadratic_program(twin, scores), rtol=0, atol=1e-6)


@every()
def test_kernel_and_reference_are_the_same(name, rule):
    twin = TWINS[name]
    scores = twin.scores(4, 1.0)
    mine = sparsemap(scores, twin.structure, rule=rule)
    with parsimax.use_kernels("torch"):
        plain = sparsemap(scores, twin.structure, rule=rule)
    assert torch.equal(mine.structures, plain.structures) and torch.equal(mine.counts, plain.counts)
    torch.testing.assert_close(mine.probabilities, plain.probabilities, rtol=0, atol=1e-12)


@both_ways
@every()
def test_derivatives(name, rule, kernels):
    twin = TWINS[name]
    scores = twin.scores(2 if kernels == "cpu" else 1, 0.7)
    many = isinstance(scores, tuple)
    inputs = tuple(s.requires_grad_() for s in (scores if many else (scores,)))
    mix = normal(len(twin.codes), seed=5)

    def both(*given):
        found = sparsemap(given if many else given[0], twin.structure, rule=rule)
        # A smooth function of what is returned, so that the second derivative is not zero.
        loss = found.expectation(mix[twin.index(found.structures)] * found.probabilities)
        return found.probabilities, found.marginals, loss, found.entropy()

    assert gradcheck(both, inputs)
    assert gradgradcheck(lambda *g: both(*g)[2:], inputs)


def slopes(structure, scores, rule=None, step=1e-6):
    """The derivative of mixed marginals along a random direction of the scores: by the gradient, by differences."""
    unary, *extra = scores if isinstance(scores, tuple) else (scores,)
    mix, along = normal(*unary.shape, seed=7), normal(*unary.shape, seed=8)

    def marginals(u):
        return (sparsemap((u, *extra) if extra else u, structure, rule=rule).marginals * mix).flatten(1).sum(1)

    leaf = unary.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(marginals(leaf).sum(), leaf)
    numeric = (marginals(unary + step * along) - marginals(unary - step * along)) / (2 * step)
    return (gradient * along).flatten(1).sum(1), numeric


# At these sizes the active set has the marginals to the last digit before its structures span their face.
AT_SIZE = {
    "128 bits": (st.Bits(), lambda s: s * normal(4, 128), (1,), "active-set"),
    "32 of 64 bits": (st.Bits(at_most=32), lambda s: s * normal(4, 64), (1,), "active-set"),
    "20 of 128 bits": (st.Bits(20, 20), lambda s: s * normal(4, 128), (1,), "active-set"),
    "40 labels of 5": (st.OneOfEach(), lambda s: s * normal(4, 40, 5), (0.3, 1), "active-set"),
    "chain": (st.Chain(), lambda s: (s * normal(3, 50, 20), s * normal(20, 20, seed=1)), (0.3, 1), None),
    "chain that is free": (st.Chain(), lambda s: (s * normal(4, 50, 5), torch.zeros(5, 5).double()), (0.3, 1, 3), None),
    "assignment": (st.Assignment(), lambda s: s * normal(4, 20, 20), (0.3, 1), None),
    "tree": (st.Tree(), lambda s: s * normal(4, 25, 26), (0.3, 1, 3), None),
}


@pytest.mark.skipif(not library.AVAILABLE, reason="the loop in torch takes minutes at these sizes")
@pytest.mark.parametrize(("name", "scale"), [(n, s) for n, case in AT_SIZE.items() for s in case[2]])
def test_the_gradient_of_marginals_at_size(name, scale):
    structure, scores, _, rule = AT_SIZE[name]
    exact, numeric = slopes(structure, scores(scale), rule)
    torch.testing.assert_close(exact, numeric, rtol=0, atol=1e-4)


def grad_of_mixed(marginals, leaf):
    return torch.autograd.grad((marginals * normal(*leaf.shape, seed=7)).sum(), leaf)[0]


@both_ways
def test_the_gradient_on_a_face_that_the_active_set_does_not_span(kernels):
    """Without transitions a chain is independent labels, whose marginals have a closed form."""
    scores = (0.6 * normal(1 if kernels == "torch" else 40, 40, 3)).requires_grad_()
    found = sparsemap((scores, torch.zeros(3, 3).double()), st.Chain())
    closed = sparsemap(scores, st.OneOfEach())
    dimensions = (closed.marginals > 0).sum((-1, -2)) - 40
    assert (found.counts < dimensions + 1).any() and (found.probabilities > 0).all()
    ours, theirs = (grad_of_mixed(each.marginals, scores) for each in (found, closed))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_the_gradient_of_a_custom_structure_that_it_does_not_span():
    scores = (0.5 + 0.2 * normal(2, 64)).requires_grad_()
    found = sparsemap(scores, st.Custom(lambda s: (s > 0).double()))
    assert (found.counts < ((found.marginals > 0) & (found.marginals < 1)).sum(-1) + 1).any()
    closed = grad_of_mixed(scores.clamp(0, 1), scores)
    torch.testing.assert_close(grad_of_mixed(found.marginals, scores), closed, rtol=0, atol=1e-6)


@both_ways
def test_probabilities_on_a_part_of_a_face_still_sum_to_one(kernels):
    scores = (0.6 * normal(1, 40, 3)).requires_grad_()
    found = sparsemap((scores, torch.zeros(3, 3).double()), st.Chain())
    (gradient,) = torch.autograd.grad(found.probabilities.sum(), scores)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-9)


@both_ways
@every()
def test_the_same_structures_after_a_tiny_change(name, rule, kernels):
    twin = TWINS[name]
    scores = twin.scores(16 if kernels == "cpu" else 3, 0.5)
    found = sparsemap(scores, twin.structure, rule=rule)
    for seed in range(3):

        def moved(s, seed=seed):
            return s + 1e-9 * normal(*s.shape, seed=seed + 9).sign()

        again = sparsemap(
            tuple(map(moved, scores)) if isinstance(scores, tuple) else moved(scores), twin.structure, rule=rule
        )
        assert torch.equal(found.structures, again.structures)


@pytest.mark.parametrize("size", [32, 128])
def test_the_same_bits_after_a_tiny_change_by_the_closed_form(size):
    scores = normal(16, size)
    found, again = (sparsemap(scores + 1e-9 * normal(16, size, seed=s).sign() * (s > 0), st.Bits()) for s in (0, 1))
    assert torch.equal(found.structures, again.structures)


def shares(found, item):
    """{structure: probability} of an item."""
    own = found.example == item
    rows = found.structures[own].flatten(1).long().tolist()
    return dict(zip(map(tuple, rows), found.probabilities[own].tolist(), strict=True))


@pytest.mark.skipif(not library.AVAILABLE, reason="the loop in torch takes minutes at these sizes")
@pytest.mark.parametrize(
    ("structure", "scores"),
    [(st.Bits(), normal(16, 32)), (st.Bits(), 0.5 * normal(16, 128)), (st.Tree(), 0.5 * normal(8, 25, 26))],
    ids=["32 bits", "128 bits", "tree"],
)
def test_what_a_tiny_change_alters_in_an_active_set_has_a_tiny_probability(structure, scores):
    """Each structure halves what is left, so the last of many have probabilities below the change itself."""
    found, again = (
        sparsemap(scores + 1e-9 * normal(*scores.shape, seed=s).sign() * (s > 0), structure, rule="active-set")
        for s in (0, 1)
    )
    for item in range(len(scores)):
        before, after = shares(found, item), shares(again, item)
        for code in before.keys() | after.keys():
            assert abs(before.get(code, 0.0) - after.get(code, 0.0)) < 1e-6


@both_ways
@pytest.mark.parametrize("name", [n for n in TWINS if "active-set" in TWINS[n].structure.rules])
def test_a_warm_start_gives_the_same_in_fewer_steps(name, kernels):
    twin = TWINS[name]
    scores = twin.scores(4, 1.0)
    cold = sparsemap(scores, twin.structure, rule="active-set")
    warm = sparsemap(scores, twin.structure, rule="active-set", start=cold)
    torch.testing.assert_close(warm.marginals, cold.marginals, rtol=0, atol=1e-9)
    assert warm.gap.max() <= GAP
    assert (warm.iterations <= 1).all() and cold.iterations.max() > 1
    other = twin.scores(5, 0.4)
    other = tuple(o[1:] for o in other) if isinstance(other, tuple) else other[1:]
    far = sparsemap(other, twin.structure, rule="active-set", start=cold)
    assert far.gap.max() <= GAP and twin.gap(other, far).max() <= GAP


@both_ways
@pytest.mark.parametrize("name", [n for n in TWINS if "active-set" in TWINS[n].structure.rules])
def test_a_start_may_have_what_is_forbidden_now(name, kernels):
    twin = TWINS[name]
    scores = twin.scores(4, 1.0)
    unary = scores[0] if isinstance(scores, tuple) else scores
    unary.view(4, -1)[:, 2] = 2.0
    before = sparsemap(scores, twin.structure, rule="active-set")
    unary.view(4, -1)[:, 2] = -math.inf
    found, expected = (sparsemap(scores, twin.structure, rule="active-set", start=s) for s in (before, None))
    assert (found.marginals.view(4, -1)[:, 2] == 0).all() and (before.marginals.view(4, -1)[:, 2] > 0).any()
    torch.testing.assert_close(found.marginals, expected.marginals, rtol=0, atol=1e-9)


@both_ways
def test_caps_are_kept_and_the_gap_tells(kernels):
    scores = (0.1 * normal(2, 8, 5), 0.1 * normal(5, 5, seed=1))
    full = sparsemap(scores, st.Chain())
    few = sparsemap(scores, st.Chain(), max_iter=3)
    small = sparsemap(scores, st.Chain(), max_support=4)
    assert full.gap.max() <= GAP and (few.iterations <= 3).all() and (small.counts <= 4).all()
    assert (few.gap > 1e-3).all() and (small.gap > 1e-3).all()
    one = few.expectation(torch.ones_like(few.probabilities))
    torch.testing.assert_close(one, torch.ones_like(one))


@both_ways
def test_bits_that_are_not_done_have_the_marginals_of_what_is_returned(kernels):
    found = sparsemap(normal(2, 9), st.Bits(), rule="active-set", max_iter=3)
    sums = torch.zeros(2, 9).double().index_add(0, found.example, found.probabilities[:, None] * found.structures)
    assert (found.gap > 1e-3).all()
    torch.testing.assert_close(found.marginals, sums, rtol=0, atol=1e-12)


def spoiled(scores, value, at=0):
    """A score of item ``at`` replaced; in a tuple, the first part's."""
    unary = (scores[0] if isinstance(scores, tuple) else scores).clone()
    unary[at].view(-1)[1] = value  # of a tree, word 0 under word 0: so take the next
    unary[at].view(-1)[2] = value
    return (unary, scores[1]) if isinstance(scores, tuple) else unary


@both_ways
@every()
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_spoils_its_own_item_only(name, rule, value, kernels):
    twin = TWINS[name]
    scores = twin.scores(3, 1.0)
    clean = sparsemap(first_of(scores, 3), twin.structure, rule=rule)
    bad = spoiled(scores, value, at=1)
    leaf = (bad[0] if isinstance(bad, tuple) else bad).requires_grad_()
    found = sparsemap(bad, twin.structure, rule=rule)
    item = found.example == 1
    assert found.counts[1] >= 1
    assert found.probabilities[item].isnan().all() and found.marginals[1].isnan().all() and found.gap[1].isnan()
    rest = clean.example != 1
    assert torch.equal(found.probabilities[~item], clean.probabilities[rest])
    assert torch.equal(found.marginals[[0, 2]], clean.marginals[[0, 2]])
    found.expectation(found.probabilities).sum().backward()
    assert leaf.grad[1].isnan().any() and leaf.grad[[0, 2]].isfinite().all()


@both_ways
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["chain", "dense"])
@pytest.mark.parametrize("of", ["sparsemap", "topk", "loss", "sampling"])
def test_extra_scores_that_are_nan_have_a_gradient_of_nan(of, name, shared, kernels):
    twin = TWINS[name]
    unary, extra = twin.scores(3, 1.0)
    extra = extra[0] if shared else extra
    extra[1].view(-1)[0] = math.nan
    unary.requires_grad_(), extra.requires_grad_()
    scores = unary, extra
    if of == "loss":
        right = torch.tensor(twin.codes[:3])
        out = parsimax.sparsemap_loss(scores, right, twin.structure, reduction="none")
    elif of == "sampling":
        method = parsimax.latent.ScoreFunction()
        out = parsimax.expected_loss(scores, lambda e, z: z.double().sum(-1), method, structure=twin.structure).loss
    else:
        found = sparsemap(scores, twin.structure) if of == "sparsemap" else st.topk(scores, twin.structure, 3)
        out = found.marginals.flatten(1).square().sum(1)
    bad = torch.tensor([shared, True, shared])
    assert torch.equal(out.isnan(), bad)
    out.sum().backward()
    assert torch.equal(unary.grad.flatten(1).isnan().any(1), bad)
    assert extra.grad.isnan().all() if shared else torch.equal(extra.grad.flatten(1).isnan().any(1), bad)


def test_nan_of_one_item_leaves_shared_transitions_alone():
    unary, moves = normal(3, 4, 2), normal(2, 2, seed=1).requires_grad_()
    unary[1, 0, 0] = math.nan
    sparsemap((unary, moves), st.Chain()).marginals[[0, 2]].square().sum().backward()
    assert moves.grad.isfinite().all()


@both_ways
@pytest.mark.parametrize("limit", [{"max_iter": 2**63}, {"max_support": 2**70}])
def test_limits_beyond_all_numbers_of_the_kernels(limit, kernels):
    scores = normal(2, 4)
    for chosen in (st.Bits(), st.Bits(at_most=2**63)):
        found = sparsemap(scores, chosen, rule="active-set", **limit)
        torch.testing.assert_close(found.marginals, sparsemap(scores, st.Bits()).marginals)


@both_ways
@every()
def test_forbidden_parts_are_zero_with_zero_gradient(name, rule, kernels):
    twin = TWINS[name]
    scores = spoiled(twin.scores(3, 1.0), -math.inf, at=1)
    leaf = (scores[0] if isinstance(scores, tuple) else scores).requires_grad_()
    found = sparsemap(scores, twin.structure, rule=rule)
    assert (found.marginals.view(3, -1)[1, 1:3] == 0).all() and found.marginals.isfinite().all()
    with torch.no_grad():
        assert twin.gap(scores, found).max() <= GAP
    found.expectation(found.probabilities).sum().backward()
    assert leaf.grad.isfinite().all() and (leaf.grad.view(3, -1)[1, 1:3] == 0).all()


@both_ways
@every()
def test_where_nothing_is_allowed_there_is_nothing(name, rule, kernels):
    twin = TWINS[name]
    if name in ("bits", "budget", "dense", "custom"):
        pytest.skip("no bit on is always allowed")
    scores = twin.scores(3, 1.0)
    unary = (scores[0] if isinstance(scores, tuple) else scores).clone()
    unary[1] = -math.inf
    unary.requires_grad_()
    found = sparsemap((unary, scores[1]) if isinstance(scores, tuple) else unary, twin.structure, rule=rule)
    assert found.counts.tolist()[1] == 0 and (found.marginals[1] == 0).all() and found.gap[1] == 0
    assert (found.counts[[0, 2]] > 0).all()
    found.expectation(found.probabilities).sum().backward()
    assert unary.grad.isfinite().all() and (unary.grad[1] == 0).all()


@both_ways
@every()
def test_ties(name, rule, kernels):
    twin = TWINS[name]
    for level in (0.0, 0.5):
        scores = twin.scores(2, 1.0)
        scores = (
            tuple(torch.full_like(s, level) for s in scores)
            if isinstance(scores, tuple)
            else torch.full_like(scores, level)
        )
        found = sparsemap(scores, twin.structure, rule=rule)
        assert twin.gap(scores, found).max() <= GAP and found.gap.max() <= GAP


TIED = {  # rules in closed form, and scores that tie in them
    "staircase": (st.Bits(), lambda x: x),
    "systematic": (st.Bits(at_most=12), lambda x: x),
    "between": (st.Bits(10, 15), lambda x: x),
    "no limit met": (st.Bits(at_most=40), lambda x: x),
    "exactly": (st.Bits(12, 12), lambda x: x),
    "quantile": (st.OneOfEach(), lambda x: x.unflatten(-1, (10, -1))),
}


@pytest.mark.parametrize(
    "values", [(0.0,), (0.1,), (-0.3, 0.2), (0.1, 0.2, 0.3), (1 / 3, -1 / 3, 5.0), (1.0, 0.3), (-1.0, 0.3)], ids=str
)
@pytest.mark.parametrize("name", TIED)
def test_ties_in_closed_form(name, values):
    """No structure twice, none of rounding alone, and no gradient of a constant loss; equal bits move alike."""
    structure, shaped = TIED[name]
    scores = shaped(torch.tensor(values * 60).double()[:40].repeat(2, 1)).requires_grad_()
    found = sparsemap(scores, structure)
    assert structure.holds(structure.encode(found.structures)).all() and found.probabilities.min() > 1e-9
    for item in range(2):
        own = found.structures[found.example == item]
        assert len(own.unique(dim=0)) == len(own)
    (constant,) = torch.autograd.grad(found.probabilities.sum(), scores, retain_graph=True)
    assert constant.abs().max() < 1e-12
    if name == "staircase":
        (gradient,) = torch.autograd.grad(found.expectation(found.structures.sum(-1)).sum(), scores)
        (own,) = torch.autograd.grad(sparsemap(scores, structure).marginals.sum(), scores)
        inside = (found.marginals > 0) & (found.marginals < 1)  # at 0 and 1 there is a kink
        torch.testing.assert_close(gradient[inside], own[inside], rtol=0, atol=1e-12)


def test_limits_hold_however_many_bits_tie():
    structure = st.Bits(1000, 1005)
    found = sparsemap(torch.zeros(1, 3000), structure)
    assert structure.holds(found.structures).all() and found.probabilities.sum() == pytest.approx(1)


@pytest.mark.parametrize("structure", [st.Bits(), st.Bits(at_most=0)], ids=str)
def test_no_bits_are_one_structure(structure):
    found = sparsemap(torch.zeros(2, 0), structure)
    assert found.counts.tolist() == [1, 1] and found.probabilities.tolist() == [1, 1]


def test_tiny_marginals_are_not_lost():
    scores = (-1 + torch.tensor([[2e-10, 4e-10, 6e-10]]).double()).requires_grad_()
    found = sparsemap(scores, st.Bits(at_most=2))
    expected = found.expectation(found.structures.sum(-1))
    torch.testing.assert_close(expected, found.marginals.sum(-1), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(expected.sum(), scores)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 0.5))


@pytest.mark.parametrize("name", ["each", "chain", "permutation", "single root"])
def test_an_offset_changes_nothing(name):
    twin = TWINS[name]
    scores = twin.scores(4, 1.0)
    unary, *rest = scores if isinstance(scores, tuple) else (scores,)
    near = sparsemap(scores, twin.structure)
    far = sparsemap((unary + 1e5, *rest) if rest else unary + 1e5, twin.structure)
    torch.testing.assert_close(far.marginals, near.marginals, rtol=0, atol=1e-9)
    assert torch.equal(far.structures, near.structures)


def test_sizes_and_types():
    scores = normal(2, 3, 4, 5).float()
    found = sparsemap(scores.bfloat16(), st.Assignment())
    assert found.probabilities.dtype == torch.bfloat16 == found.marginals.dtype
    assert found.marginals.shape == scores.shape and found.counts.shape == (2, 3) == found.gap.shape
    one = sparsemap(scores[0, 0], st.Assignment())
    assert one.counts.shape == () and one.marginals.shape == (4, 5)
    none = sparsemap(scores[:0], st.Assignment())
    assert none.structures.shape == (0, 4) and none.counts.shape == (0, 3)
    bits = sparsemap(normal(0, 4), st.Bits(), rule="active-set")
    assert bits.structures.shape == (0, 4)
    last = sparsemap((normal(2, 1, 3), normal(0, 3, 3)), st.Chain())
    torch.testing.assert_close(last.marginals[:, 0], parsimax.sparsemax(normal(2, 1, 3)[:, 0]))
    wide = normal(2, 130)
    mine, closed = (sparsemap(wide, st.Bits(), rule=rule).marginals for rule in ("active-set", "staircase"))
    torch.testing.assert_close(mine, closed, rtol=0, atol=1e-10)


def test_transitions_of_every_shape_are_the_same():
    unary, moves = normal(2, 4, 3), normal(3, 3, seed=1)
    shapes = [moves, moves.expand(3, 3, 3), moves.expand(2, 3, 3, 3)]
    found = [sparsemap((unary, m), st.Chain()).marginals for m in shapes]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_expectations_of_numbers_of_any_type(dtype):
    found = sparsemap(normal(3, 4).to(dtype), st.Bits())
    on = found.structures.sum(-1)
    for values in (on.long(), on.float(), on.double(), on > 1):
        expected = found.expectation(values.to(dtype))
        torch.testing.assert_close(found.expectation(values), expected, check_dtype=False, rtol=0.02, atol=0.02)


def test_a_probability_that_is_rounded_to_zero_has_no_entropy():
    """Half types have none of the smallest probabilities of an active set."""
    exact = sparsemap(normal(4, 64).half().double(), st.Bits(), rule="active-set")
    scores = normal(4, 64).half().requires_grad_()
    found = sparsemap(scores, st.Bits(), rule="active-set")
    assert (found.probabilities == 0).any()
    torch.testing.assert_close(found.entropy().double(), exact.entropy(), rtol=5e-3, atol=0)
    found.entropy().sum().backward()
    assert scores.grad.isfinite().all()


def test_one_of_is_sparsemax():
    scores = normal(3, 6).requires_grad_()
    found = sparsemap(scores, st.OneOf())
    assert torch.equal(found.marginals, parsimax.sparsemax(scores))


@pytest.mark.parametrize(("structure", "most"), [(st.Bits(), 1), (st.Bits(2, 2), 0), (st.Bits(at_most=2), 1)])
def test_closed_forms_have_few_structures(structure, most):
    scores = normal(40, 9)
    found = sparsemap(scores, structure)
    fractional = ((found.marginals > 1e-12) & (found.marginals < 1 - 1e-12)).sum(-1)
    assert (found.counts <= (fractional + most).clamp(min=1)).all()
    torch.manual_seed(0)
    mixed = sparsemap(scores, structure, rule="systematic", shuffle=True)
    torch.testing.assert_close(mixed.marginals, found.marginals, rtol=0, atol=1e-9)
    count = mixed.structures.sum(-1)
    assert (count <= (structure.at_most or 9)).all() and (count >= structure.at_least).all()


@pytest.mark.parametrize("rule", ["staircase", "systematic"])
def test_gradients_of_closed_forms_integrate_to_the_change(rule):
    """Along a line the expected loss changes by the integral of its gradient: the distribution never jumps."""
    begin, end, table = normal(6, seed=1), normal(6, seed=2), normal(64, seed=3)

    def expected(scores):
        found = sparsemap(scores, st.Bits(), rule=rule)
        number = (found.structures * 2 ** torch.arange(6)).sum(-1).long()
        return found.expectation(table[number])

    steps = torch.linspace(0, 1, 4001, dtype=torch.float64)
    line = (begin + steps[:, None] * (end - begin)).requires_grad_()
    values = expected(line)
    slope = torch.autograd.grad(values.sum(), line)[0] @ (end - begin)
    integral = torch.trapezoid(slope.detach(), steps)
    assert abs(integral - (values[-1] - values[0]).detach()) < 2e-3
