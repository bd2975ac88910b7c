"""Bad input raises at once and says what it got."""

import pytest
import torch

import parsimax
from cases import normal
from parsimax import sparsemap
from parsimax import structured as st
from parsimax.kernels import library

X = normal(3, 4)


def one_hot(scores):
    return torch.nn.functional.one_hot(scores.argmax(), 4).double()


CASES = {
    "matrix": (lambda: sparsemap(X[0], st.Assignment()), r"\(…, rows, columns\), got \(4,\)"),
    "rows": (lambda: sparsemap(X.T, st.Assignment()), r"no more rows than columns, got \(4, 3\)"),
    "tree": (lambda: sparsemap(X.T, st.Tree()), r"\(…, words, words \+ 1\), the root first, got \(4, 3\)"),
    "chain tensor": (lambda: sparsemap(X, st.Chain()), r"a tuple of .* got \(3, 4\)"),
    "chain": (lambda: sparsemap((X, X), st.Chain()), r"the transitions are \(4, 4\), \(2, 4, 4\) or .* got \(3, 4\)"),
    "tuple": (lambda: sparsemap((X, X), st.Bits()), "as one tensor, got a tuple of 2"),
    "integers": (lambda: sparsemap(X.long(), st.Bits()), "floating point, got torch.int64"),
    "too many bits": (lambda: sparsemap(X, st.Bits(5)), r"Bits\(at_least=5\) asks for more bits than .*\(3, 4\)"),
    "budget": (lambda: st.Bits(at_most=-1), "at_most is a whole number of bits, 0 or more, got -1"),
    "fraction": (lambda: st.Bits(at_most=1.5), "got 1.5"),
    "empty range": (lambda: st.Bits(3, 2), "at_most=2 is below at_least=3"),
    "k": (lambda: st.topk(X, st.Bits(), 0), "k is a whole number, 1 or more, got 0"),
    "fractional k": (lambda: st.topk(X, st.Bits(), 2.5), "got 2.5"),
    "rule": (lambda: sparsemap(X, st.Bits(at_most=2), rule="staircase"), "are systematic, active-set, got 'staircase'"),
    "shuffle": (lambda: sparsemap(X, st.Bits(), shuffle=True), "shuffle is for the rule systematic, not for staircase"),
    "class": (lambda: sparsemap(X, st.Bits), r"got Bits; write Bits\(\)"),
    "no structure": (lambda: sparsemap(X, "bits"), "one of parsimax.structured, got 'bits'"),
    "iterations": (lambda: sparsemap(X, st.Bits(), max_iter=0), "max_iter is a whole number, 1 or more, got 0"),
    "start": (
        lambda: sparsemap(X, st.Bits(), rule="active-set", start=sparsemap(X[:2], st.Bits())),
        r"start is of scores \(2, 4\), and does not fit those given, \(3, 4\)",
    ),
    "start of a closed form": (
        lambda: sparsemap(X, st.Bits(), start=sparsemap(X, st.Bits())),
        "start is for the rule active-set, not for staircase",
    ),
    "start that is none": (
        lambda: sparsemap(X, st.Assignment(), start=X),
        "start is a Distribution, as this function returns it, got Tensor",
    ),
    "start over the budget": (
        lambda: sparsemap(X, st.Bits(at_most=1), rule="active-set", start=sparsemap(X + 5, st.Bits())),
        r"other structures than Bits\(at_most=1\), such as \[1.0, 1.0, 1.0, 1.0\]",
    ),
    "start of free labels": (
        lambda: sparsemap(X[None], st.Assignment(), start=sparsemap(0 * X[None], st.OneOfEach())),
        r"other structures than Assignment\(\), such as \[0, 0, 0\]",
    ),
    "start of two roots": (
        lambda: sparsemap(X, st.Tree(single_root=True), start=sparsemap(X + 5 * torch.eye(4)[0], st.Tree())),
        r"other structures than Tree\(single_root=True\), such as \[0, 0, 0\]",
    ),
    "start of labels for parts": (
        lambda: sparsemap(X, st.Custom(lambda s: torch.ones_like(s), dims=2), start=sparsemap(X, st.OneOfEach())),
        r"other structures than Custom",
    ),
    "support of a closed form": (lambda: sparsemap(X, st.OneOf(), max_support=2), "max_support is for .* sparsemax"),
    "target of two rows": (
        lambda: parsimax.sparsemap_loss(X, torch.tensor([1, 3, 1]), st.Assignment()),
        r"one of the structures of Assignment\(\), got \[1, 3, 1\] for item 0",
    ),
    "target in a circle": (
        lambda: parsimax.sparsemap_loss(X, torch.tensor([2, 1, 0]), st.Tree()),
        r"structures of Tree\(single_root=False\), got \[2, 1, 0\]",
    ),
    "target of two roots": (
        lambda: parsimax.sparsemap_loss(X, torch.tensor([0, 1, 0]), st.Tree(single_root=True)),
        r"structures of Tree\(single_root=True\), got \[0, 1, 0\]",
    ),
    "target above the budget": (
        lambda: parsimax.sparsemap_loss(X, torch.tensor([0, 1, 0, 1.0]).expand(3, 4), st.Bits(at_most=1)),
        r"structures of Bits\(at_most=1\), got \[0, 1, 0, 1\]",
    ),
    "negated": (
        lambda: st.FactorGraph(4).add(st.Xor(), range(4), negated=[True]),
        r"negated has the shape of the variables, \(1, 4\), got \(1,\)",
    ),
    "no steps": (
        lambda: st.FactorGraph(4).add(st.Xor(), range(4)).solve(X, max_iter=0),
        "max_iter is a whole number, 1 or more, got 0",
    ),
    "nothing for a chain": (
        lambda: sparsemap(None, st.Chain()),
        r"a tuple of \(…, positions, labels\) .* got NoneType",
    ),
    "nothing for a table": (lambda: sparsemap(None, st.Dense()), r"a tuple of \(…, bits\) .* got NoneType"),
    "nothing for an oracle": (lambda: sparsemap(None, st.Custom(one_hot)), "a tuple of two, got NoneType"),
    "three for a chain": (lambda: sparsemap([X, X, X], st.Chain()), "got a list of 3"),
    "list of labels": (
        lambda: parsimax.sparsemap_loss(X, [0, 1, 2], st.OneOf()),
        r"the target is a tensor, got a list of 3; make one with torch.tensor",
    ),
    "cost in words": (lambda: parsimax.sparsemap_loss(X, X, st.Bits(), cost="1"), "a finite number, .* got '1'"),
    "costs": (lambda: parsimax.sparsemap_loss(X, X, st.Bits(), cost=torch.ones(2)), r"a finite number, .* got tensor"),
    "cost of a module": (
        lambda: parsimax.SparseMAPLoss(st.Bits(), cost=-1),
        "SparseMAPLoss: cost .* 0 or more, got -1",
    ),
    "reduction of a module": (
        lambda: parsimax.SparseMAPLoss(st.Bits(), reduction="avg"),
        "SparseMAPLoss: reduction is one of mean, sum, none, got 'avg'",
    ),
    "roots in words": (lambda: st.Tree(single_root="no"), "Tree: single_root is True or False, got 'no'"),
    "two roots": (lambda: st.Tree(single_root=2), "Tree: single_root is True or False, got 2"),
    "no kbest": (lambda: st.topk(X, st.Custom(lambda s: (s > 0).double()), 2), "has no kbest"),
    "nothing to choose": (lambda: sparsemap(torch.zeros(2, 0), st.OneOf()), r"OneOf\(\) needs .* got scores \(2, 0\)"),
    "nothing to list": (lambda: st.topk(torch.zeros(2, 0), st.OneOf(), 1), r"OneOf\(\) needs .* got scores \(2, 0\)"),
    "table": (lambda: sparsemap((X, X), st.Dense()), r"the table is \(2, 2, 2, 2\) or \(3, 2, 2, 2, 2\), got \(3, 4\)"),
    "large table": (lambda: sparsemap((torch.zeros(17), X), st.Dense()), r"1 to 16 bits, got scores \(17,\)"),
    "lists": (lambda: sparsemap(([[1.0, 0.0]], X), st.Chain()), "floating point tensors, got list and torch.float64"),
    "whole transitions": (lambda: sparsemap((X, torch.eye(4).long()), st.Chain()), "got torch.float64 and torch.int64"),
    "no table": (lambda: sparsemap(X, st.Dense()), r"a tuple of .* got \(3, 4\)"),
    "extra dims": (lambda: st.Custom(lambda s: s, extra_dims=0), "1 or more dimensions, .* got 0"),
    "target of a custom structure": (
        lambda: parsimax.sparsemap_loss(
            X, torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0]]), st.Custom(one_hot)
        ),
        r"item 1: a target is one of .*, got \[1, 1, 0, 0\].* the oracle returned \[1, 0, 0, 0\]",
    ),
    "no function": (lambda: st.Custom(3), "must be functions"),
    "expectation": (lambda: sparsemap(X, st.Bits()).expectation(torch.ones(2)), r"got \(2,\)"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_says_what_it_got(name):
    call, words = CASES[name]
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def broken(scores):
    if scores[0] > X[1, 0] - 1e-6 and scores[0] < X[1, 0] + 1e-6:
        raise KeyError("mine")
    return (scores > 0).double()


def worse_and_worse():
    """The best structure once, and the worst from then on."""
    calls = []

    def oracle(scores):
        calls.append(scores)
        return (scores > 0 if len(calls) == 1 else scores < 0).double()

    return oracle


def none_later():
    """The best structure once, and then that nothing is allowed."""
    calls = []

    def oracle(scores):
        calls.append(scores)
        return (scores > 0).double() if len(calls) == 1 else None

    return oracle


ORACLES = {
    "none later": (none_later(), ValueError, "item 0: the oracle returned None, .* after a structure"),
    "no tensor": (lambda s: "mine", ValueError, "item 0: the oracle returned 'mine'"),
    "raises": (broken, RuntimeError, "raised for item 1: KeyError"),
    "shape": (lambda s: torch.ones(2), ValueError, r"item 0: .* shape \[\(2,\)\], the scores have \[\(4,\)\]"),
    "non-vertex": (lambda s: torch.full((4,), 0.5), ValueError, r"item 0: the oracle returned \[0.5, 0.5"),
    "not the best": (worse_and_worse(), ValueError, r"item 0: .*less than one that it returned before"),
}


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_that_is_wrong_names_the_item(name):
    oracle, kind, words = ORACLES[name]
    with pytest.raises(kind, match=words):
        sparsemap(X, st.Custom(oracle))


KBEST = {
    "too many": (lambda s, k: [one_hot(s)] * (k + 1), "item 0: kbest returned 4 structures where 3 were asked for"),
    "twice": (
        lambda s, k: [one_hot(s), 1 - one_hot(s), one_hot(s)] if s[0] == X[1, 0] else [one_hot(s)],
        r"item 1: kbest returned \[.*\] twice, as numbers 0 and 2",
    ),
    "worst first": (
        lambda s, k: [*torch.eye(4)[s.argsort()][:k]],
        r"item 0: kbest returned scores of .* and then .*, as number 1; the best come first",
    ),
    "nothing": (lambda s, k: None, "item 0: kbest returned None; it must return a list of structures"),
}


@pytest.mark.parametrize("name", KBEST)
def test_a_kbest_that_is_wrong_names_the_item(name):
    kbest, words = KBEST[name]
    with pytest.raises(ValueError, match=words):
        st.topk(X, st.Custom(one_hot, kbest=kbest), 2)


def test_an_oracle_may_not_choose_what_is_forbidden():
    scores = X.clone()
    scores[2, 1] = -torch.inf
    with pytest.raises(ValueError, match=r"item 2: .*forbidden part"):
        sparsemap(scores, st.Custom(lambda s: torch.ones(4)))


def test_an_oracle_may_write_into_its_scores():
    def spoiling(scores):
        best = one_hot(scores)
        scores.fill_(0.0)
        return best

    def every(scores, k):
        order = scores.argsort(descending=True)[:k]
        scores.fill_(0.0)
        return [*torch.eye(4)[order]]

    expected = parsimax.sparsemax(X)
    torch.testing.assert_close(sparsemap(X, st.Custom(spoiling)).marginals, expected)
    torch.testing.assert_close(st.topk(X, st.Custom(one_hot, kbest=every), 4).marginals, expected)


@pytest.mark.parametrize("extra", [False, True])
def test_a_batch_of_nothing_of_a_custom_structure(extra):
    def oracle(scores):
        raise AssertionError("there is no item")

    structure = st.Custom(oracle, kbest=oracle)
    nothing = X[:0].clone().requires_grad_()
    scores = (nothing, X.new_zeros(0, 2)) if extra else nothing
    for found in (sparsemap(scores, structure), st.topk(scores, structure, 2)):
        assert found.structures.shape == found.marginals.shape == (0, 4) and found.counts.shape == (0,)
    assert parsimax.sparsemap_loss(scores, nothing.detach(), structure, reduction="none").shape == (0,)


def test_a_custom_structure_with_extra_parts_is_a_chain():
    unary, moves = normal(2, 3, 2), normal(2, 2, 2, 2, seed=1)
    chain = st.Chain()

    def oracle(scores):
        code = chain.best(*scores).long()
        parts = torch.nn.functional.one_hot(code, 2)
        pairs = parts[:-1, :, None] * parts[1:, None, :]
        return parts, pairs

    mine = sparsemap((unary, moves), st.Custom(oracle, dims=2))
    theirs = sparsemap((unary, moves), chain)
    torch.testing.assert_close(mine.marginals, theirs.marginals, rtol=0, atol=1e-9)
    assert torch.equal(mine.counts, theirs.counts)


@pytest.mark.skipif(not library.AVAILABLE, reason="the kernels were not built")
def test_kernels_that_were_asked_for():
    with parsimax.use_kernels("cpu"), pytest.raises(RuntimeError, match="oracle in Python has no kernel"):
        sparsemap(X, st.Custom(lambda s: (s > 0).double()))
