"""Bad input raises at once, and the message says what was given and what is allowed."""

import math
import re

import pytest
import torch

import parsimax
from cases import CONTINUOUS, EXAMPLES, each, normal
from parsimax import entmax, entmax_loss, fenchel_young_loss
from parsimax.mappings import REGISTRY

X = normal(2, 3, 4, 5, dtype=torch.float32)
Y = torch.tensor([0, 4])


def raises(error, *words: str):
    """The message holds all of these words, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(word) for word in words))


@each(CONTINUOUS)
def test_numbers_outside_of_the_domain(case):
    domain, name = case.entry.setting.domain, case.parameter
    outside = [math.nan, *[domain.low] * (not domain.closed_low), *[domain.high] * (not domain.closed_high)]
    outside += [v for v in (domain.low - 0.01, domain.high + 0.01) if math.isfinite(v)]
    for value in outside:
        with raises(ValueError, case.name, name, f"must be in {domain}", f"got {value:g}"):
            case(X, value)
        with raises(ValueError, name, f"must be in {domain}", f"got {value:g}"):
            case.entry.module(value)


@each(CONTINUOUS)
@pytest.mark.parametrize("value", [True, "1.5", None, [1.5], 1.5j], ids=repr)
def test_parameters_that_are_no_number(case, value):
    with raises(TypeError, case.name, case.parameter, "must be a number or a tensor", f"got {value!r}"):
        case(X, value)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0, ValueError, ("k must be at least 1", "got 0")),
        (-3, ValueError, ("k must be at least 1", "got -3")),
        (2.0, TypeError, ("k must be an int", "got 2.0")),
        (True, TypeError, ("k must be an int", "got True")),
        ("2", TypeError, ("k must be an int", "got '2'")),
    ],
    ids=repr,
)
def test_counts(value, error, words):
    with raises(error, "topk_sparsemax", *words):
        parsimax.topk_sparsemax(X, value)
    with raises(error, *words):
        parsimax.TopKSparsemax(value)


@each(CONTINUOUS)
def test_parameters_of_wrong_shape_or_type(case):
    name = case.parameter
    for shape in [(5,), (3,), (2, 3, 4, 5), (3, 4), (7, 1), (1, 2, 3, 4, 1), (0,)]:
        with raises(ValueError, case.name, f"{name} of shape {shape}", "(2, 3, 4, 1)", "(2, 3, 4, 5)"):
            case(X, torch.full(shape, case.value))
    with raises(ValueError, f"{name} of shape (3,)", f"{name}.view(3, 1, 1)"):
        case(X, torch.full((3,), case.value))
    for dtype in (torch.long, torch.bool, torch.complex64):
        with raises(TypeError, case.name, f"{name} must be floating point", f"got {dtype}"):
            case(X, torch.ones((), dtype=dtype))


@each(EXAMPLES)
def test_scores(case):
    for dtype in (torch.long, torch.bool, torch.uint8):
        with raises(TypeError, case.name, "scores must be floating point", f"got {dtype}", "dtype="):
            case(torch.ones(3, dtype=dtype))
    with raises(TypeError, case.name, "scores must be", "got torch.complex64"):
        case(torch.ones(3, dtype=torch.complex64))
    with raises(TypeError, case.name, "dtype must be a floating-point type", "got torch.int64"):
        case(X, dtype=torch.long)
    for scores in ([1.0, 2.0], None, 3.0):
        with raises(TypeError, case.name, "scores must be a torch.Tensor", f"got {type(scores).__name__}"):
            case(scores)


@each(EXAMPLES)
def test_dim(case):
    for dim in (4, -5):
        with raises(IndexError, case.name, "dim must be between -4 and 3", f"got {dim}"):
            case(X, dim=dim)
    for dim in (1.0, None, "1", True):
        with raises(TypeError, case.name, "dim must be an int", f"got {dim!r}"):
            case(X, dim=dim)


@each(EXAMPLES)
def test_mask(case):
    for shape in [(4,), (2, 3, 4), (1, 2, 3, 4, 5), (2, 3, 4, 6), (0,)]:
        with raises(ValueError, case.name, f"mask of shape {shape}", "(2, 3, 4, 5)"):
            case(X, mask=torch.ones(shape, dtype=torch.bool))
    for dtype in (torch.float32, torch.long, torch.uint8):
        with raises(TypeError, case.name, "mask must be a boolean tensor", f"got {dtype}"):
            case(X, mask=torch.ones(5, dtype=dtype))
    with raises(TypeError, case.name, "mask must be a boolean tensor", "got list"):
        case(X, mask=[True] * 5)
    with raises(ValueError, case.name, "mask of shape (2, 3)", "(1, 3)"):  # a mask never enlarges the scores
        case(X[0, 0, :1, :3], mask=torch.ones(2, 3, dtype=torch.bool))


def test_one_alpha_per_head_gets_a_hint():
    """One α per head, given as (H,), is the commonest mistake in attention."""
    with raises(ValueError, "alpha of shape (8,)", "(2, 8, 5, 1)", "alpha.view(8, 1, 1)"):
        entmax(torch.zeros(2, 8, 5, 5), torch.full((8,), 1.5))


CLASSIFICATION = {
    "entmax_loss": entmax_loss,
    "sparsemax_loss": parsimax.sparsemax_loss,
    "entmax15_loss": parsimax.entmax15_loss,
    "fenchel_young_loss": lambda *args, **options: fenchel_young_loss(*args, "sparsemax", **options),
}


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_options_of_losses(name):
    loss, scores = CLASSIFICATION[name], normal(2, 5)
    for smoothing in (-0.1, 1.1, math.nan):
        with raises(ValueError, name, "label_smoothing must be in [0, 1]", f"got {smoothing:g}"):
            loss(scores, Y, label_smoothing=smoothing)
    for reduction in ("avg", "", None, "Mean"):
        with raises(ValueError, name, "reduction", "mean, sum, none", f"got {reduction!r}"):
            loss(scores, Y, reduction=reduction)
    for shape in [(4,), (1,), (2, 5), ()]:
        with raises(ValueError, name, "weight must have shape (5,)", f"got {shape}"):
            loss(scores, Y, weight=torch.ones(shape))


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_targets_of_losses(name):
    loss, scores = CLASSIFICATION[name], normal(2, 5)
    for shape in [(3,), (1,), (), (2, 1), (2, 5)]:
        with raises(ValueError, name, "(2, 5)", "(2,)", f"got {shape}"):
            loss(scores, torch.zeros(shape, dtype=torch.long))
    for shape in [(2,), (2, 4), (5,), (1, 5)]:
        with raises((TypeError, ValueError), name, "(2,)", "(2, 5)", f"{shape}"):
            loss(scores, torch.zeros(shape))
    for dtype in (torch.bool, torch.complex64):
        with raises(TypeError, name, "class indices", "probabilities", f"got {dtype}"):
            loss(scores, torch.zeros(2, dtype=dtype))
    with raises(TypeError, name, "target must be a torch.Tensor", "got list"):
        loss(scores, [0, 4])
    with raises(IndexError, name, "5", "out of bounds", "5 classes"):
        loss(scores, torch.tensor([0, 5]))
    with raises(TypeError, name, "scores must be floating point", "got torch.int64"):
        loss(torch.ones(2, 5, dtype=torch.long), Y)
    with raises(ValueError, name, "at least one dimension", "got shape ()"):
        loss(torch.tensor(1.0), torch.tensor(0))


def test_alpha_of_the_loss():
    """Here 0 is outside: the conjugate of the logarithm is infinite at a single class."""
    scores = normal(2, 5)
    for alpha in (0, -1.0, math.nan):
        with raises(ValueError, "entmax_loss", "alpha must be in (0, inf]", f"got {alpha:g}"):
            entmax_loss(scores, Y, alpha)
    with raises(ValueError, "entmax_loss", "alpha of shape (4,)", "(2, 1)"):
        entmax_loss(scores, Y, torch.ones(4))
    with raises(TypeError, "entmax_loss", "third argument is alpha", "(5,)", "weight="):
        entmax_loss(scores, Y, torch.ones(5))
    assert entmax_loss(scores, Y, torch.tensor([[0.0], [1.5]]), reduction="none").isnan().tolist() == [True, False]


def test_mappings_of_fenchel_young_losses():
    scores = normal(2, 5)
    with raises(ValueError, "no mapping is called 'softmaxx'", *REGISTRY):
        fenchel_young_loss(scores, Y, "softmaxx")
    for mapping in (torch.softmax, 3, torch.nn.Softmax()):
        with raises(TypeError, "mapping must be a name", "sparsemax", "got"):
            fenchel_young_loss(scores, Y, mapping)
    having = [name for name, entry in REGISTRY.items() if entry.regulariser]
    for name, entry in REGISTRY.items():
        if name not in having:
            with raises(ValueError, name, "no such loss", *having):
                fenchel_young_loss(scores, Y, entry.function)
    with raises(TypeError, "sparsemax has no setting alpha", "none"):
        fenchel_young_loss(scores, Y, "sparsemax", alpha=1.5)
    with raises(TypeError, "entmax has no setting lam", "alpha"):
        fenchel_young_loss(scores, Y, "entmax", lam=0.5)


def test_the_fused_loss():
    hidden, weight, loss = normal(2, 4), normal(5, 4), parsimax.linear_entmax_loss
    with raises(ValueError, "linear_entmax_loss", "(classes, 4)", "(2, 4)", "got (5, 3)"):
        loss(hidden, weight[:, :3], Y)
    with raises(ValueError, "bias must have shape (5,)", "got (4,)"):
        loss(hidden, weight, Y, bias=torch.ones(4))
    for softcap in (0, -1.0, math.inf):
        with raises(ValueError, "softcap must be in (0, inf)", f"got {softcap:g}"):
            loss(hidden, weight, Y, softcap=softcap)
    with raises(ValueError, "class indices must have shape (2,)", "got (3,)"):
        loss(hidden, weight, torch.zeros(3, dtype=torch.long))
    with raises(IndexError, "5", "out of bounds", "5 classes"):
        loss(hidden, weight, torch.tensor([0, 5]))
    with raises(ValueError, "weight must have shape (5,)", "got (4,)"):
        loss(hidden, weight, Y, class_weight=torch.ones(4))
    with raises(ValueError, "alpha must be in (0, inf]", "got -1"):
        loss(hidden, weight, Y, -1.0)


def test_multilabel_targets():
    scores = normal(2, 5)
    with raises(ValueError, "multilabel_loss", "(2, 5)", "got (2,)"):
        parsimax.multilabel_loss(scores, Y)
    with raises(ValueError, "must not be negative", "got -1"):
        parsimax.multilabel_loss(scores, -torch.ones(2, 5))
    with raises(TypeError, "rsoftmax needs rate", "[0, 1]"):
        parsimax.multilabel_loss(scores, torch.ones(2, 5), "rsoftmax")
    with raises(ValueError, "no multi-label loss for topk_sparsemax"):
        parsimax.multilabel_loss(scores, torch.ones(2, 5), "topk_sparsemax", k=2)
    with raises(ValueError, "reduction must be one of mean, sum, none", "got 'avg'"):
        parsimax.multilabel_loss(scores, torch.ones(2, 5), reduction="avg")


def test_the_interval_of_a_learned_alpha():
    for interval in [(2, 1), (1, 1), (-math.inf, 2)]:
        with raises(ValueError, "Entmax", "interval", f"got {interval}"):
            parsimax.Entmax(1.5, learnable=True, interval=interval)
    with raises(ValueError, "Entmax", "inside [0, inf]", "got (-1, 2)"):
        parsimax.Entmax(1.5, learnable=True, interval=(-1, 2))
