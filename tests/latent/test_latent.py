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


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("method", [ScoreFunction("second-sample"), SumAndSample(2)], ids=str)
def test_estimators_on_every_structure_are_unbiased(name, method):
    """Against the list of all structures: loss, gradient by all scores, and the entropy exactly."""
    torch.manual_seed(2)
    twin = TWINS[name]
    copies = 500 if name == "custom" else 4000  # its oracle is called for each
    scores = twin.scores(2, 0.6)
    several = isinstance(scores, tuple)
    parts = [part.requires_grad_() for part in (scores if several else (scores,))]
    many = [part.detach().repeat(copies, *[1] * (part.dim() - 1)).requires_grad_() for part in parts]
    table = normal(2, len(twin.codes), seed=3)
    p = torch.softmax(twin.values(scores), -1)
    truth = (p * table).sum(-1)

    def loss_of(example, z):
        return table[example % 2, twin.index(z)]

    out = expected_loss(tuple(many) if several else many[0], loss_of, method, structure=twin.structure)
    torch.testing.assert_close(out.entropy[:2], -(p * p.log()).sum(-1))
    assert far(out.loss.detach().view(copies, 2), truth.detach()) < 4.5
    wanted = torch.autograd.grad(truth.sum(), parts, retain_graph=True)
    for found, exact in zip(torch.autograd.grad(out.loss.sum(), many, retain_graph=True), wanted, strict=True):
        assert far(found.view(copies, *exact.shape), exact) < 4.5
    wanted = torch.autograd.grad(-(p * p.log()).sum(), parts)
    for found, exact in zip(torch.autograd.grad(out.entropy[:2].sum(), many), wanted, strict=True):
        torch.testing.assert_close(found[:2], exact)


@pytest.mark.parametrize("name", ["bits", "between", "each", "chain", "permutation", "single root", "custom"])
def test_the_sample_is_none_of_those_that_were_summed(name):
    torch.manual_seed(0)
    twin = TWINS[name]
    scores = twin.scores(2, 3.0)
    best = parsimax.structured.topk(scores, twin.structure, 4)
    for k in (3, 10**4, 2**31, 2**63):  # with all of them summed nothing is left to sample
        out = expected_loss(
            scores, lambda e, z: z.double().sum().expand(len(e)), SumAndSample(k), structure=twin.structure
        )
        assert all(len({*map(str, out.z[out.example == item].tolist())}) == out.calls[item] for item in (0, 1))
        torch.testing.assert_close(
            torch.zeros(2).double().index_add(0, out.example, out.weights), torch.ones(2).double()
        )
        assert out.calls.max() <= min(k + 1, len(twin.codes)) and best.counts.max() <= 4
    assert (out.calls == len(twin.codes)).all()


def test_long_chains_and_large_trees_are_drawn():
    """Sizes that nobody can list; what is drawn is as probable as the normaliser says, on average."""
    torch.manual_seed(0)
    for structure, scores in (
        (st.Chain(), (normal(3, 60, 8), normal(8, 8, seed=1))),
        (st.Bits(at_most=6), normal(3, 60)),
        (st.Bits(at_least=20, at_most=20), normal(3, 60)),
        (st.Tree(single_root=True), 2 * normal(3, 15, 16)),
    ):
        own = parsimax.latent.gibbs.of(structure, scores)
        codes, row = own.sample(400), own.items.local(400)
        assert structure.holds(codes).all()
        surprise = -own.log_prob(codes, row).view(3, 400)
        assert ((surprise.mean(1) - own.entropy()).abs() < 4.5 * surprise.std(1) / 20).all()


