"""Every mapping against fifty digits, on the rows that go wrong: float64 within 1e-12, float32 within 2e-6."""

import functools
import itertools
import math

import pytest
import torch

import oracle
import parsimax
from cases import pairs
from oracle import mp

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
PARAMETERS = {
    "entmax": [0.0, 0.5, 0.9, 1 - 1e-6, 1.0, 1 + 1e-6, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 50.0, math.inf],
    "tsoftmax": [0.01, 0.5, 1.0, 3.0, 100.0, math.inf],
    "rsoftmax": [0.0, 0.2, 0.5, 0.75, 1.0],
    "topk_sparsemax": [1, 2, 5, 100],
    "normmax": [1.1, 1.5, 2.0, 3.0, 10.0],
    "budget_sparsemax": [0.0, 0.5, 1.0, 2.0, 3.7, 100.0],
    "sparsegen": [-3.0, 0.0, 0.5, 0.9],
    "sparsehourglass": [0.1, 1.0, 10.0],
}
CASES = [
    pytest.param(name, (parameter,) if name in PARAMETERS else (), id=f"{name}-{parameter}")
    for name in oracle.TRUTH
    for parameter in PARAMETERS.get(name, [""])
]
LONG_PARAMETERS = {
    "entmax": (1.25,),
    "tsoftmax": (1.0,),
    "rsoftmax": (0.9,),
    "topk_sparsemax": (100,),
    "normmax": (1.5,),
    "budget_sparsemax": (7.5,),
    "sparsegen": (0.5,),
    "sparsehourglass": (1.0,),
}
ALPHAS_OF_GRADIENT = [0.9, 0.99, 1 - 1e-6, 1.0, 1 + 1e-6, 1.001, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0]


@functools.cache
def batches() -> list[tuple[list[str], list[list[float]]]]:
    """The oracle's rows stacked by their length, so that each batch mixes easy and hard ones."""
    by_length: dict[int, list[str]] = {}
    for label, row in oracle.rows().items():
        by_length.setdefault(len(row), []).append(label)
    return [(labels, [oracle.rows()[label] for label in labels]) for labels in by_length.values()]


@functools.cache
def truth(name: str, row: tuple[float, ...], *parameters: float) -> list:
    return oracle.TRUTH[name](row, *parameters)


def ulp(value: float, dtype: torch.dtype) -> float:
    return math.ldexp(torch.finfo(dtype).eps, math.frexp(value)[1] - 1) if value else torch.finfo(dtype).tiny


def is_truth_of_scores_nearby(name, row: list[float], alpha: float, answer: list[float], dtype: torch.dtype) -> bool:
    """Whether there are scores within one ulp of ``row`` whose truth is ``answer``, to the tolerance.

    For α > 2 the power 1/(α−1), of entmax and of normmax alike, has an infinite slope at the threshold, so the rounding
    of one score there moves p by more than any tolerance, and only this can be asked. On its support a mapping can be
    undone up to the threshold: each p_i says how high its score lies above it. So take the threshold that one entry
    implies, move each other score towards the place its answer implies, by an ulp at most (down, if its answer is
    zero), and ask the oracle. Nothing is accepted without such scores in hand.

    The ulp is that of the larger of the score and the row's maximum: these mappings know a score by its distance to the
    maximum alone, and that distance is where a method has to round. Normmax gets two: the threshold it divides by is a
    rounded number of the size of the scores, which costs it one more.
    """
    with mp.workprec(400 + round(45 * alpha)):  # heights go down to 1e-12 to the power α−1, far below their scores
        return _some_scores_nearby_have_this_truth(name, row, alpha, answer, dtype)


def _some_scores_nearby_have_this_truth(name, row, alpha, answer, dtype) -> bool:
    b = mp.mpf(alpha) - 1
    exact = [mp.mpf(p) for p in answer]
    norm = mp.fsum(p**alpha for p in exact) ** (1 / mp.mpf(alpha))
    heights = [p**b / b if name == "entmax" else (p / norm) ** b for p in exact]
    top = max(row)

    def within_an_ulp(score: float, wanted: mp.mpf) -> mp.mpf:
        reach = ulp(max(abs(score), abs(top)), dtype) * (2 if name == "normmax" else 1)
        return min(max(wanted, score - reach), score + reach)

    for anchor in (i for i, p in enumerate(answer) if p > 0):
        threshold = row[anchor] - heights[anchor]
        moved = [
            score if score == -math.inf else within_an_ulp(score, threshold + height if p > 0 else -mp.inf)
            for score, height, p in zip(row, heights, answer, strict=True)
        ]
        expected = oracle.TRUTH[name](moved, alpha)
        if max(abs(p - q) for p, q in zip(exact, expected, strict=True)) <= TOLERANCE[dtype]:
            return True
    return False


