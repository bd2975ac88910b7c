"""The oracle is tested by means it does not use itself: optimality conditions, brute force, differences, the peer."""

import functools
import itertools
import math

import entmax as peer
import pytest
import torch

import oracle
from oracle import mp

ALPHAS = [0, 0.5, 1 - 1e-6, 1, 1 + 1e-6, 1.5, 2, 2.5, 4, 50, math.inf]
PARAMETERS = {
    "entmax": ALPHAS,
    "tsoftmax": [0.01, 1, 30, math.inf],
    "rsoftmax": [0, 0.3, 0.5, 1],
    "topk_sparsemax": [1, 3, 100],
    "normmax": [1.1, 1.5, 2, 3, 10],
    "budget_sparsemax": [0, 0.5, 2, 3.7, 100],
    "sparsegen": [-3, 0, 0.5, 0.9],
    "sparsehourglass": [0.1, 10],
}
CASES = [(name, parameter) for name in oracle.TRUTH for parameter in PARAMETERS.get(name, [None])]
TINY = mp.mpf(10) ** -45
ROWS = oracle.rows()


@functools.cache
def truth(name, parameter, label):
    return oracle.TRUTH[name](ROWS[label], *([] if parameter is None else [parameter]))


def allowed_pairs(row, p):
    return [(mp.mpf(score), p_i) for score, p_i in zip(row, p, strict=True) if score != -math.inf]


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_points_of_the_simplex(name, parameter):
    for label, row in ROWS.items():
        p = truth(name, parameter, label)
        allowed = sum(score != -math.inf for score in row)
        mass = min(parameter, allowed) if name == "budget_sparsemax" else min(allowed, 1)
        assert abs(mp.fsum(p) - mass) < TINY, label
        assert all(0 <= p_i <= 1 for p_i in p), label
        assert all(p_i == 0 for score, p_i in zip(row, p, strict=True) if score == -math.inf), label


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_larger_scores_get_more(name, parameter):
    for label, row in ROWS.items():
        ordered = sorted(allowed_pairs(row, truth(name, parameter, label)))
        assert all(lower[1] <= upper[1] + TINY for lower, upper in itertools.pairwise(ordered)), label


def marginal_gain(p_i, alpha):
    """The derivative of H_α at p_i, up to a constant."""
    return -mp.log(p_i) if alpha == 1 else -(p_i ** (alpha - 1)) / (alpha - 1)


@pytest.mark.parametrize("alpha", ALPHAS[:-1])
def test_entmax_satisfies_its_optimality_conditions(alpha):
    """On the support z_i + H'(p_i) is one value; off it, and only where H'(0) is finite, z_i + H'(0) is no larger."""
    given, alpha = alpha, mp.mpf(alpha)
    for label, row in ROWS.items():
        pairs = allowed_pairs(row, truth("entmax", given, label))
        values = [score + marginal_gain(p_i, alpha) for score, p_i in pairs if p_i > 0]
        if not values:
            continue
        scale = max(1, max(abs(value) for value in values), max(abs(score) for score, p_i in pairs if p_i > 0))
        assert max(values) - min(values) < TINY * scale, label
        outside = [score for score, p_i in pairs if p_i == 0]
        assert alpha > 1 or not outside, label
        assert all(score <= min(values) + TINY * scale for score in outside), label


def improvements(p, objective, moves):
    """By how much small moves of mass between two entries improve a concave objective."""
    start = objective(p)
    for i, j in itertools.permutations(range(len(p)), 2):
        for size in moves:
            moved = list(p)
            moved[i] -= size
            moved[j] += size
            if moved[i] >= 0 and moved[j] <= 1:
                yield objective(moved) - start


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2, 3, 10])
@pytest.mark.parametrize("label", ["random 3", "random 8", "tied top", "wide", "forbidden", "plateau under a peak"])
def test_normmax_is_a_maximum(alpha, label):
    z, p = zip(*allowed_pairs(ROWS[label], oracle.normmax(ROWS[label], alpha)), strict=True)
    z, p = list(z)[:9], list(p)[:9]

    def objective(q):
        return mp.fsum(map(mp.fmul, q, z)) - mp.fsum(q_i**alpha for q_i in q) ** (1 / mp.mpf(alpha))

    if label.startswith("plateau"):  # the cut leaves no point of the simplex; solve the shorter row
        p = oracle.normmax([float(score) for score in z], alpha)
    assert all(gain <= TINY for gain in improvements(p, objective, [mp.mpf("1e-3"), mp.mpf("1e-12")]))


@pytest.mark.parametrize("budget", [0.5, 1, 2, 3.7])
@pytest.mark.parametrize("label", ["random 8", "tied top", "wide", "forbidden", "nearly equal", "huge tied"])
def test_budget_sparsemax_is_a_maximum(budget, label):
    z, p = zip(*allowed_pairs(ROWS[label], oracle.budget_sparsemax(ROWS[label], budget)), strict=True)

    def objective(q):
        return mp.fsum(map(mp.fmul, q, z)) - mp.fsum(q_i**2 for q_i in q) / 2

    noise = TINY * max(1, max(map(abs, z)))
    assert all(gain <= noise for gain in improvements(p, objective, [mp.mpf("1e-3"), mp.mpf("1e-12")]))