@pytest.mark.parametrize("name", ["tree", "single root"])
@pytest.mark.parametrize("win", [10, 40, 300])
def test_cycles_that_win_by_much_cost_no_digits(name, win):
    scores = TWINS[name].scores(3, 1.0)
    scores[:, 0, 2] += win  # two words want each other as heads
    scores[:, 1, 1] += win
    found = parsimax.latent.gibbs.of(TWINS[name].structure, scores)
    torch.testing.assert_close(found.log_z, TWINS[name].values(scores).logsumexp(1), atol=1e-11, rtol=0)
    assert TWINS[name].structure.holds(found.sample(50)).all()


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_on_every_structure(name, hard):
    """A point of the polytope, or a structure itself; and a gradient by the scores."""
    torch.manual_seed(0)
    twin = TWINS[name]
    scores = twin.scores(6, 0.6)
    unary = (scores[0] if isinstance(scores, tuple) else scores).requires_grad_()
    weights = normal(*unary.shape[1:], seed=3)
    out = expected_loss(
        scores, lambda e, z: (z * weights).flatten(1).sum(1), Gumbel(hard=hard), structure=twin.structure
    )
    vertices = twin.parts.flatten(1)
    if hard:
        assert (torch.cdist(out.z.flatten(1), vertices).amin(1) < 1e-9).all()
    else:
        assert ((out.z > 0) & (out.z < 1)).any() and (out.z @ torch.ones(unary.shape[-1]).double()).max() < 6
    assert gradient(out.loss, unary).abs().sum() > 0 and torch.equal(out.calls, torch.ones(6, dtype=torch.long))
    p = torch.softmax(twin.values(scores), -1)
    wanted = torch.full((6,), math.nan).double() if name == "custom" else -(p * p.log()).sum(-1)
    torch.testing.assert_close(out.entropy, wanted, equal_nan=True)


METHODS = [
    Marginal("softmax"),
    Marginal(),
    TopK(2),
    SparseMAP(),
    Best(),
    ScoreFunction(),
    ScoreFunction("mean"),
    ScoreFunction("second-sample"),
    ScoreFunction("leave-one-out"),
    ScoreFunction(nn.Linear(1, 1, dtype=torch.float64)),
    Gumbel(),
    Gumbel(hard=True),
    SumAndSample(1),
]


