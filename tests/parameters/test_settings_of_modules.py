"""Settings of mappings in modules of every kind: fixed, learned and scheduled, saved, and loaded from old files."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import parsimax
from cases import CONTINUOUS, each, normal
from parsimax import AttentionCore, schedules, set_step
from parsimax.mappings import REGISTRY
from parsimax.parameters import EDGE, Setting

SCORES = normal(2, 4, 6, 6, dtype=torch.float32)
TARGET = torch.tensor([1, 3])
LOSSES = [case for case in CONTINUOUS if case.entry.regulariser]


def owners(case, value, **options):
    """Every kind of module that holds the setting of a mapping, and a function that runs it on some scores."""
    own = {case.parameter: value}
    module = case.entry.module(**own, **options)
    core = AttentionCore(4, case.name, **own, **options)
    made = [(module, lambda: module(SCORES)), (core, lambda: core(SCORES, SCORES, SCORES))]
    if case.entry.regulariser:
        loss = parsimax.FenchelYoungLoss(case.name, **own, **options)
        made.append((loss, lambda: loss(SCORES[:, 0, 0], TARGET)))
    if case.name == "entmax":
        entmax, linear = parsimax.EntmaxLoss(value, **options), parsimax.LinearEntmaxLoss(value, **options)
        weight = normal(5, 6, dtype=torch.float32)
        made.append((entmax, lambda: entmax(SCORES[:, 0, 0], TARGET)))
        made.append((linear, lambda: linear(SCORES[:, 0, 0], weight, TARGET)))
    return made


def now(owner, case):
    value = owner.value(case.parameter)
    return value if isinstance(value, torch.Tensor) else torch.tensor(float(value))


@each(CONTINUOUS)
def test_every_owner_follows_a_schedule(case):
    def schedule(step):
        return case.value * (1 + step / 20)

    for scheduled, run in owners(case, schedule):
        ((fixed, truth), *_) = [pair for pair in owners(case, schedule(4)) if type(pair[0]) is type(scheduled)]
        before = run()
        set_step(nn.ModuleList([scheduled]), 4)
        torch.testing.assert_close(now(scheduled, case), now(fixed, case), check_dtype=False)
        torch.testing.assert_close(run(), truth(), rtol=0, atol=1e-6)
        assert not torch.equal(run(), before), type(scheduled)
        assert list(scheduled.state_dict()) == ["step"]
        again = copy.deepcopy(scheduled)
        set_step(again, 0)
        assert now(again, case) == case.value and now(scheduled, case) != case.value


@each(CONTINUOUS)
@pytest.mark.parametrize("size", [1e12, -1e12], ids=["up", "down"])
def test_no_step_takes_a_learned_setting_out_of_its_domain(case, size):
    for owner, run in owners(case, "learned"):
        (raw,) = owner.parameters()
        torch.testing.assert_close(
            now(owner, case).flatten()[0], torch.tensor(case.entry.setting.default or case.value), rtol=1e-5, atol=1e-6
        )
        run().square().sum().backward()
        assert raw.grad.isfinite().all() and raw.grad.abs().sum() > 0, type(owner)
        with torch.no_grad():
            raw.add_(size)
        value = now(owner, case)
        assert owner._settings[case.parameter].domain.holds(value).all(), (type(owner), value)
        assert run().isfinite().all(), (type(owner), value)


def test_ends_that_do_not_belong_to_the_domain_are_kept_away_from():
    module = parsimax.TSoftmax(1.0, learnable=True, interval=(0, 4))
    with torch.no_grad():
        module.learned_t.raw.fill_(-1e9)
    assert module.t.item() == pytest.approx(EDGE)
    module = parsimax.Sparsegen(0.25, learnable=True).half()
    with torch.no_grad():
        module.learned_lam.raw.fill_(-6e4)
    assert 1 - 2 * EDGE < module.lam < 1
    with torch.no_grad():
        module.learned_lam.raw.fill_(6e4)
    assert module.lam.item() == pytest.approx(-6e4, rel=1e-3)


@each(CONTINUOUS)
def test_a_fixed_number_may_be_set_anew(case):
    module = case.module()
    other = case.value * 1.1
    setattr(module, case.parameter, other)
    assert getattr(module, case.parameter) == other
    assert torch.equal(module(SCORES), case(SCORES, other))
    with pytest.raises(ValueError, match=f"{type(module).__name__}: {case.parameter} must be in"):
        setattr(module, case.parameter, math.nan)
    with pytest.raises(TypeError, match="was made a number and stays one"):
        setattr(module, case.parameter, torch.tensor(other))
    for value, match in (("learned", "is learned"), (lambda step: case.value, "follows a schedule")):
        with pytest.raises(AttributeError, match=match):
            setattr(case.entry.module(value), case.parameter, other)


# what was saved before settings had one owner


def test_old_states_load():
    saved = torch.tensor(0.3)  # a scalar: now it has shape (1,)
    for module in (parsimax.Entmax("learned"), parsimax.EntmaxLoss("learned"), parsimax.LinearEntmaxLoss("learned")):
        module.load_state_dict({"learned_alpha.raw": saved})
        torch.testing.assert_close(module.alpha, 1 + saved.sigmoid())
    value = torch.tensor([[0.7]])
    old = {
        "t": parsimax.TSoftmax(torch.ones(1, 1)),
        "rate": parsimax.RSoftmax(nn.Parameter(torch.ones(1, 1))),
        "lam": parsimax.FenchelYoungLoss("sparsegen", lam=torch.zeros(1, 1)),
        "alpha_value": AttentionCore(1, alpha=nn.Parameter(torch.ones(1, 1))),
    }
    for key, module in old.items():
        module.load_state_dict({key: value})
        assert (module.value(key.removesuffix("_value")) == 0.7).all()
        outer = nn.Sequential(nn.Sequential(module))
        outer.load_state_dict({f"0.0.{key}": value + 0.1})
        assert (module.value(key.removesuffix("_value")) - 0.8).abs().max() < 1e-6


@pytest.mark.parametrize("make", [parsimax.Entmax, parsimax.EntmaxLoss, lambda alpha: AttentionCore(1, alpha=alpha)])
def test_states_that_do_not_fit_say_what_to_do(make):
    learned, fixed = nn.Sequential(make("learned")), nn.Sequential(make(1.5))
    for strict in (True, False):
        with pytest.warns(UserWarning, match=r'^0: alpha was learned when .* make the module with alpha="learned"'):
            if strict:
                with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "0\.learned_alpha\.raw"'):
                    fixed.load_state_dict(learned.state_dict())
            else:
                fixed.load_state_dict(learned.state_dict(), strict=False)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0\.learned_alpha\.raw"'):
        learned.load_state_dict(fixed.state_dict())
    learned.load_state_dict(fixed.state_dict(), strict=False)


def test_what_cannot_be():
    wrong = [
        (lambda: parsimax.TopKSparsemax("learned"), ValueError, "k is a count and cannot be learned"),
        (lambda: parsimax.TopKSparsemax(torch.tensor(2)), TypeError, "k is a count and cannot be a tensor"),
        (lambda: parsimax.RSoftmax("learnt"), ValueError, "got rate='learnt'"),
        (lambda: parsimax.RSoftmax(lambda step: 0.5, learnable=True), ValueError, "rate follows a schedule"),
        (lambda: parsimax.RSoftmax(0.5, learnable=True, interval=(0, 2)), ValueError, r"inside \[0, 1\], got \(0, 2\)"),
        (lambda: parsimax.RSoftmax(), TypeError, r"missing a required argument: 'rate'; it is RSoftmax\(rate, dim=-1,"),
        (lambda: parsimax.Sparsemax(alpha=2), TypeError, "unexpected keyword argument 'alpha'"),
        (lambda: parsimax.FenchelYoungLoss("normmax"), TypeError, "normmax needs a setting, such as alpha=2"),
        (lambda: set_step(3, 1), TypeError, "model must be a torch.nn.Module"),
    ]
    for call, error, match in wrong:
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize("name", REGISTRY)
def test_the_declared_default_is_that_of_the_function(name):
    import inspect

    entry = REGISTRY[name]
    if entry.setting is not None:
        default = inspect.signature(entry.function).parameters[entry.setting.name].default
        assert entry.setting.default == (None if default is inspect.Parameter.empty else default)
        assert isinstance(entry.setting, Setting) and entry.setting.about


def test_modules_with_settings_are_pickled():
    for module in (
        parsimax.RSoftmax("learned"),
        parsimax.Entmax(schedules.Linear(1.1, 1.9, steps=4)),
        parsimax.TopKSparsemax(3),
    ):
        again = pickle.loads(pickle.dumps(module))
        assert repr(again) == repr(module) and torch.equal(again(SCORES), module(SCORES))
        set_step(again, 2)
