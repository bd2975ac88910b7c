"""What holds for all scores, with scores drawn by Hypothesis. The examples are the same in every run.

Every mapping gets every row: to draw it takes longer than to map it.
"""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import parsimax
from cases import EXAMPLES, INF, each
from oracle import as_float32

# A first call may be slow; what counts is the answer.
bounded = settings(
    derandomize=True, max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
SCORES = st.one_of(
    st.floats(-4, 4, width=32),
    st.floats(-1e6, 1e6, width=32),
    st.integers(-8, 8).map(lambda i: i / 4),  # so that ties and scores exactly at a margin are common
)
ROWS = st.lists(SCORES, min_size=1, max_size=12)
ALPHAS = st.one_of(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]), st.floats(0.05, 6.0))


def tensor(row: list[float]) -> torch.Tensor:
    return torch.tensor(row, dtype=torch.float64)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-11, of: str = "") -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance, msg=lambda text: f"{of}: {text}")


@bounded
@given(row=ROWS, data=st.data())
def test_permuting_scores_permutes_probabilities(row, data):
    order = data.draw(st.permutations(range(len(row))))
    x = tensor(row)
    for case in EXAMPLES:
        p, q = case(x)[order], case(x[order])
        if case.parameter == "k":  # of equal scores any may be chosen
            p, q = p.sort().values, q.sort().values
        close(p, q, of=case.name)


@bounded
@given(row=ROWS, shift=st.integers(-(2**20), 2**20))
def test_shifting_scores_changes_nothing(row, shift):
    x = (tensor(row).clamp(-1e5, 1e5) * 2**12).round() / 2**12  # the shift is exact on this grid
    for case in EXAMPLES:
        if case.entry.shift_invariant:
            close(case(x + shift), case(x), of=case.name)


@bounded
@given(row=ROWS)
def test_larger_scores_get_at_least_as_much(row):
    x = tensor(row)
    larger = x[:, None] > x[None, :]
    for case in EXAMPLES:
        p = case(x)
        assert (p[:, None] >= p[None, :] - 1e-12)[larger].all(), case.name
        if case.parameter != "k":
            assert ((p[:, None] - p[None, :]).abs() <= 1e-12)[x[:, None] == x[None, :]].all(), case.name


@bounded
@given(row=ROWS)
def test_points_of_the_simplex(row):
    for case in EXAMPLES:
        p = case(tensor(row))
        assert (p >= 0).all() and (p <= 1 + 1e-12).all(), case.name
        close(p.sum(), case.total(torch.tensor(len(row))), of=case.name)


@bounded
@given(row=ROWS, alphas=st.tuples(ALPHAS, ALPHAS))
def test_support_shrinks_as_alpha_grows(row, alphas):
    low, high = sorted(alphas)
    x = tensor(row).clamp(-20, 20)  # for α near 1 what is not zero may still underflow
    wide, narrow = (parsimax.entmax(x, a) for a in (low, high))
    # a probability below 1e-12 may be there or not by rounding
    assert (wide > 0)[narrow > 1e-12].all()
    assert wide.amax() <= narrow.amax() + 1e-12


@bounded
@given(
    pairs=st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=8),
    alpha=ALPHAS,
    share=st.floats(0, 1),
    data=st.data(),
)
def test_the_loss_is_convex(pairs, alpha, share, data):
    a, b = tensor(pairs).T
    target = torch.tensor(data.draw(st.integers(0, len(a) - 1)))
    between = parsimax.entmax_loss(share * a + (1 - share) * b, target, alpha)
    ends = [parsimax.entmax_loss(x, target, alpha) for x in (a, b)]
    chord = share * ends[0] + (1 - share) * ends[1]
    assert between <= chord + 1e-12 * max(1.0, a.abs().max(), b.abs().max())
    assert min(ends) >= 0


@bounded
@given(row=st.lists(SCORES, min_size=2, max_size=12), alpha=ALPHAS, data=st.data())
def test_the_gradient_of_the_loss_is_p_minus_y(row, alpha, data):
    x = tensor(row).requires_grad_()
    target = data.draw(st.integers(0, len(row) - 1))
    (g,) = torch.autograd.grad(parsimax.entmax_loss(x, torch.tensor(target), alpha), x)
    y = torch.nn.functional.one_hot(torch.tensor(target), len(row))
    close(g, parsimax.entmax(x.detach(), alpha) - y, 1e-9 if alpha > 2 else 1e-11)


@bounded
@given(
    row=st.lists(SCORES, min_size=1, max_size=8),
    alpha=st.sampled_from([1.25, 1.5, 2.0, 3.0, 5.0]),
    lead=st.integers(-64, 64),
)
def test_zero_exactly_from_the_margin_on(row, alpha, lead):
    """The margins 4, 2, 1, 1/2 and 1/4 and the scores are numbers without rounding."""
    x = (tensor(row).clamp(-1e5, 1e5) * 64).round() / 64
    x = torch.cat([x, (x.max() + 1 / (alpha - 1) + lead / 64).unsqueeze(0)])
    target = torch.tensor(len(row))
    for a in (alpha, torch.tensor(alpha, dtype=torch.float64)):
        loss = parsimax.entmax_loss(x, target, a)
        assert (loss == 0) == (lead >= 0), (a, loss)
        assert loss >= 0
        one_hot = parsimax.entmax(x, a)[-1] == 1
        assert one_hot == (lead >= 0), a


@bounded
@given(row=ROWS, k=st.integers(1, 14))
def test_the_certificate_is_right(row, k):
    x = tensor(row)
    p, certificate = parsimax.topk_sparsemax(x, k, return_certificate=True)
    assert bool(certificate) == bool((p - parsimax.sparsemax(x)).abs().max() <= 1e-12)


@bounded
@given(row=st.lists(st.one_of(SCORES, st.just(-INF)), min_size=1, max_size=12))
def test_forbidden_scores_might_as_well_not_be_there(row):
    x = tensor(row)
    allowed = x > -INF
    for case in EXAMPLES:
        p = case(x)
        assert (p[~allowed] == 0).all(), case.name
        if allowed.any():
            p, q = p[allowed], case(x[allowed])
            if case.parameter == "k":
                p, q = p.sort().values, q.sort().values
            close(p, q, of=case.name)


@pytest.mark.parametrize("scores", [[2.0**-140, 0.0], [as_float32(1e38), as_float32(-1e38)], [1e38] * 3])
@each(EXAMPLES)
def test_the_ends_of_float32(case, scores):
    x = torch.tensor(scores)
    p = case(x)
    close(p.double().sum(), case.total(torch.tensor(len(scores))), 1e-6)