@pytest.mark.parametrize("structure", ["one", "each", "exactly", "chain", "permutation", "single root"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_one_item_spoils_no_other(structure, method):
    """NaN or +inf makes its item NaN; where nothing is allowed the loss and all gradients are 0. Others are as ever."""
    scores = normal(5, N) if structure == "one" else TWINS[structure].scores(5, 1.0)
    chosen = st.OneOf() if structure == "one" else TWINS[structure].structure
    unary, *moves = scores if isinstance(scores, tuple) else (scores,)
    unary[1].view(-1)[0], unary[2].view(-1)[0], unary[3] = math.nan, math.inf, -math.inf
    unary.requires_grad_()
    layer = torch.ones(1, dtype=torch.float64, requires_grad=True)
    context = torch.arange(5).double()[:, None]
    context[1] = math.nan

    def loss_of(example, z):
        return layer * (example + 1.0) + 0 * z.double().flatten(1 if z.dim() > 1 else 0).sum(-1 if z.dim() > 1 else ())

    given = (unary, *moves) if moves else unary
    before = getattr(method, "seen", torch.zeros(())).clone()
    out = expected_loss(given, loss_of, method, structure=chosen, context=context)
    assert out.loss[[1, 2]].isnan().all() and out.loss[3] == 0 and out.entropy[3] == 0 and out.calls[3] == 0
    torch.testing.assert_close(out.loss[[0, 4]].detach(), torch.tensor([1.0, 5.0]).double())
    assert out.entropy[[0, 4]].isfinite().all() and not (out.example == 3).any()
    grads = gradient((out.loss + out.entropy)[[0, 3, 4]], unary)
    assert grads[[0, 4]].isfinite().all() and (grads[3] == 0).all()
    if isinstance(method, ScoreFunction):
        assert method.mean.isfinite() and method.seen - before == (method.kind == "mean")
        if method.network is not None:
            out.baseline_loss.backward()
            assert method.network.weight.grad.isfinite().all()


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


@pytest.mark.parametrize("method", [Marginal("softmax"), Marginal("sparsemax"), ScoreFunction(), SumAndSample(1)])
def test_no_structure_to_list(method):
    """A batch of nothing, and one in which no item allows anything."""
    for scores in (torch.zeros(0, 3, 3), torch.full((2, 3, 3), -math.inf)):
        scores.requires_grad_()
        out = expected_loss(scores, lambda e, z: z.float().sum(-1), method, structure=st.Assignment())
        assert out.loss.tolist() == out.entropy.tolist() == out.calls.tolist() == [0] * len(scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_entropy_of_what_is_rounded_to_zero(dtype):
    """Of scores that are far apart softmax has probabilities that the type of the scores has not."""
    scores = torch.tensor([[0.0, -200.0, -1.0], [300.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    out = expected_loss(scores, lambda e, z: z.float(), Marginal("softmax"))
    expected = torch.distributions.Categorical(logits=scores.detach().double()).entropy()
    torch.testing.assert_close(out.entropy.double(), expected, rtol=0, atol=5e-3)
    (by_entropy,) = torch.autograd.grad(out.entropy.sum(), scores)
    assert by_entropy.isfinite().all() and (by_entropy[1] == 0).all() and by_entropy[0, 1] == 0


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("method", [Marginal("softmax"), SparseMAP(), ScoreFunction(), SumAndSample(2), Gumbel()])
def test_inference_mode(name, method):
    twin = TWINS[name]
    scores = twin.scores(2, 1.0)

    def entropy():
        out = expected_loss(scores, lambda e, z: z.double().flatten(1).sum(1), method, structure=twin.structure)
        assert out.loss.isfinite().all()
        return out.entropy

    if name == "custom" and not isinstance(method, SparseMAP):
        pytest.skip("its oracle alone gives no list")
    expected = entropy()
    with torch.inference_mode():
        torch.testing.assert_close(entropy(), expected)


def test_metrics_of_any_type_are_expectations():
    for method in (Marginal(), ScoreFunction(), SumAndSample(1), Gumbel(), Best()):
        out = expected_loss(normal(3, N), lambda e, z: (e.double(), {"few": e < 2, "row": e}), method)
        torch.testing.assert_close(out.metrics["few"], torch.tensor([1.0, 1.0, 0.0]).double())
        torch.testing.assert_close(out.metrics["row"], torch.arange(3).double())


def test_the_divergence_where_scores_are_fixed():
    """The loss has a gradient by the decoder alone; a prior of one number may be a tensor."""
    weight = torch.ones(N, dtype=torch.float64, requires_grad=True)
    for method in (Marginal(), TopK(2), ScoreFunction()):
        out = expected_loss(normal(3, N), lambda e, z: weight[z], method)
        torch.testing.assert_close(out.kl(torch.tensor(-2.0)), 2 - out.entropy)
        if out.certificate is not None:
            torch.testing.assert_close(out.kl(torch.full(out.weights.shape, -2.0)), 2 - out.entropy)


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


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(N, track_running_stats=False).eval(), nn.LazyBatchNorm1d(), nn.BatchNorm1d(N)], ids=str
)
def test_every_batch_norm_that_looks_at_the_batch_warns(norm):
    def loss_of(example, z):
        return norm(torch.eye(N)[z]).sum(-1)

    with pytest.warns(UserWarning, match="BatchNorm1d in loss_of takes its statistics over all pairs"):
        expected_loss(normal(3, N).float(), loss_of, Marginal("softmax"))


def test_best_is_the_most_probable():
    scores = normal(3, N)
    assert torch.equal(expected_loss(scores, of_index, Best()).z, scores.argmax(-1))


X = normal(3, N)
ERRORS = {
    "shape": (lambda: expected_loss(X[0], of_index, Marginal()), r"one dimension of examples .* got \(5,\)"),
    "class": (lambda: expected_loss(X, of_index, Marginal), r"the class Marginal; write Marginal\("),
    "losses": (lambda: expected_loss(X, lambda e, z: torch.ones(2), Best()), r"one number a pair, \(3,\), got \(2,\)"),
    "losses that are whole": (lambda: expected_loss(X, lambda e, z: z, Best()), "floating point, got torch.int64"),
    "chunk": (lambda: expected_loss(X, of_index, Best(), chunk=0), "1 or more, got 0"),
    "mapping": (lambda: Marginal("softmx"), r"softmax, entmax15, .* got 'softmx'"),
    "baseline": (lambda: ScoreFunction("median"), "got 'median'"),
    "samples": (lambda: ScoreFunction("leave-one-out", samples=1), "2 or more here, got 1"),
    "temperature": (lambda: Gumbel(0.0), "above 0, got 0.0"),
    "k": (lambda: TopK(0), "got 0"),
    "nothing left": (lambda: expected_loss(X, of_index, SumAndSample(5)), "leaves nothing to sample of 5"),
    "no normaliser": (
        lambda: expected_loss(normal(1, 7, 7), of_index, ScoreFunction(), structure=st.Assignment()),
        r"for Assignment\(\) is a permanent, which is #P-hard: .* at most 4096 .* SparseMAP, TopK and Gumbel take it",
    ),
    "no list": (
        lambda: expected_loss(X, of_index, SumAndSample(1), structure=st.Custom(lambda s: s > 0)),
        "needs a list of all of them: .* or give Custom a kbest that lists them",
    ),
    "class of a structure": (
        lambda: expected_loss(X, of_bits, Best(), structure=st.Bits),
        r"the class Bits; write Bits\(",
    ),
    "name of a structure": (
        lambda: expected_loss(X, of_bits, Best(), structure="bits"),
        r"such as Bits\(\), got 'bits'",
    ),
    "a list": (
        lambda: expected_loss([[0.0, 1.0]], of_index, Best()),
        r"scores are a tensor, .* got a list; make tensors",
    ),
    "a tuple of lists": (
        lambda: expected_loss(([[0.0]], X), of_index, Best(), structure=st.Chain()),
        r"got a tuple of \(list, Tensor\)",
    ),
    "a tuple": (lambda: expected_loss((X, X), of_index, Gumbel()), r"expected_loss: OneOf\(\) .* got a tuple of 2"),
    "whole numbers": (
        lambda: expected_loss(X.long(), of_index, Best()),
        "expected_loss: .* floating point, got torch.int64",
    ),
    "no function": (lambda: expected_loss(X, TABLE, Best()), r"a function of \(example, z\), got Tensor"),
    "too many": (lambda: expected_loss(normal(1, 20), of_bits, Marginal(), structure=st.Bits()), "more than 4096"),
    "chunk of truth": (lambda: expected_loss(X, of_index, Best(), chunk=True), "1 or more, got True"),
    "mapping that is none": (lambda: Marginal(3), "a name or a function of scores, got 3"),
    "class as baseline": (lambda: ScoreFunction(nn.Linear), "or a module, got <class"),
    "function as baseline": (lambda: ScoreFunction(of_index), "or a module, got <function"),
    "number as baseline": (lambda: ScoreFunction(0.5), "or a module, got 0.5"),
    "short context": (
        lambda: expected_loss(X, of_index, ScoreFunction(nn.Linear(2, 1)), context=torch.zeros(2, 2)),
        r"with the 3 examples first, got \(2, 2\)",
    ),
    "long context": (
        lambda: expected_loss(X, of_index, ScoreFunction(nn.Linear(2, 1)), context=torch.zeros(4, 2)),
        r"with the 3 examples first, got \(4, 2\)",
    ),
    "wide baseline": (
        lambda: expected_loss(X, of_index, ScoreFunction(nn.Linear(2, 4)), context=torch.zeros(3, 2)),
        r"one number an example, \(3,\), got \(3, 4\)",
    ),
    "metrics": (
        lambda: expected_loss(X, lambda e, z: (of_index(e, z), [z]), Best()),
        "a dictionary beside the losses, got list",
    ),
    "three things": (
        lambda: expected_loss(X, lambda e, z: (of_index(e, z), {}, z), Best()),
        r"one number a pair, \(3,\), got tuple",
    ),
    "prior of the examples": (
        lambda: expected_loss(X, of_index, Marginal("softmax")).kl(torch.zeros(3)),
        r"a number, or one a pair, \(15,\), got \(3,\)",
    ),
    "too many bits": (
        lambda: expected_loss(X, of_bits, Marginal(), structure=st.Bits(9)),
        r"asks for more bits than the scores have: \(3, 5\)",
    ),
    "one tensor": (lambda: expected_loss(X[None], of_bits, Best(), structure=st.Chain()), r"got \(1, 3, 5\)"),
    "iterations": (lambda: SparseMAP(max_iter=0), "SparseMAP: max_iter is a whole number, 1 or more, got 0"),
    "structure": (
        lambda: SparseMAP(st.Bits()),
        r"the structure belongs to the call, expected_loss\(…, structure=Bits\(\)\)",
    ),
    "rule": (lambda: SparseMAP(rule=3), "rule is the name of a rule, or None, got 3"),
    "most": (lambda: Marginal(most=-1), "Marginal: most is a whole number, 1 or more, got -1"),
    "no end of temperature": (lambda: Gumbel(math.inf), "a finite number above 0, got inf"),
    "temperature in words": (lambda: Gumbel("warm"), "a finite number above 0, got 'warm'"),
    "hard in words": (lambda: Gumbel(hard="x"), "Gumbel: hard is True or False, got 'x'"),
    "mapping that sums": (
        lambda: expected_loss(X, of_index, Marginal(lambda s: s.sum(-1))),
        r"the mapping gives a probability for each score, \(3, 5\) here, got \(3,\)",
    ),
    "mapping of nothing": (
        lambda: expected_loss(X, of_index, Marginal(lambda s: None)),
        r"the mapping gives a probability for each score, \(3, 5\) here, got NoneType",
    ),
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
