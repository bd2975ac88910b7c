"""Every method against the sum over all z: exact ones exactly, estimators within their standard error."""

import itertools
import math

import pytest
import torch
from torch import nn

import parsimax
from cases import normal
from parsimax import expected_loss
from parsimax import structured as st
from parsimax.latent import Best, Gumbel, Marginal, ScoreFunction, SparseMAP, SumAndSample, TopK
from structures import TWINS

N = 5
TABLE = normal(3, N, seed=7)  # the loss of every z for three examples
BITS = torch.tensor([*itertools.product((0.0, 1.0), repeat=4)], dtype=torch.float64)
BIT_TABLE = normal(3, 16, seed=8)


def of_index(example, z):
    return TABLE[example, z]


def of_bits(example, z):
    """Multilinear in the bits: relaxed ones too."""
    share = torch.where(BITS[None] > 0, z[:, None], 1 - z[:, None]).prod(-1)
    return (BIT_TABLE[example] * share).sum(-1)


def dense(scores, mapping=torch.softmax):
    p = mapping(scores, -1)
    return (p * TABLE).sum(-1)


def gradient(loss, scores):
    return torch.autograd.grad(loss.sum(), scores, retain_graph=True)[0]


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax", "entmax15"])
def test_the_support_is_evaluated_and_nothing_else(mapping):
    """The count of calls is the sum of the support sizes; loss, entropy and gradients are those of the dense sum."""
    scores = normal(3, N).requires_grad_()
    p = getattr(parsimax, mapping)(scores)
    called = []

    def counted(example, z):
        called.append(len(example))
        return of_index(example, z)

    out = expected_loss(scores, counted, Marginal(mapping))
    assert called == [int((p > 0).sum())] and torch.equal(out.calls, (p > 0).sum(-1))
    torch.testing.assert_close(out.loss, (p * TABLE).sum(-1))
    torch.testing.assert_close(gradient(out.loss, scores), gradient((p * TABLE).sum(-1), scores))
    entropy = -torch.where(p > 0, p * p.clamp(min=1e-30).log(), 0).sum(-1)
    torch.testing.assert_close(out.entropy, entropy)
    torch.testing.assert_close(gradient(out.entropy, scores), gradient(entropy, scores))
    torch.testing.assert_close(out.kl(-math.log(N)), math.log(N) - entropy)
    prior = torch.log_softmax(normal(N, seed=2), -1)
    by_hand = (p * (torch.where(p > 0, p.clamp(min=1e-30).log(), 0) - prior)).sum(-1)
    torch.testing.assert_close(out.kl(prior[out.z]), by_hand)


@pytest.mark.parametrize("name", [n for n in TWINS if n != "custom"])
@pytest.mark.parametrize("method", [Marginal("softmax"), Marginal("sparsemax"), TopK(3), SparseMAP()], ids=str)
def test_exact_methods_on_every_structure(name, method):
    twin = TWINS[name]
    scores = twin.scores(2, 0.6)
    many = isinstance(scores, tuple)
    unary = (scores[0] if many else scores).requires_grad_()
    table = normal(2, len(twin.codes), seed=3)
    out = expected_loss(scores, lambda example, z: table[example, twin.index(z)], method, structure=twin.structure)
    values = twin.values(scores)
    if isinstance(method, Marginal):
        p = method.mapping(values)
    elif isinstance(method, TopK):
        kept = torch.full_like(values, -math.inf).scatter(1, values.topk(3).indices, 0)
        p = parsimax.sparsemax(values + kept)
    else:
        found = parsimax.sparsemap(scores, twin.structure)
        p = torch.zeros(2, len(twin.codes)).double()
        p = p.index_put((found.example, twin.index(found.structures)), found.probabilities)
    torch.testing.assert_close(out.loss, (p * table).sum(-1))
    torch.testing.assert_close(gradient(out.loss, unary), gradient((p * table).sum(-1), unary))
    assert torch.equal(out.calls, (p > 0).sum(-1)) and out.certificate is not None


ESTIMATORS = {
    "plain": lambda: ScoreFunction(),
    "four samples": lambda: ScoreFunction(samples=4),
    "mean": lambda: ScoreFunction("mean"),
    "second-sample": lambda: ScoreFunction("second-sample"),
    "leave-one-out": lambda: ScoreFunction("leave-one-out"),
    "network": lambda: ScoreFunction(nn.Linear(2, 1, dtype=torch.float64)),
    "sum and sample": lambda: SumAndSample(2),
}
DRAWS = 20_000


def draws(method, scores, loss_of, structure, table_rows=3):
    """Loss and gradient of many draws at once: the batch is the same three examples over and over."""
    many = scores.repeat(DRAWS, 1).detach().requires_grad_()
    context = torch.ones(len(many), 2, dtype=torch.float64)
    out = expected_loss(
        many, lambda example, z: loss_of(example % table_rows, z), method, structure=structure, context=context
    )
    return out.loss.detach().view(DRAWS, -1), gradient(out.loss, many).view(DRAWS, *scores.shape)


