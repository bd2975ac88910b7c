"""The loss against its definition over all structures listed."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import parsimax
from cases import normal
from parsimax import sparsemap, sparsemap_loss
from parsimax import structured as st
from structures import TWINS

LISTED = {name: twin for name, twin in TWINS.items() if name != "custom"}


def targets(twin, items):
    at = torch.arange(items) * 5 % len(twin.codes)
    table = torch.tensor(twin.codes)[at]
    return at, table.double() if isinstance(twin.structure, st.Bits) else table


def errors(twin, at):
    """(items, structures): in how many positions a structure differs from the target."""
    table = torch.tensor(twin.codes)
    return (table[None] != table[at][:, None]).sum(-1).double()


@pytest.mark.parametrize("cost", [0.0, 0.7])
@pytest.mark.parametrize("name", LISTED)
def test_it_is_the_difference_of_the_two_maxima(name, cost):
    twin = LISTED[name]
    scores = twin.scores(4, 1.0)
    unary, *rest = scores if isinstance(scores, tuple) else (scores,)
    unary.requires_grad_()
    at, right = targets(twin, 4)
    loss = sparsemap_loss(scores, right, twin.structure, cost=cost, reduction="none")
    # The penalty of all bits on or off is that of two parts a bit, the same for every vector.
    parts = twin.parts.flatten(1)
    both = torch.cat([parts, 1 - parts], 1) if twin.paired else parts
    value = twin.values(scores).detach() + cost * errors(twin, at)
    sign = 1 - 2 * parts if isinstance(twin.structure, st.Bits) else 1 - parts
    moved = (unary + cost * sign[at].view(unary.shape)).detach()
    p = twin.dense(sparsemap((moved, *rest) if rest else moved, twin.structure))
    best = (p * value).sum(1) - (p @ both).square().sum(1) / 2
    own = twin.values(scores).detach().gather(1, at[:, None])[:, 0] - both[at].square().sum(1) / 2
    torch.testing.assert_close(loss.detach(), best - own, rtol=0, atol=1e-9)
    assert (loss >= -1e-12).all()
    single = value - both.square().sum(1) / 2  # no single structure may do better than the maximum
    assert (single.amax(1) - own <= loss.detach() + 1e-9).all()
    loss.sum().backward()
    expected = (p @ parts - parts[at]).view(unary.shape)
    torch.testing.assert_close(unary.grad, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["bits", "budget", "chain", "permutation", "single root"])
def test_derivatives(name):
    twin = LISTED[name]
    scores = twin.scores(2, 0.7)
    many = isinstance(scores, tuple)
    inputs = tuple(s.requires_grad_() for s in (scores if many else (scores,)))
    right = targets(twin, 2)[1]

    def loss(*given):
        return sparsemap_loss(given if many else given[0], right, twin.structure, cost=0.3, reduction="none")

    assert gradcheck(loss, inputs) and gradgradcheck(loss, inputs)


@pytest.mark.parametrize("name", LISTED)
def test_a_clear_lead_costs_nothing(name):
    twin = LISTED[name]
    at, right = targets(twin, 3)
    lead = 9 * (2 * twin.parts[at] - 1)
    scores = (lead, torch.zeros_like(twin.scores(3, 1.0)[1])) if twin.extra is not None else lead
    assert sparsemap_loss(scores, right, twin.structure, cost=1.0, reduction="sum").abs() < 1e-9


def test_the_second_derivative_on_a_face_that_the_active_set_does_not_span():
    """Without transitions a chain is independent labels, whose loss has a closed form."""
    scores, right = (0.6 * normal(3, 40, 3)).requires_grad_(), torch.zeros(3, 40, dtype=torch.long)
    along = normal(3, 40, 3, seed=5)

    def second(loss):
        (first,) = torch.autograd.grad(loss, scores, create_graph=True)
        return torch.autograd.grad((first * along).sum(), scores)[0]

    chain = sparsemap_loss((scores, torch.zeros(3, 3).double()), right, st.Chain(), reduction="sum")
    each = sparsemap_loss(scores, right, st.OneOfEach(), reduction="sum")
    torch.testing.assert_close(second(chain), second(each), rtol=0, atol=1e-6)


def test_a_custom_structure_with_extra_parts_has_the_loss_of_a_chain():
    unary, moves, right = normal(2, 3, 2), normal(2, 2, 2, 2, seed=1), torch.tensor([[0, 1, 1], [1, 1, 0]])
    chain = st.Chain()

    def oracle(scores):
        parts = torch.nn.functional.one_hot(chain.best(*scores).long(), 2)
        return parts, parts[:-1, :, None] * parts[1:, None, :]

    parts = torch.nn.functional.one_hot(right, 2)
    mine = sparsemap_loss((unary, moves), parts, st.Custom(oracle, dims=2))
    torch.testing.assert_close(mine, sparsemap_loss((unary, moves), right, chain), rtol=0, atol=1e-9)


def test_one_of_is_the_loss_of_sparsemax():
    scores, target = TWINS["bits"].scores(4, 1.0), torch.tensor([0, 3, 1, 1])
    mine = sparsemap_loss(scores, target, st.OneOf())
    torch.testing.assert_close(mine, parsimax.sparsemax_loss(scores, target), rtol=0, atol=1e-12)


def test_a_target_of_booleans():
    scores, on = torch.tensor([[0.3, -1.0], [2.0, 0.1]]), torch.tensor([[True, False], [False, True]])
    assert sparsemap_loss(scores, on, st.Bits()) == sparsemap_loss(scores, on.float(), st.Bits())


@pytest.mark.parametrize("cost", [0.0, 0.7])
@pytest.mark.parametrize("name", LISTED)
def test_a_target_with_a_forbidden_part_costs_infinity(name, cost):
    twin = LISTED[name]
    scores = twin.scores(3, 1.0)
    unary = scores[0] if isinstance(scores, tuple) else scores
    at, right = targets(twin, 3)
    item = int(twin.parts[at].flatten(1).any(1).nonzero()[0, 0])
    part = int(twin.parts[at[item]].flatten().nonzero()[0, 0])
    unary[item].view(-1)[part] = -math.inf
    unary.requires_grad_()
    loss = sparsemap_loss(scores, right, twin.structure, cost=cost, reduction="none")
    assert loss.isinf().tolist() == [i == item for i in range(3)]
    loss.sum().backward()
    assert unary.grad[[i for i in range(3) if i != item]].isfinite().all()


def test_reductions_types_and_spoiled_items():
    twin = TWINS["permutation"]
    scores, right = twin.scores(3, 1.0).float(), targets(twin, 3)[1]
    each = sparsemap_loss(scores, right, twin.structure, reduction="none")
    assert each.dtype == torch.float32 and each.shape == (3,)
    torch.testing.assert_close(parsimax.SparseMAPLoss(twin.structure)(scores, right), each.mean())
    forbidden = scores.clone()
    forbidden[0, 0, right[0, 0]] = -math.inf
    assert sparsemap_loss(forbidden, right, twin.structure, reduction="none")[0] == math.inf
    scores[1, 2, 2] = math.nan
    spoiled = sparsemap_loss(scores, right, twin.structure, reduction="none")
    assert spoiled.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": torch.zeros(3, 3)}, r"is \(3, 4\) for these scores, got \(3, 3\)"),
        ({"target": torch.full((3, 4), 4)}, "whole numbers from 0 to 3, got"),
        ({"reduction": "most"}, "mean, sum, none, got 'most'"),
        ({"cost": -1.0}, "0 or more, got -1.0"),
    ],
)
def test_errors(change, words):
    arguments = {"target": torch.zeros(3, 4), "reduction": "mean", "cost": 0.0} | change
    target = arguments.pop("target")
    with pytest.raises(ValueError, match=words):
        sparsemap_loss(torch.zeros(3, 4, 4), target, st.Assignment(), **arguments)