def complaint(name, row, parameters, answer, dtype) -> str:
    """What is wrong with an answer, or nothing."""
    if any(map(math.isnan, answer)):
        return "NaN"
    if any(p != 0 for p, score in zip(answer, row, strict=True) if score == -math.inf):
        return "a forbidden entry is not exactly zero"
    expected = truth(name, tuple(row), *parameters)
    if name == "topk_sparsemax":
        # Which of the equal scores at the border of the k largest are taken is free: compare in order of (score, p).
        expected = [p for _, p in sorted(zip(row, expected, strict=True))]
        row, answer = zip(*sorted(zip(row, answer, strict=True)), strict=True)
    elif any(max(answer[i] for i in same) - min(answer[i] for i in same) > TOLERANCE[dtype] for same in ties(row)):
        return "equal scores, unequal answers"
    error = max(abs(p - q) for p, q in zip(expected, answer, strict=True))
    steep = name in ("entmax", "normmax") and 2 < parameters[0] < math.inf
    if error <= TOLERANCE[dtype] or (steep and is_truth_of_scores_nearby(name, row, *parameters, answer, dtype)):
        return ""
    return f"off by {float(error):.2e}"


def ties(row):
    places = {}
    for i, score in enumerate(row):
        places.setdefault(score, []).append(i)
    return places.values()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_fifty_digits(name, parameters, dtype):
    wrong = {}
    for labels, rows in batches():
        answers = getattr(parsimax, name)(torch.tensor(rows, dtype=dtype), *parameters)
        assert answers.dtype == dtype
        for label, row, answer in zip(labels, rows, answers.tolist(), strict=True):
            wrong[label] = complaint(name, row, parameters, answer, dtype)
    assert {label: text for label, text in wrong.items() if text} == {}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [300, 2500])
@pytest.mark.parametrize("name", oracle.TRUTH)
def test_long_rows(name, size, dtype):
    """A solver may take another way where rows are long."""
    parameters = LONG_PARAMETERS.get(name, ())
    normal = torch.randn(size, generator=torch.Generator().manual_seed(size))
    rows = {
        "normal": normal,
        "steps of 1/8": (normal * 8).round() / 8,
        "half forbidden": normal.where(normal.roll(1) > 0, -torch.inf),
        "plateau under a peak": torch.cat([torch.ones(1), torch.full((size - 1,), 0.9375)]),
    }
    answers = getattr(parsimax, name)(torch.stack(list(rows.values())).to(dtype), *parameters).tolist()
    wrong = {
        label: complaint(name, row.tolist(), parameters, answer, dtype)
        for (label, row), answer in zip(rows.items(), answers, strict=True)
    }
    assert {label: text for label, text in wrong.items() if text} == {}


# The largest score, ulps from the threshold of those below it, and how many are the largest.
AT_THE_THRESHOLD = pairs(
    [0.0, 1.0, 3.0, -2.5, 100.0], [[0], [1], [-1], [0, 1], [1, 2, 2], [12], [3, 40, -5, 0]], [1, 2]
)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 7.0, 50.0])
@pytest.mark.parametrize("name", ["entmax", "normmax"])
def test_scores_at_the_threshold(name, alpha, dtype):
    """Scores a few ulps from the place where they would get nothing, under one or two equal maxima."""
    wrong = {}
    for top, steps, maxima in AT_THE_THRESHOLD:
        edge = top - (maxima ** (1 - alpha) / (alpha - 1) if name == "entmax" else maxima ** (1 / alpha - 1))
        row = torch.tensor([top] * maxima + [edge] * len(steps), dtype=dtype)
        row[maxima:] += ulp(max(abs(top), abs(edge)), dtype) * torch.tensor(steps)
        answer = getattr(parsimax, name)(row, alpha).tolist()
        text = complaint(name, row.tolist(), (alpha,), answer, dtype)
        if not abs(math.fsum(answer) - 1) <= TOLERANCE[dtype]:
            text = f"sums to 1 + {math.fsum(answer) - 1:.2e}; {text}"
        wrong[top, maxima, str(steps)] = text
    assert {case: text for case, text in wrong.items() if text} == {}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ["entmax", "normmax", "tsoftmax", "rsoftmax", "budget_sparsemax"])
