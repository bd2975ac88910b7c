"""Empty rows, scalars, nested tensors, subnormal spreads, scripting, and class weights in the place of α."""

import math
import warnings

import pytest
import torch
from torch.nn import functional as F

import parsimax
from cases import CASES, each


@each(CASES)
@pytest.mark.parametrize("shape", [(5, 0), (0, 5), (0,), (2, 0, 3)], ids=str)
def test_second_derivatives_of_nothing(case, shape):
    for dim in range(len(shape)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(case(x, dim=dim).sum(), x, create_graph=True)
        if shape[dim] and not first.requires_grad:
            continue  # a piecewise linear mapping, whose gradient does not depend on the scores
        (second,) = torch.autograd.grad(first.sum(), x)
        assert first.shape == second.shape == shape and first.dtype == torch.float64


def test_alpha_has_a_gradient_through_rows_of_nothing():
    x, alpha = torch.randn(5, 0, requires_grad=True), torch.full((5, 1), 1.3, requires_grad=True)
    first = torch.autograd.grad(parsimax.entmax(x, alpha).sum(), (x, alpha), create_graph=True)
    assert torch.equal(first[1], torch.zeros(5, 1))
    assert torch.equal(torch.autograd.grad(sum(g.sum() for g in first), alpha)[0], torch.zeros(5, 1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5, 0), (0, 3), (0,), (2, 0, 3)], ids=str)
def test_losses_at_probabilities_of_nothing(shape, reduction, smoothing):
    x, target = torch.randn(shape, requires_grad=True), torch.rand(shape)
    if not x.shape[0 if x.dim() == 1 else 1] and smoothing:
        smoothing = 0.0  # torch divides by the number of classes
    options = {"reduction": reduction, "label_smoothing": smoothing}
    theirs = F.cross_entropy(x, target, **options)
    for loss in (parsimax.entmax_loss, parsimax.sparsemax_loss, lambda *a, **o: parsimax.entmax_loss(*a, 1.3, **o)):
        ours = loss(x, target, **options)
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        (first,) = torch.autograd.grad(ours.sum(), x, create_graph=True)
        assert first.shape == shape


@each(CASES)
@pytest.mark.parametrize("value", [1.5, -3.0, -math.inf, math.nan, math.inf])
def test_a_scalar_is_a_row_of_one(case, value):
    """As for ``torch.softmax``; no mapping took it before."""
    x = torch.tensor(value, dtype=torch.float64)
    for dim in (0, -1):
        row, ours = case(x.reshape(1)), case(x, dim=dim)
        assert ours.shape == () and torch.equal(ours.nan_to_num(7), row[0].nan_to_num(7))
    with pytest.raises(IndexError, match="dim must be between -1 and 0"):
        case(x, dim=1)


def test_softmax_of_a_scalar_is_torchs():
    x = torch.tensor(0.3, requires_grad=True)
    assert torch.equal(parsimax.softmax(x, 0), torch.softmax(x, 0))
    assert torch.autograd.grad(parsimax.softmax(x), x)[0] == 0
    assert parsimax.softmax(torch.tensor(0.3), mask=torch.tensor(False)) == 0
    assert parsimax.log_entmax(torch.tensor(0.3)) == 0


@each(CASES)
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_scores_are_refused(case, layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=layout)
        with pytest.raises(TypeError, match=rf"{case.name}: scores must not be a nested tensor; pad it with to_padded"):
            case(nested)
        with pytest.raises(TypeError, match=rf"{case.name}: mask must not be a nested tensor"):
            case(torch.randn(2, 3, 4), mask=nested > 0)
        with pytest.raises(TypeError, match="entmax_loss: scores must not be a nested tensor"):
            parsimax.entmax_loss(nested, torch.zeros(2, dtype=torch.long))


def test_what_the_refusal_of_nested_scores_advises():
    parts = [torch.randn(3), torch.randn(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        padded = torch.nested.nested_tensor(parts, layout=torch.jagged).to_padded_tensor(-math.inf)
    p = parsimax.entmax(padded, 1.3)
    torch.testing.assert_close(p[0], parsimax.entmax(parts[0], 1.3))
    torch.testing.assert_close(p[1], torch.cat([parsimax.entmax(parts[1], 1.3), torch.zeros(1)]))


def test_scripting_is_refused_in_a_sentence():
    functions = [parsimax.entmax, parsimax.entmax_loss, parsimax.entmax_attention, parsimax.sparsemax]
    modules = [parsimax.Entmax(1.3), parsimax.SparsemaxLoss(), parsimax.MultiheadAttention(4, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is on its way out
        for each_one in (*functions, *modules, torch.nn.Sequential(torch.nn.Linear(2, 2), parsimax.Softmax())):
            with pytest.raises(TypeError, match=r"torch\.jit\.script cannot compile.*use torch\.compile"):
                torch.jit.script(each_one)
        x = torch.randn(2, 3)
        traced = torch.jit.trace(parsimax.Entmax(1.3), x)
        torch.testing.assert_close(traced(x + 1), parsimax.entmax(x + 1, 1.3))


@pytest.mark.parametrize("shape", [(4, 3), (3, 3), (2, 1), (3,), (4, 3, 3), (4, 3, 2)], ids=str)
def test_a_class_weight_in_the_place_of_alpha_is_refused(shape):
    classes = shape[0] if len(shape) == 1 else shape[1]
    target = torch.zeros(shape[:1] + shape[2:] if len(shape) > 1 else (), dtype=torch.long)
    for weight in (torch.ones(classes), torch.full((classes,), 1.5)):
        for loss in (parsimax.entmax_loss, lambda x, y, w: parsimax.EntmaxLoss(w)(x, y)):
            with pytest.raises(TypeError, match=r"third argument is alpha.*pass class weights as weight=…"):
                loss(torch.randn(shape), target, weight)
    scores = torch.randn(shape)
    given = parsimax.entmax_loss(scores, target, weight=torch.ones(classes))
    torch.testing.assert_close(given, parsimax.entmax_loss(scores, target))
    layer, target = torch.randn(classes, 6), torch.zeros(4, dtype=torch.long)
    with pytest.raises(TypeError, match=r"fourth argument is alpha.*pass class weights as class_weight=…"):
        parsimax.linear_entmax_loss(torch.randn(4, 6), layer, target, torch.ones(classes))


@pytest.mark.parametrize("tiny", [1e-308, 5e-324])
def test_rsoftmax_of_scores_that_hardly_differ(tiny):
    """1/t overflows where the spread is subnormal; the weights themselves do not."""
    x = torch.tensor([0, tiny, 2 * tiny], dtype=torch.float64, requires_grad=True)
    p = parsimax.rsoftmax(x, 0.5)
    torch.testing.assert_close(p.detach(), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    (dx,) = torch.autograd.grad(p, x, torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    assert not dx.isnan().any()
