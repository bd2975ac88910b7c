"""The k best structures and top-k sparsemax against all structures listed."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import parsimax
from cases import normal
from parsimax import structured as st
from structures import TWINS

both_ways = pytest.mark.parametrize("kernels", ["cpu", "torch"], indirect=True)


def rounded(scores, step):
    return (
        tuple((s / step).round() * step for s in scores)
        if isinstance(scores, tuple)
        else (scores / step).round() * step
    )


@both_ways
@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("step", [1e-12, 0.5], ids=["distinct", "ties"])
def test_the_k_best_are_those_of_the_list(name, step, kernels):
    """A flat row keeps all k: of scores times a tiny number sparsemax is nearly uniform."""
    twin = TWINS[name]
    scores = rounded(twin.scores(4, 1.0), step)
    values = twin.values(scores)
    tiny = tuple(1e-3 * s for s in scores) if isinstance(scores, tuple) else 1e-3 * scores
    for k in (1, 2, 7, len(twin.codes), len(twin.codes) + 5):
        found = st.topk(tiny, twin.structure, k)
        best = values.sort(descending=True).values[:, :k]
        assert (found.counts == best.shape[1]).all()
        index = twin.index(found.structures).view(4, -1)
        assert all(len(set(row)) == len(row) for row in index.tolist())
        torch.testing.assert_close(values.gather(1, index), best, rtol=0, atol=1e-9)


@both_ways
@pytest.mark.parametrize("n", [19, 20, 41, 128])
@pytest.mark.parametrize("forbidden", ["none", "few", "most"])
def test_the_k_best_of_many_bits(n, forbidden, kernels):
    """They differ from the best in no bit but the k with the least scores: all sets of these are listed."""
    k, scores = 10, rounded(normal(6, n), 0.25)  # with ties, and so many zeros
    if forbidden != "none":
        scores[
            :, torch.randperm(n, generator=torch.Generator().manual_seed(0))[: n // 6 if forbidden == "few" else n - 4]
        ] = -math.inf
    found = st.topk(scores * 1e-4, st.Bits(), k)
    for item, row in enumerate(scores):
        cost = row.abs()[row > -math.inf].sort().values[:k]
        sets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * len(cost)).to(row)
        best = row.clamp(min=0).sum() - (sets @ cost).sort().values[:k]
        own = found.structures[found.example == item]
        assert len({tuple(one) for one in own.tolist()}) == len(own) == len(best)
        values = torch.where(own > 0, row, 0.0).sum(-1)
        torch.testing.assert_close(values, best, rtol=0, atol=1e-9)


@both_ways
@pytest.mark.parametrize("name", TWINS)
def test_the_certificate_is_right_in_both_directions(name, kernels):
    twin = TWINS[name]
    seen = set()
    for scale in (0.1, 0.5, 2.0):
        scores = twin.scores(6, scale)
        whole = parsimax.sparsemax(twin.values(scores))
        for k in (1, 2, 3, 5):
            found = st.topk(scores, twin.structure, k)
            same = (twin.dense(found) - whole).abs().amax(1) < 1e-12
            assert torch.equal(found.gap == 0, same)
            seen |= set(same.tolist())
            # The gap of sparsemax over the whole list: of the best structure over the answer.
            rest = twin.values(scores) - twin.dense(found)
            own = (twin.dense(found) * rest).sum(1)
            torch.testing.assert_close(found.gap, (rest.amax(1) - own).clamp(min=0), rtol=0, atol=1e-12)
    assert seen == {True, False}


@both_ways
@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("k", [10**6, 2**31, 2**63])
def test_more_than_there_are_cost_nothing(name, k, kernels):
    """As many as there are is all that is kept, of a batch too that allows fewer or nothing."""
    twin = TWINS[name]
    scores = twin.scores(40, 0.5)
    unary, *rest = scores if isinstance(scores, tuple) else (scores,)
    unary[1].view(-1)[2], unary[2].view(-1)[2] = -math.inf, math.nan
    scores = (unary, *rest) if rest else unary
    found, exact = (st.topk(scores, twin.structure, most) for most in (k, len(twin.codes)))
    for field in ("structures", "probabilities", "marginals", "counts", "gap"):
        torch.testing.assert_close(getattr(found, field), getattr(exact, field), rtol=0, atol=0, equal_nan=True)
    clean = torch.arange(40) != 2
    assert (found.gap[clean] == 0).all()


@pytest.mark.parametrize("name", [name for name in TWINS if name != "custom"])
def test_how_many_there_are(name):
    twin = TWINS[name]
    assert twin.structure.bound(twin.structure.problem(twin.scores(2, 1.0), "")) == len(twin.codes)


@pytest.mark.parametrize(("limits", "count"), [((0, 1), 1001), ((999, None), 1001), ((500, 500), 2**62), ((), 2**62)])
def test_how_many_of_many_bits(limits, count):
    bits = st.Bits(*limits)
    assert bits.bound(bits.problem(normal(1, 1000), "")) == count


def test_a_full_set_can_be_certain():
    """Two structures share it all and k is 2: the number of structures alone cannot tell."""
    found = st.topk(torch.tensor([0.1, 5.0]), st.Bits(), 2)
    assert found.counts == 2 and found.gap == 0


@pytest.mark.parametrize("name", TWINS)
def test_derivatives(name):
    twin = TWINS[name]
    scores = twin.scores(2, 0.5)
    many = isinstance(scores, tuple)
    inputs = tuple(s.requires_grad_() for s in (scores if many else (scores,)))

    def both(*given):
        found = st.topk(given if many else given[0], twin.structure, 3)
        return found.probabilities, found.marginals, found.expectation(found.probabilities)

    assert gradcheck(both, inputs)
    assert gradgradcheck(lambda *g: both(*g)[2], inputs)


@both_ways
@pytest.mark.parametrize("name", TWINS)
def test_degenerate_items(name, kernels):
    twin = TWINS[name]
    scores = twin.scores(3, 1.0)
    unary, *rest = scores if isinstance(scores, tuple) else (scores,)
    bad, forbidden = unary.clone(), unary.clone()
    bad[1].view(-1)[2] = math.nan
    forbidden[1].view(-1)[2] = -math.inf
    found = st.topk((bad, *rest) if rest else bad, twin.structure, 3)
    assert found.probabilities[found.example == 1].isnan().all() and found.gap[1].isnan() and found.counts[1] >= 1
    assert found.marginals[[0, 2]].isfinite().all()
    found = st.topk((forbidden, *rest) if rest else forbidden, twin.structure, 50)
    assert found.marginals[1].view(-1)[2] == 0
    whole = parsimax.sparsemax(twin.values((forbidden, *rest) if rest else forbidden))
    torch.testing.assert_close(twin.dense(found), whole, rtol=0, atol=1e-12)


def test_one_of():
    scores = normal(4, 9)
    found = st.topk(scores, st.OneOf(), 3)
    expected, certain = parsimax.topk_sparsemax(scores, 3, return_certificate=True)
    torch.testing.assert_close(found.marginals, expected)
    assert torch.equal(found.gap == 0, certain)