def test_a_parameter_for_each_row(name, dtype):
    """Rows of one batch with parameters of their own; the oracle takes each as the dtype holds it."""
    wrong = {}
    for start, (labels, rows) in itertools.product(range(len(PARAMETERS[name])), batches()):
        own = torch.tensor(
            [PARAMETERS[name][(start + i) % len(PARAMETERS[name])] for i in range(len(rows))], dtype=dtype
        )
        answers = getattr(parsimax, name)(torch.tensor(rows, dtype=dtype), own[:, None])
        for label, row, parameter, answer in zip(labels, rows, own.tolist(), answers.tolist(), strict=True):
            wrong[label, parameter] = complaint(name, row, (parameter,), answer, dtype)
    assert {case: text for case, text in wrong.items() if text} == {}


@pytest.mark.parametrize("name", ["entmax", "normmax"])
@pytest.mark.parametrize("alpha", [2.5, 4.0, 50.0])
def test_the_check_above_two_can_fail(name, alpha):
    """It accepts the truth and refuses what lies a little off it, in the sum or in two entries."""
    for label in ("random 3", "random steep", "tied at the threshold"):
        row = oracle.rows()[label]
        exact = [float(p) for p in oracle.TRUTH[name](row, alpha)]
        accepts = functools.partial(is_truth_of_scores_nearby, name, row, alpha, dtype=torch.float64)
        assert accepts(answer=exact), label
        assert not accepts(answer=[p * (1 + 1e-9) for p in exact]), label
        top, low = exact.index(max(exact)), exact.index(min(exact))
        assert not accepts(answer=[p + 1e-3 * ((i == low) - (i == top)) for i, p in enumerate(exact)]), label


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("alpha", ALPHAS_OF_GRADIENT)
def test_alpha_gradient(alpha, dtype, kernels):
    """Within 1e-5 of its own size, or 1e-6 where it is tiny; the oracle takes α as the dtype holds it. Of kernels it is
    asked where no score lies within 1e-6 of the threshold."""
    wrong = []
    for labels, rows in batches():
        alphas = torch.full((len(rows), 1), alpha, dtype=dtype, requires_grad=True)
        g = torch.randn(len(rows), len(rows[0]), generator=torch.Generator().manual_seed(0), dtype=dtype)
        parsimax.entmax(torch.tensor(rows, dtype=dtype), alphas).backward(g)
        for label, row, weights, ours in zip(labels, rows, g.tolist(), alphas.grad.flatten().tolist(), strict=True):
            if kernels in ("cpu", "lean") and any(
                0 < p < 1e-6 ** (1 / max(alpha - 1, 0.2)) for p in truth("entmax", tuple(row), alpha)
            ):
                continue
            if not any(score != -math.inf for score in row):
                expected = 0.0
            else:
                expected = float(oracle.entmax_alpha_gradient(row, alphas[0].item(), weights))
            if not abs(ours - expected) <= max(1e-5 * abs(expected), 1e-6):
                wrong.append(f"{label}: {ours:.9g} instead of {expected:.9g}")
    assert wrong == []


@pytest.mark.parametrize("alpha", [4.0, 8.0, 20.0])
def test_an_entry_just_at_the_threshold_of_a_long_row(alpha):
    """The search leaves out entries of long rows; one whose share only appears between two doubles must not be."""
    generator = torch.Generator().manual_seed(493)
    rows = 3 * torch.randn(20, 193, generator=generator, dtype=torch.float64)
    for row, answer in zip(rows.tolist(), parsimax.entmax(rows, alpha), strict=True):
        expected = [float(value) for value in oracle.entmax(row, alpha)]
        # The share is 1 - e^w with the w of the other entries: known to rounding whatever the threshold is.
        torch.testing.assert_close(answer.tolist(), expected, atol=1e-9, rtol=0)