def test_entmax_beats_every_point_of_a_grid():
    row, steps = [0.3, -0.2, 0.1, 0.25], 24
    grid = [cut for cut in itertools.product(range(steps + 1), repeat=4) if sum(cut) == steps]
    for alpha in (0.5, 1, 1.5, 2, 3):
        best = max(
            math.fsum(p_i * score for p_i, score in zip(p, row, strict=True)) + float(oracle.tsallis(p, alpha))
            for p in ([c / steps for c in cut] for cut in grid)
        )
        assert best <= oracle.conjugate(row, alpha) <= best + 0.01


@pytest.mark.parametrize("alpha", [0.5, 1, 1.5, 2, 4])
def test_the_gradient_of_the_conjugate_is_entmax(alpha):
    row, step = ROWS["random 3"], 2.0**-30
    for i, p_i in enumerate(oracle.entmax(row, alpha)):
        up, down = (
            oracle.conjugate([s + sign * step * (i == j) for j, s in enumerate(row)], alpha) for sign in (1, -1)
        )
        assert abs((up - down) / (2 * step) - p_i) < 1e-8


@pytest.mark.parametrize("alpha", [0.9, 0.99, 1 - 1e-6, 1.0, 1 + 1e-6, 1.1, 1.5, 2.0, 2.5, 4.0])
def test_alpha_gradient_against_differences(alpha):
    step = mp.mpf(10) ** -15
    for label in ("random 1", "random 8", "random 17", "tied top", "forbidden", "offset", "plateau under a peak"):
        row = ROWS[label]
        g = [math.sin(3 * i + 1) for i in range(len(row))]

        def objective(a, row=row, g=g):
            return mp.fsum(mp.mpf(g_i) * p_i for g_i, p_i in zip(g, oracle.entmax(row, a), strict=True))

        difference = (objective(mp.mpf(alpha) + step) - objective(mp.mpf(alpha) - step)) / (2 * step)
        assert abs(difference - oracle.entmax_alpha_gradient(row, alpha, g)) < mp.mpf(10) ** -20, label


@pytest.mark.parametrize(
    ("alpha", "function"),
    [(2, peer.sparsemax), (1.5, peer.entmax15), (1.3, lambda x: peer.entmax_bisect(x, 1.3)), (1, torch.softmax)],
)
def test_against_the_peer(alpha, function):
    for label in ("random 8", "random 50", "random flat", "tied top", "plateau under a peak", "staircase"):
        x = torch.tensor(ROWS[label], dtype=torch.float64)
        theirs = function(x, -1) if function is torch.softmax else function(x)
        torch.testing.assert_close(
            torch.tensor([float(p_i) for p_i in oracle.entmax(ROWS[label], alpha)], dtype=torch.float64),
            theirs,
            rtol=0,
            atol=1e-6,
        )


def test_known_values():
    """Worked by hand or printed by the authors of r-softmax."""

    def close(p, q):
        return all(abs(p_i - q_i) < 1e-4 for p_i, q_i in zip(p, q, strict=True))

    assert close(oracle.rsoftmax([3, 2, 1], 0.5), [1, 0, 0])
    assert close(oracle.rsoftmax([3, 2, 1, 1], 0.5), [0.8908, 0.1092, 0, 0])
    assert close(oracle.rsoftmax([4, 6, 5, 5], 0.25), [0, 0.8717, 0.0641, 0.0641])
    assert close(oracle.rsoftmax([0, 0], 0.5), [0.5, 0.5])
    assert close(oracle.sparsegen([0.5, 0.0], 0.5), [1, 0])
    assert close(oracle.sparsehourglass([1.0, 0.5], 1), [0.5 + 3 / 14, 0.5 - 3 / 14])
    assert close(oracle.sigsoftmax([0.0, math.log(3)]), [0.5 / 2.75, 2.25 / 2.75])
    assert close(oracle.topk_sparsemax([0.2, 0.1, 0.0], 2), [0.55, 0.45, 0])
    assert close(oracle.tsoftmax([1.0, 0.0, -2.0], 2), [1 / (1 + 0.5 / math.e), 0.5 / math.e / (1 + 0.5 / math.e), 0])
    assert close(oracle.entmax([2.0, 2.0, 1.0], math.inf), [0.5, 0.5, 0])
    assert close([oracle.tsallis([0.5, 0.5], 2), oracle.tsallis([0.5, 0.5], 1)], [0.25, math.log(2)])


def test_rows_are_exact_in_float32():
    for label, row in ROWS.items():
        assert torch.tensor(row, dtype=torch.float32).tolist() == row, label
    assert max(map(len, ROWS.values())) <= 64