def far(samples, truth):
    """By how many standard errors the mean is off, at most."""
    error = samples.std(0) / math.sqrt(len(samples))
    return ((samples.mean(0) - truth).abs() / error.clamp(min=1e-12)).max()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_of_one_of_n_are_unbiased(name):
    torch.manual_seed(0)
    scores = normal(3, N).requires_grad_()
    truth = dense(scores)
    loss, grads = draws(ESTIMATORS[name](), scores, of_index, st.OneOf())
    assert far(loss, truth.detach()) < 4.5
    assert far(grads, gradient(truth, scores)) < 4.5


@pytest.mark.parametrize("name", ["plain", "second-sample", "leave-one-out"])
def test_estimators_of_bits_are_unbiased(name):
    torch.manual_seed(1)
    scores = normal(3, 4).requires_grad_()
    p = torch.softmax((BITS[None] * scores[:, None]).sum(-1), -1)
    truth = (p * BIT_TABLE).sum(-1)
    loss, grads = draws(ESTIMATORS[name](), scores, of_bits, st.Bits())
    assert far(loss, truth.detach()) < 4.5
    assert far(grads, gradient(truth, scores)) < 4.5


def test_the_test_of_bias_can_fail():
    """Gumbel is biased, and it shows."""
    torch.manual_seed(0)
    scores = normal(3, N).requires_grad_()

    def squared(example, z):
        return (z * TABLE[example]).sum(-1).square()

    p = torch.softmax(scores, -1)
    _, grads = draws(Gumbel(1.0), scores, squared, st.OneOf())
    assert far(grads, gradient((p * TABLE.square()).sum(-1), scores)) > 10


def test_baselines_lower_the_variance():
    torch.manual_seed(0)
    scores = normal(3, N)
    spread = {}
    for name in ("plain", "second-sample", "sum and sample"):
        _, grads = draws(ESTIMATORS[name](), scores, lambda e, z: of_index(e, z) + 5, st.OneOf())
        spread[name] = grads.var(0).sum().item()
    assert spread["second-sample"] < spread["plain"] / 5 and spread["sum and sample"] < spread["plain"] / 5


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel(hard):
    torch.manual_seed(0)
    scores = normal(3, N).requires_grad_()
    out = expected_loss(scores, lambda e, z: (z * TABLE[e]).sum(-1), Gumbel(0.5, hard=hard))
    assert (((out.z == 0) | (out.z == 1)).all() == hard) and torch.allclose(out.z.sum(-1), torch.ones(3).double())
    assert gradient(out.loss, scores).abs().sum() > 0
    bits = expected_loss(scores, lambda e, z: z.sum(-1), Gumbel(0.5, hard=hard), structure=st.Bits())
    assert (((bits.z == 0) | (bits.z == 1)).all()) == hard


def test_entropies_of_the_softmax():
    scores, labels = normal(3, 4).requires_grad_(), normal(2, 3, 4).requires_grad_()
    p = torch.softmax((BITS[None] * scores[:, None]).sum(-1), -1)
    out = expected_loss(scores, of_bits, ScoreFunction(), structure=st.Bits())
    torch.testing.assert_close(out.entropy, -(p * p.log()).sum(-1))
    out = expected_loss(labels, lambda e, z: z.sum(-1).double(), ScoreFunction(), structure=st.OneOfEach())
    q = torch.softmax(labels, -1)
    torch.testing.assert_close(out.entropy, -(q * q.log()).sum((-1, -2)))


@pytest.mark.parametrize("method", [ScoreFunction(samples=3), Gumbel(), SumAndSample(1)], ids=str)
def test_what_is_forbidden_has_no_share_and_no_gradient(method):
    """A score of -inf: entropy, loss and gradients are those without it, as with methods that sum."""
    scores = normal(3, N)
    scores[:, 2] = -math.inf
    scores.requires_grad_()
    left = [0, 1, 3, 4]
    out = expected_loss(scores, lambda e, z: of_index(e, z) if z.dim() == 1 else (z * TABLE[e]).sum(-1), method)
    entropy = torch.distributions.Categorical(logits=scores[:, left]).entropy()
    torch.testing.assert_close(out.entropy, entropy)
    torch.testing.assert_close(gradient(out.entropy, scores), gradient(entropy, scores))
    assert gradient(out.loss, scores).isfinite().all()
    if isinstance(method, SumAndSample):
        return
    bits = expected_loss(scores, lambda e, z: z.sum(-1), method, structure=st.Bits())
    entropy = torch.distributions.Bernoulli(logits=scores[:, left]).entropy().sum(-1)
    torch.testing.assert_close(bits.entropy, entropy)
    torch.testing.assert_close(gradient(bits.entropy, scores), gradient(entropy, scores))
    assert (bits.z[:, 2] == 0).all()
    by_loss = gradient(bits.loss, scores)
    assert by_loss.isfinite().all() and (by_loss[:, 2] == 0).all()


