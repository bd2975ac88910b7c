"""Schedules: values at every step, what they refuse, pickles."""

import copy
import math
import pickle

import pytest

from parsimax.schedules import Constant, Cosine, Geometric, Linear

RAMPS = {
    "linear": Linear(1.01, 1.5, steps=50),
    "falling": Linear(0.9, 0.0, steps=7, wait=3),
    "cosine": Cosine(0.0, 0.9, steps=50),
    "geometric": Geometric(1.01, 1.5, steps=50),
    "geometric from one": Geometric(1.01, 2.0, steps=33, wait=10, base=1),
    "geometric below": Geometric(-4.0, -0.1, steps=9),
}


@pytest.mark.parametrize("name", RAMPS)
def test_ramps(name):
    ramp = RAMPS[name]
    first, last = ramp.wait, ramp.wait + ramp.steps
    assert {ramp(step) for step in (-5, 0, first)} == {ramp.start}
    assert {ramp(step) for step in (last, last + 1, 10**9)} == {ramp.end}
    values = [ramp(step) for step in range(first, last + 1)]
    assert len(set(values)) == ramp.steps + 1 and values == sorted(values, reverse=ramp.end < ramp.start)
    assert all(isinstance(value, float) for value in values)


def test_values_between():
    assert Linear(0.0, 1.0, steps=4)(1) == 0.25
    assert Cosine(1.0, 2.0, steps=3)(1) == pytest.approx(1.25)
    ratios = [Geometric(1.0, 16.0, steps=4)(step) for step in range(5)]
    assert ratios == pytest.approx([1, 2, 4, 8, 16])
    above_one = Geometric(1.01, 2.0, steps=2, base=1)
    assert above_one(1) - 1 == pytest.approx(0.1)
    assert Constant(1.5)(0) == Constant(1.5)(10**9) == 1.5
    assert Linear(0.0, 1.0, steps=4)(2.0) == 0.5


@pytest.mark.parametrize("name", RAMPS)
def test_they_are_values(name):
    ramp = RAMPS[name]
    for other in (copy.deepcopy(ramp), pickle.loads(pickle.dumps(ramp)), eval(repr(ramp))):
        assert other == ramp and hash(other) == hash(ramp) and other(20) == ramp(20)
    assert eval(repr(Constant(0.25))) == Constant(0.25) != Constant(0.5)
    assert repr(RAMPS["falling"]) == "Linear(start=0.9, end=0.0, steps=7, wait=3)"


WRONG = {
    "no steps": (lambda: Linear(0.0, 1.0, steps=0), ValueError, "Linear: steps must be at least 1, got 0"),
    "part of a step": (lambda: Cosine(0.0, 1.0, steps=2.5), TypeError, "Cosine: steps must be an int"),
    "text": (lambda: Linear("low", 1.0, steps=2), TypeError, "start must be a number"),
    "nan": (lambda: Linear(0.0, math.nan, steps=2), ValueError, "end must be in"),
    "wait": (lambda: Linear(0.0, 1.0, steps=2, wait=-1), ValueError, "wait must be at least 1, got -1"),
    "zero": (lambda: Geometric(0.0, 0.9, steps=2), ValueError, "one side of base=0 .* got 0 and 0.9; from 0 on use"),
    "across": (lambda: Geometric(0.5, 1.5, steps=2, base=1), ValueError, "one side of base=1"),
    "constant": (lambda: Constant(None), TypeError, "value must be a number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name):
    call, error, match = WRONG[name]
    with pytest.raises(error, match=match):
        call()
