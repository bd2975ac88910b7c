"""``parsimax.compat``: the signatures of the peer packages, their answers where those are right, no fault."""

import importlib
import inspect
import math

import entmax as peer
import pytest
import torch

import parsimax
from parsimax.compat import entmax as ours
from parsimax.compat.sparsemax import Sparsemax

NAMES = sorted(name for name in ours.__all__)
FUNCTIONS = [name for name in NAMES if name.islower()]
LOSSES = [name for name in FUNCTIONS if name.endswith("loss")]
MAPPINGS = [name for name in FUNCTIONS if not name.endswith("loss")]
MODULES = [name for name in NAMES if not name.islower()]
TOLERANCE = 1e-12
X = torch.randn(7, 5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
TARGET = torch.arange(7)


def parameters(function):
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


def arguments(function, *, left_out=()):
    """Every option by position, at its default or at a value that says something."""
    values = {"k": 3, "n_iter": 60, "ensure_sum_one": False, "alpha": 1.7, "budget": 2.5, "dim": 1}
    return [values[name] for name, _ in parameters(function) if name in values and name not in left_out]


def assert_same(function, theirs, *inputs):
    """Values and gradients."""
    got = []
    for f in (function, theirs):
        x = inputs[0].clone().requires_grad_()
        y = f(x, *inputs[1:])
        (y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view_as(y)).sum().backward()
        got.append((y.detach(), x.grad))
    for a, b in zip(*got, strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def test_no_name_is_missing():
    public = {n for n in vars(peer) if not n.startswith("_") and callable(getattr(peer, n))}
    assert public == set(NAMES)


@pytest.mark.parametrize("module", ["activations", "root_finding", "losses"])
def test_the_modules_have_the_names_of_theirs(module):
    theirs, mine = (importlib.import_module(f"{p}.{module}") for p in ("entmax", "parsimax.compat.entmax"))
    for name in (n for n in NAMES if getattr(peer, n).__module__ == theirs.__name__):
        assert getattr(mine, name) is getattr(ours, name)


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_theirs(name):
    theirs, mine = parameters(getattr(peer, name)), parameters(getattr(ours, name))
    assert mine[: len(theirs)] == theirs
    assert {extra for extra, _ in mine[len(theirs) :]} <= {"return_support_size"}  # of a later version


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_agree(name):
    function, theirs = getattr(ours, name), getattr(peer, name)
    assert_same(function, theirs, X)
    if name != "sparsemax_bisect":  # whose docs say that it does not support other dims
        assert_same(function, theirs, X, *arguments(function))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_agree(name):
    function, theirs = getattr(ours, name), getattr(peer, name)
    assert function(X[:, 0], TARGET).shape == (7,)
    assert_same(function, theirs, X[:, 0], TARGET)
    assert_same(function, theirs, X[:, 0], TARGET, *arguments(function))


@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
@pytest.mark.parametrize("name", [n for n in MODULES if n.endswith("Loss")])
def test_loss_modules_agree(name, reduction):
    mine, theirs = (getattr(p, name)(ignore_index=2, reduction=reduction) for p in (ours, peer))
    assert_same(mine, theirs, X[:, 0], TARGET)
    assert reduction in repr(mine)


@pytest.mark.parametrize("name", [n for n in MODULES if not n.endswith("Loss")])
def test_mapping_modules_agree(name):
    mine, theirs = (getattr(p, name) for p in (ours, peer))
    left_out = ("dim",) if name == "SparsemaxBisect" else ()
    assert_same(mine(), theirs(), X)
    names = [n for n, _ in parameters(theirs) if n not in left_out]
    options = dict(zip(names, arguments(theirs, left_out=left_out), strict=True))
    assert_same(mine(**options), theirs(**options), X)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_the_size_of_the_support(name):
    p, size = getattr(ours, name)(X, 1, return_support_size=True)
    assert size.shape == (7, 1, 9)
    assert torch.equal(size, (p > 0).sum(1, keepdim=True))
    module = getattr(ours, {"sparsemax": "Sparsemax", "entmax15": "Entmax15"}[name])(1, return_support_size=True)
    assert torch.equal(module(X)[1], size)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="one of elementwise_mean, sum, none, got 'mean'"):
        ours.SparsemaxLoss(reduction="mean")


def test_sparsemax_package():
    assert parameters(Sparsemax) == [("dim", -1)]
    assert torch.equal(Sparsemax(1)(X), parsimax.sparsemax(X, 1))
    assert repr(Sparsemax(1)) == "Sparsemax(dim=1)"
    # On its own dim = 0 of two dimensions that package normalises the other one; see docs/from_entmax.md.
    assert Sparsemax(0)(X[0]).sum(0).allclose(torch.ones(9, dtype=X.dtype))


class TestFaultsThatDisappear:
    """Each is shown of the peer first, so that the page which lists them is never out of date."""

    def test_alpha_one(self):
        assert torch.equal(peer.entmax_bisect(X, 1.0), torch.full_like(X, 1 / 9))  # uniform, whatever the scores
        torch.testing.assert_close(ours.entmax_bisect(X, 1.0), X.softmax(-1))

    def test_a_row_with_nothing_allowed(self):
        x = X[0].clone()
        x[1] = -math.inf
        assert peer.entmax_bisect(x)[1].isnan().all()
        for name in ("sparsemax", "entmax15", "entmax_bisect"):
            if name != "entmax_bisect":
                with pytest.raises(RuntimeError, match="out of bounds"):
                    getattr(peer, name)(x)
            assert torch.equal(getattr(ours, name)(x)[1], torch.zeros(9, dtype=x.dtype))

    def test_a_loss_with_a_forbidden_class(self):
        x = X[:, 0].clone()
        x[:, 8] = -math.inf
        assert peer.entmax15_loss(x, TARGET).isnan().all()
        torch.testing.assert_close(ours.entmax15_loss(x, TARGET), ours.entmax15_loss(x[:, :8], TARGET))

    def test_the_default_ignore_index(self):
        target = TARGET.clone()
        target[3] = -100
        with pytest.raises((RuntimeError, IndexError)):
            peer.Entmax15Loss()(X[:, 0], target)
        kept = target != -100
        torch.testing.assert_close(ours.Entmax15Loss()(X[:, 0], target), ours.Entmax15Loss()(X[kept, 0], TARGET[kept]))

    def test_k_over_another_dim(self):
        with pytest.raises((IndexError, RuntimeError)):
            peer.sparsemax(X * 0.01, -2, 2)
        assert torch.equal(ours.sparsemax(X * 0.01, -2, 2), parsimax.sparsemax(X * 0.01, -2))

    @pytest.mark.parametrize("name", ["entmax_bisect_loss", "normmax_bisect_loss"])
    def test_the_gradient_of_a_loss_by_alpha(self, name):
        for package, given in ((peer, False), (ours, True)):
            alpha = torch.full((7, 1), 1.5, dtype=X.dtype, requires_grad=True)
            f = getattr(package, name)
            if not given:
                f(X[:, 0].clone().requires_grad_(), TARGET, alpha[0, 0]).sum().backward()
                assert alpha.grad is None
            else:
                assert torch.autograd.gradcheck(lambda a, f=f: f(X[:, 0], TARGET, a), alpha)

    def test_a_learned_alpha_in_a_module(self):
        alpha = torch.nn.Parameter(torch.tensor(1.5))
        with pytest.raises(AttributeError, match="before Module"):
            peer.EntmaxBisect(alpha)
        assert dict(ours.EntmaxBisect(alpha).named_parameters()) == {"alpha": alpha}
        module = ours.EntmaxBisect(torch.full((5, 1), 1.5)).to(torch.float64)
        assert module.alpha.dtype == torch.float64  # it moves with the module
        assert not module.state_dict()  # and a state of the package loads

    def test_function_transforms(self):
        with pytest.raises(RuntimeError):
            torch.func.vmap(torch.func.grad(lambda x: peer.entmax15(x).square().sum()))(X[0])
        grads = torch.func.vmap(torch.func.grad(lambda x: ours.entmax15(x).square().sum()))(X[0])
        x = X[0].clone().requires_grad_()
        parsimax.entmax15(x).square().sum().backward()
        torch.testing.assert_close(grads, x.grad)