@pytest.mark.parametrize("method", [Marginal(), TopK(2), ScoreFunction("second-sample"), Gumbel(), SumAndSample(1)])
def test_a_batch_of_nothing(method):
    out = expected_loss(torch.zeros(0, N), lambda e, z: z.float().view(len(e), -1 if len(e) else 1)[:, 0], method)
    assert out.loss.shape == out.entropy.shape == out.calls.shape == (0,)


def test_the_running_mean_and_the_network_learn():
    torch.manual_seed(0)
    scores, mean = normal(3, N), ScoreFunction("mean")
    losses = [expected_loss(scores, of_index, mean).loss.mean().item() for _ in range(5)]
    assert mean.mean.item() == pytest.approx(sum(losses) / 5, rel=1e-5)
    mean.eval()
    before = mean.mean.clone()
    expected_loss(scores, of_index, mean)
    assert torch.equal(mean.mean, before)
    network = ScoreFunction(nn.Linear(2, 1))
    out = expected_loss(scores.float(), lambda e, z: of_index(e, z).float(), network, context=torch.randn(3, 2))
    out.baseline_loss.backward()
    assert network.network.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match=r"pass context=\.\.\."):
        expected_loss(scores, of_index, network)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunks_change_nothing(chunk):
    torch.manual_seed(0)
    layer, scores, code = nn.Linear(N, 1).double(), normal(3, N).requires_grad_(), torch.eye(N).double()
    sizes = []

    def loss_of(example, z):
        sizes.append(len(z))
        return layer(code[z])[:, 0] * (example + 1), {"z": z.double()}

    whole = expected_loss(scores, loss_of, Marginal("softmax"))
    parts = expected_loss(scores, loss_of, Marginal("softmax"), chunk=chunk)
    torch.testing.assert_close(parts.loss, whole.loss)
    torch.testing.assert_close(parts.metrics["z"], (torch.softmax(scores, -1) * torch.arange(N)).sum(-1).detach())
    leaves = (scores, layer.weight)
    pairs = zip(
        torch.autograd.grad(parts.loss.sum(), leaves), torch.autograd.grad(whole.loss.sum(), leaves), strict=True
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)
    assert max(sizes[1:]) <= max(chunk, 1) or chunk == 100


def test_batch_norm_warns():
    norm, scores, code = nn.BatchNorm1d(N), normal(3, N).float(), torch.eye(N)

    def loss_of(example, z):
        return norm(code[z]).sum(-1)

    with pytest.warns(UserWarning, match="BatchNorm1d in loss_of takes its statistics over all pairs"):
        expected_loss(scores, loss_of, Marginal("softmax"))
    norm.eval()
    expected_loss(scores, loss_of, Marginal("softmax"))


def test_best_is_the_most_probable():
    scores = normal(3, N)
    assert torch.equal(expected_loss(scores, of_index, Best()).z, scores.argmax(-1))


X = normal(3, N)
ERRORS = {
    "shape": (lambda: expected_loss(X[0], of_index, Marginal()), r"one dimension of examples .* got \(5,\)"),
    "class": (lambda: expected_loss(X, of_index, Marginal), r"the class Marginal; write Marginal\("),
    "losses": (lambda: expected_loss(X, lambda e, z: torch.ones(2), Best()), r"one number a pair, \(3,\), got \(2,\)"),
    "chunk": (lambda: expected_loss(X, of_index, Best(), chunk=0), "1 or more, got 0"),
    "mapping": (lambda: Marginal("softmx"), r"softmax, entmax15, .* got 'softmx'"),
    "baseline": (lambda: ScoreFunction("median"), "got 'median'"),
    "samples": (lambda: ScoreFunction("leave-one-out", samples=1), "2 or more here, got 1"),
    "temperature": (lambda: Gumbel(0.0), "above 0, got 0.0"),
    "k": (lambda: TopK(0), "got 0"),
    "nothing left": (lambda: expected_loss(X, of_index, SumAndSample(5)), "leaves nothing to sample of 5"),
    "no softmax": (
        lambda: expected_loss(X[None], of_index, ScoreFunction(), structure=st.Assignment()),
        "not for Assignment",
    ),
    "too many": (lambda: expected_loss(normal(1, 20), of_bits, Marginal(), structure=st.Bits()), "more than 4096"),
    "prior": (
        lambda: expected_loss(X.clone().requires_grad_(), of_index, ScoreFunction()).kl(torch.zeros(3)),
        "this method samples",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, words = ERRORS[name]
    with pytest.raises((ValueError, TypeError), match=words):
        call()
