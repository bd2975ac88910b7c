"""Every head is a distribution, has the loss of cross-entropy's contract, and equals a naive reference in float64."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import parsimax
from cases import NAN, gradient, normal, turned
from parsimax.heads import chunks, fused

N, D, V, K = 11, 5, 23, 3
HIDDEN, TARGET = normal(N, D), torch.tensor([0, 22, 5, 7, -100, 5, 20, 1, 2, 3, -100])
SOFT = torch.softmax(3 * normal(N, V, seed=3), -1)
CLASS_WEIGHT = torch.linspace(0, 2, V, dtype=torch.float64)
HEADS = {
    "softmax": lambda: parsimax.LinearHead(D, V),
    "no bias": lambda: parsimax.LinearHead(D, V, bias=False),
    "sigsoftmax": lambda: parsimax.SigSoftmaxHead(D, V),
    "monotonic": lambda: parsimax.MonotonicHead(D, V, units=7),
    "plif": lambda: parsimax.PLIFHead(D, V, knots=50),
    "mixture": lambda: parsimax.MixtureOfSoftmaxes(D, V, K, width=4),
    "mixture, no tanh": lambda: parsimax.MixtureOfSoftmaxes(D, V, K, tanh=False, bias=False),
    "mixture, plif": lambda: parsimax.MixtureOfSoftmaxes(D, V, K, function=parsimax.PLIF(50)),
    "mixture, sigsoftmax": lambda: parsimax.MixtureOfSoftmaxes(D, V, K, mapping="sigsoftmax"),
    "entmax15": lambda: parsimax.LinearHead(D, V, "entmax15"),
    "learned": lambda: parsimax.LinearHead(D, V, "entmax", alpha="learned"),
    "normmax": lambda: parsimax.LinearHead(D, V, "normmax", alpha=2.0),
    "rsoftmax": lambda: parsimax.LinearHead(D, V, "rsoftmax", rate=0.5),
    "mixture, sparsemax": lambda: parsimax.MixtureOfSoftmaxes(D, V, K, mapping="sparsemax"),
}
LIKELIHOOD = [*HEADS][:9]  # their loss is -log p; those after them have a Fenchel–Young loss, or one with a floor


def made(name, dtype=torch.float64):
    """A head whose parameters are no longer those of the start."""
    torch.manual_seed(0)
    head = HEADS[name]().to(dtype)
    with torch.no_grad():
        for seed, parameter in enumerate(head.parameters()):
            parameter += normal(*parameter.shape, seed=seed).to(dtype)
    return head


def naive_scores(function, z):
    """The function of each score, written out with N × V × K numbers."""
    if isinstance(function, parsimax.PLIF):
        knots, width = len(function.raw_slopes), 2 * function.bound / len(function.raw_slopes)
        edges = -function.bound + width * torch.arange(knots, dtype=z.dtype)
        slopes = F.softplus(function.raw_slopes)
        inside = (z.unsqueeze(-1) - edges).clamp(0, width)
        below = (z.unsqueeze(-1) - edges)[..., :1].clamp(max=0)
        above = (z.unsqueeze(-1) - edges)[..., -1:].sub(width).clamp(min=0)
        return (inside * slopes).sum(-1) + (below * slopes[0] + above * slopes[-1]).squeeze(-1)
    if isinstance(function, parsimax.Monotonic):
        u, v = F.softplus(function.raw_scale), F.softplus(function.raw_height)
        return (v * torch.sigmoid(u * z.unsqueeze(-1) + function.shift)).sum(-1)
    return z


def naive(head, hidden):
    """log p with N × K × V numbers, from nothing but the parameters."""
    bias = 0 if head.bias is None else head.bias
    if not isinstance(head, parsimax.MixtureOfSoftmaxes):
        scores = naive_scores(head.function, hidden @ head.weight.T + bias)
        scores = scores + F.logsigmoid(scores) if head.mapping.entry.name == "sigsoftmax" else scores
        return torch.log_softmax(scores, -1)
    contexts = (hidden @ head.contexts.weight.T + head.contexts.bias).view(*hidden.shape[:-1], head.components, -1)
    scores = (torch.tanh(contexts) if head.tanh else contexts) @ head.weight.T + bias
    scores = naive_scores(head.function, scores)
    scores = scores + F.logsigmoid(scores) if head.mapping.entry.name == "sigsoftmax" else scores
    prior = torch.softmax(hidden @ head.prior.weight.T, -1)
    return (prior.unsqueeze(-1) * torch.softmax(scores, -1)).sum(-2).log()


@pytest.fixture(params=["one chunk", "many chunks"])
def cut(request, monkeypatch):
    if request.param == "many chunks":
        monkeypatch.setattr(chunks, "FEW", 0)
        monkeypatch.setattr(chunks, "ROWS", 4)
        monkeypatch.setattr(chunks, "ROWS_OF_MIXTURES", 4 * K)


def assert_equal(mine, their, atol=1e-11):
    torch.testing.assert_close(mine, their, rtol=0, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_a_distribution(name):
    head = made(name)
    p, logs = head.probs(HIDDEN), head(HIDDEN)
    assert (p >= 0).all()
    assert_equal(p.sum(-1), torch.ones(N, dtype=p.dtype), 1e-9)
    assert_equal(p, logs.exp(), 1e-12)
    assert head(HIDDEN.view(1, N, D)).shape == (1, N, V)
    assert (logs == -math.inf).any() == (name in ("entmax15", "rsoftmax", "mixture, sparsemax", "learned", "normmax"))


@pytest.mark.parametrize("name", LIKELIHOOD)
def test_equals_a_naive_reference(name, cut):
    head = made(name)
    assert_equal(head(HIDDEN), naive(head, HIDDEN), 1e-10)
    options = turned(["mean", "sum", "none"], [TARGET, SOFT], [0.0, 0.2], [None, CLASS_WEIGHT])
    # A mean counts by the weights of the classes, of indices and of probabilities in other ways.
    options += [("mean", target, 0.0, CLASS_WEIGHT) for target in (TARGET, SOFT)]
    options += [("mean", SOFT, 0.2, CLASS_WEIGHT)]
    for reduction, target, smoothing, weight in options:
        given = {"label_smoothing": smoothing, "weight": weight, "reduction": reduction}
        leaf = HIDDEN.clone().requires_grad_()
        ours, theirs = head.loss(leaf, target, **given), F.cross_entropy(naive(head, leaf), target, **given)
        assert_equal(ours, theirs)
        upstream = normal(*ours.shape, seed=7)
        inputs = [leaf, *head.parameters()]
        mine = torch.autograd.grad(ours, inputs, upstream)
        true = torch.autograd.grad(theirs, inputs, upstream)
        for a, b in zip(mine, true, strict=True):
            assert_equal(a, b, 1e-10)


@pytest.mark.parametrize("name", ["entmax15", "learned", "normmax"])
def test_other_mappings_have_their_own_loss(name, cut):
    head, hidden = made(name), HIDDEN.clone().requires_grad_()
    scores = hidden @ head.weight.T + head.bias
    for smoothing, reduction in itertools.product([0.0, 0.1], ["mean", "sum", "none"]):
        given = {"label_smoothing": smoothing, "reduction": reduction}
        if name == "normmax":
            theirs = parsimax.fenchel_young_loss(scores, TARGET, "normmax", alpha=2.0, **given)
        else:
            theirs = parsimax.entmax_loss(scores, TARGET, head.alpha, **given)
        ours = head.loss(hidden, TARGET, **given)
        assert_equal(ours, theirs)
        inputs, up = [hidden, *head.parameters()], normal(*ours.shape, seed=7)
        grads = zip(
            torch.autograd.grad(ours, inputs, up),
            torch.autograd.grad(theirs, inputs, up, retain_graph=True),
            strict=True,
        )
        for a, b in grads:
            assert_equal(a, b, 1e-10)


@pytest.mark.parametrize("name", ["rsoftmax", "mixture, sparsemax"])
def test_a_mapping_without_an_entropy_has_a_floor(name, cut):
    head = made(name)
    keep = TARGET >= 0
    p = head.probs(HIDDEN[keep]).gather(-1, TARGET[keep, None])
    assert (p == 0).any(), "the floor is not tried"
    assert_equal(head.loss(HIDDEN, TARGET), -(p + 1e-8).log().mean(), 1e-9)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_classes_of_probability_0_leave_the_gradient_of_a_mixture_whole(reduction, cut):
    """The logarithm of 0 has no gradient: it must not reach the prior as NaN."""
    head, keep = made("mixture, sparsemax"), TARGET >= 0
    hidden = HIDDEN.clone().requires_grad_()
    inputs = [hidden, *head.parameters()]
    each = head.mapping(head.latent(hidden) @ head.weight.T + head.bias)
    p = (head.log_prior(hidden).exp().unsqueeze(-1) * each).sum(-2)
    assert (p == 0).any()
    wanted = torch.autograd.grad(-(p[keep].gather(-1, TARGET[keep, None]) + 1e-8).log().sum(), inputs)
    found = torch.autograd.grad(head.loss(hidden, TARGET, reduction=reduction).sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        assert_equal(a, b, 1e-9)


class Called(torch.nn.Module):
    """A call of a head, for parameters that are not its own."""

    def __init__(self, head, call):
        super().__init__()
        self.head, self.call = head, call

    def forward(self, hidden):
        return self.call(self.head, hidden)

    def of(self, hidden, *parameters):
        names = [n for n, _ in self.head.named_parameters()]
        values = {f"head.{n}": p for n, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(self, values, (hidden,))


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", HEADS)
def test_gradcheck(name, reduction, monkeypatch):
    monkeypatch.setattr(chunks, "FEW", 0)
    monkeypatch.setattr(chunks, "ROWS", 2)
    monkeypatch.setattr(chunks, "ROWS_OF_MIXTURES", 2 * K)
    head, target = made(name), TARGET[2:6]
    inputs = [HIDDEN[2:6].clone().requires_grad_(), *(p.detach().clone().requires_grad_() for p in head.parameters())]
    loss = Called(head, lambda head, hidden: head.loss(hidden, target, weight=CLASS_WEIGHT, reduction=reduction))
    # Along random directions, as the tests of the losses above have every entry; there is none of r-softmax.
    assert torch.autograd.gradcheck(loss.of, inputs, fast_mode=name != "rsoftmax" or reduction != "mean")
    if name in ("sigsoftmax", "mixture"):
        assert torch.autograd.gradgradcheck(loss.of, inputs, fast_mode=True)


def test_a_mixture_of_other_parameters_is_computed_again_with_them(monkeypatch):
    """Its log-probabilities are made by chunks, each of which the backward pass makes again."""
    monkeypatch.setattr(chunks, "FEW", 0)
    monkeypatch.setattr(chunks, "ROWS_OF_MIXTURES", 2 * K)
    head = made("mixture")
    inputs = [HIDDEN[:3].clone().requires_grad_(), *((p.detach() + 0.1).requires_grad_() for p in head.parameters())]
    assert torch.autograd.gradcheck(Called(head, lambda head, hidden: head(hidden)).of, inputs)


def test_a_tied_weight_gets_both_parts_of_its_gradient():
    embedding = torch.nn.Embedding(V, D, dtype=torch.float64)
    head = parsimax.PLIFHead(D, V, knots=50, tied=embedding).double()
    assert head.weight is embedding.weight
    entered, wanted = torch.arange(5), torch.arange(5) + 1
    head.loss(embedding(entered), wanted).backward()
    mine = embedding.weight.grad.clone()
    embedding.weight.grad = None
    F.cross_entropy(naive(head, embedding(entered)), wanted).backward()
    assert_equal(mine, embedding.weight.grad)
    with pytest.raises(ValueError, match=r"tied weight must have shape \(classes, width\) = \(23, 4\)"):
        parsimax.MixtureOfSoftmaxes(D, V, K, width=4, tied=embedding)


@pytest.mark.parametrize("name", ["softmax", "sigsoftmax", "plif", "mixture", "mixture, plif"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precisions(name, dtype, cut):
    head, exact = made(name, dtype), made(name, dtype).double()
    leaf = HIDDEN.to(dtype).requires_grad_()
    loss = head.loss(leaf, TARGET)
    assert loss.dtype == dtype
    tolerance = 2e-5 if dtype == torch.float32 else 0.1
    assert_equal(loss.double(), exact.loss(HIDDEN.to(dtype).double(), TARGET), tolerance)
    loss.backward()
    assert leaf.grad.dtype == dtype and all(p.grad.dtype == dtype for p in head.parameters())


@pytest.mark.parametrize("name", ["softmax", "plif", "mixture"])
def test_under_autocast_the_loss_is_what_cross_entropy_returns(name):
    head = made(name, torch.float32)
    for reduction in ("mean", "none"):
        exact = head.loss(HIDDEN.float(), TARGET, reduction=reduction)
        true = torch.autograd.grad(exact.sum(), head.weight)[0]
        with torch.autocast("cpu", torch.bfloat16):
            loss = head.loss(HIDDEN.float(), TARGET, reduction=reduction)
            assert loss.dtype == torch.float32
        (mine,) = torch.autograd.grad(loss.sum(), head.weight)
        assert not torch.equal(loss, exact), "nothing was computed in bfloat16"
        torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.1)
        torch.testing.assert_close(mine, true, rtol=0.1, atol=0.1 * float(true.abs().max()))


@pytest.mark.parametrize("name", ["softmax", "sigsoftmax", "plif", "monotonic", "mixture", "mixture, plif"])
def test_batches_of_nothing_and_bad_rows(name, cut):
    head = made(name)
    empty = torch.empty(0, D, dtype=torch.float64, requires_grad=True)
    assert head.loss(empty, torch.empty(0, dtype=torch.long)).isnan()
    assert head.loss(empty, torch.empty(0, dtype=torch.long), reduction="sum") == 0
    assert head.loss(empty, torch.empty(0, dtype=torch.long), reduction="none").shape == (0,)
    head.loss(empty, torch.empty(0, dtype=torch.long), reduction="sum").backward()
    assert (head.weight.grad == 0).all()
    inputs = [HIDDEN.clone().requires_grad_(), *head.parameters()]
    ignored = head.loss(inputs[0], torch.full((N,), -100))
    assert ignored.isnan()  # and the model is not spoiled, as with cross-entropy
    assert all((g == 0).all() for g in torch.autograd.grad(ignored, inputs))
    nothing = head.loss(empty, torch.empty(0, V, dtype=torch.float64))
    assert nothing.isnan() and all((g == 0).all() for g in torch.autograd.grad(nothing, [*head.parameters()]))
    assert head.loss(HIDDEN[0], torch.tensor(3)).shape == ()
    bad = HIDDEN.clone()
    bad[4] = NAN  # its target is ignored
    leaf = bad.requires_grad_()
    loss = head.loss(leaf, TARGET)
    assert_equal(loss, head.loss(HIDDEN, TARGET))
    (g,) = torch.autograd.grad(loss, leaf)
    assert g[[0, 1, 2, 3]].isfinite().all()
    bad = HIDDEN.clone()
    bad[0] = NAN
    assert head.loss(bad, TARGET).isnan()
    single = head.loss(bad, TARGET, reduction="none")
    assert single[0].isnan() and single[1:].isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "sigsoftmax", "plif", "monotonic", "mixture, plif"])
def test_an_infinite_bias_forbids_a_class(name, cut):
    head = made(name)
    with torch.no_grad():
        head.bias[9] = -math.inf
    assert (head.probs(HIDDEN)[:, 9] == 0).all()
    loss = head.loss(HIDDEN, TARGET)
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in head.parameters())
    assert head.loss(HIDDEN[:1], torch.tensor([9])) == math.inf


@pytest.mark.parametrize("name", ["softmax", "plif", "mixture"])
def test_errors_say_what_was_given(name):
    head = made(name)
    with pytest.raises(ValueError, match=r"hidden must be \(…, 5\), got shape \(2, 4\)"):
        head(normal(2, 4))
    with pytest.raises(TypeError, match=r"hidden must be a floating-point tensor, got torch\.int64"):
        head.loss(torch.zeros(2, D, dtype=torch.long), TARGET[:2])
    with pytest.raises(IndexError, match="target 23 is out of bounds for 23 classes"):
        head.loss(HIDDEN[:1], torch.tensor([V]))
    with pytest.raises(ValueError, match="class indices must have shape"):
        head.loss(HIDDEN, TARGET[:3])
    with pytest.raises(ValueError, match="reduction must be one of"):
        head.loss(HIDDEN, TARGET, reduction="median")
    with pytest.raises(ValueError, match="weight must have shape"):
        head.loss(HIDDEN, TARGET, weight=torch.ones(3))
    with pytest.raises(ValueError, match="no gradient by weight"):
        head.loss(HIDDEN, TARGET, weight=CLASS_WEIGHT.clone().requires_grad_())
    with pytest.raises(ValueError, match="classes must be 1 or more"):
        parsimax.LinearHead(3, 0)
    with pytest.raises(ValueError, match="budget_sparsemax sums to its budget, not to 1"):
        parsimax.make_head("linear", 3, 4, mapping="budget_sparsemax", budget=2.0)
    with pytest.raises(TypeError, match="mixture-plif has a PLIF as its function"):
        parsimax.make_head("mixture-plif", 3, 4, function=torch.nn.Identity())


@pytest.mark.parametrize("name", ["sigsoftmax", "plif", "monotonic", "mixture"])
def test_transforms_and_graphs_give_the_same(name):
    head = made(name)
    expected = head.loss(HIDDEN, TARGET)
    names = dict(head.named_parameters())

    def loss(parameters, hidden):
        return Called(head, lambda head, hidden: head.loss(hidden, TARGET)).of(hidden, *parameters.values())

    grads, value = torch.func.grad_and_value(loss)({k: v.detach() for k, v in names.items()}, HIDDEN)
    assert_equal(value, expected)
    for mine, true in zip(grads.values(), torch.autograd.grad(expected, [*names.values()]), strict=True):
        assert_equal(mine, true, 1e-10)


@pytest.mark.parametrize("name", ["plif", "mixture"])
def test_compiled_it_is_the_same(name):
    head = made(name)
    compiled = torch.compile(lambda h: head.loss(h, TARGET), fullgraph=True, backend="aot_eager")
    for mine, true in zip(gradient(compiled, HIDDEN), gradient(lambda h: head.loss(h, TARGET), HIDDEN), strict=True):
        assert_equal(mine, true, 1e-12)


@pytest.mark.parametrize("name", HEADS)
def test_exported_it_takes_any_number_of_tokens(name, monkeypatch):
    monkeypatch.setattr(chunks, "FEW", 0)  # a chunk of a mixture ends within the sizes below
    monkeypatch.setattr(chunks, "ROWS_OF_MIXTURES", 8 * K)
    head = made(name)
    sizes = ({0: torch.export.Dim("tokens")},)
    program = torch.export.export(head, (normal(5, D),), dynamic_shapes=sizes).module()
    for tokens in (2, 7, 8, 9, 40):
        hidden = normal(tokens, D, seed=tokens)
        torch.testing.assert_close(program(hidden), head(hidden))


@pytest.mark.parametrize("name", ["softmax", "mixture", "rsoftmax"])
def test_no_more_than_a_chunk_of_logits_exists(name, monkeypatch):
    """In plain torch; a vocabulary larger than the largest chunk goes a row at a time."""
    monkeypatch.setattr(chunks, "FEW", 0)
    monkeypatch.setattr(chunks, "ROWS", 4)
    monkeypatch.setattr(chunks, "ROWS_OF_MIXTURES", 4 * K)
    head = {
        "softmax": lambda: parsimax.LinearHead(2, 500),
        "mixture": lambda: parsimax.MixtureOfSoftmaxes(2, 500, K),
        "rsoftmax": lambda: parsimax.LinearHead(2, 500, "rsoftmax", rate=0.5),
    }[name]()
    sizes = []
    row_losses = type(head).row_losses

    def watched(self, hidden, target, options):
        sizes.append(len(hidden))
        return row_losses(self, hidden, target, options)

    monkeypatch.setattr(type(head), "row_losses", watched)
    with parsimax.use_kernels("torch"):
        head.loss(torch.randn(50, 2), torch.arange(50)).backward()
    assert max(sizes) <= 4 and sum(sizes) == 50
    assert chunks.tokens_at_a_time(parsimax.LinearHead(1, chunks.CHUNK)) == 1


def test_a_copy_of_a_head_is_another_head():
    head = made("plif")
    other = copy.deepcopy(head)
    other.load_state_dict(head.state_dict())
    assert_equal(other.loss(HIDDEN, TARGET), head.loss(HIDDEN, TARGET), 0)
    (g,) = gradient(lambda h: other.loss(h, TARGET), HIDDEN)
    assert g.isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "plif", "mixture", "entmax15", "normmax"])
def test_target_probabilities_have_their_gradient(name, cut):
    head, soft = made(name), SOFT.clone().requires_grad_()
    (mine,) = torch.autograd.grad(head.loss(HIDDEN, soft), soft)
    if name in LIKELIHOOD:
        their = torch.autograd.grad(-(soft * naive(head, HIDDEN)).sum(-1).mean(), soft)[0]
    else:
        scores = F.linear(HIDDEN, head.weight, head.bias)
        loss = {"entmax15": parsimax.entmax15_loss, "normmax": parsimax.fenchel_young_loss}[name]
        their = torch.autograd.grad(loss(scores, soft, *([head.mapping] if name == "normmax" else [])), soft)[0]
    assert_equal(mine, their)


def test_target_probabilities_that_require_a_gradient_go_in_chunks_where_none_is_made(monkeypatch):
    monkeypatch.setattr(chunks, "FEW", 0)
    monkeypatch.setattr(chunks, "ROWS", 4)
    head, seen = made("softmax"), []
    rows = head.row_losses
    monkeypatch.setattr(head, "row_losses", lambda hidden, *rest: seen.append(len(hidden)) or rows(hidden, *rest))
    with torch.no_grad(), parsimax.use_kernels("torch"):
        head.loss(HIDDEN, SOFT.clone().requires_grad_())
    assert max(seen) <= 4


@pytest.mark.parametrize("backend", ["auto", "torch", "lean"])
@pytest.mark.parametrize("name", ["entmax15", "learned", "normmax", "rsoftmax"])
def test_exact_zeros_leave_the_gradient_of_log_probabilities_finite(name, backend):
    head, hidden = made(name), (4 * HIDDEN).requires_grad_()
    with parsimax.use_kernels(backend):
        logs = head(hidden)
        assert (logs == -math.inf).any()
        F.nll_loss(logs, logs.argmax(-1)).backward()
    assert hidden.grad.isfinite().all() and (hidden.grad != 0).any()
    wanted = torch.func.grad(lambda h: -head(h).amax(-1).mean())(4 * HIDDEN)
    assert_equal(hidden.grad, wanted, atol=1e-9)


def test_a_function_that_draws_numbers_draws_the_same_in_the_backward_pass(cut):
    head = parsimax.LinearHead(D, V, function=torch.nn.Dropout(0.5)).double().train()
    hidden, factors, step = HIDDEN.clone().requires_grad_(), torch.rand(N).double(), chunks.tokens_at_a_time(head)

    def by_hand(hidden, target):
        parts = zip(hidden.split(step), target.split(step), strict=True)
        return torch.cat([F.nll_loss(head(h), y, reduction="none") for h, y in parts])

    grads = []
    for loss in (lambda h, y: head.loss(h, y, reduction="none"), by_hand):
        torch.manual_seed(5)
        single = loss(hidden, TARGET)
        left = torch.rand(3)  # what others draw in between
        grads.append(torch.autograd.grad(single, [hidden, head.weight], factors))
    for mine, their in zip(*grads, strict=True):
        assert_equal(mine, their)
    torch.manual_seed(5)
    head.loss(hidden, TARGET, reduction="none").sum().backward()
    assert torch.equal(torch.rand(3), left)  # the backward pass has left the generator where it was


@pytest.mark.parametrize("name", ["softmax", "plif", "mixture", "normmax"])
def test_without_gradients_none_are_made(name, monkeypatch):
    head, made_by = made(name), []
    for owner, what in ((chunks._Sums, "add"), (fused._Run, "_products")):
        work = getattr(owner, what)
        monkeypatch.setattr(owner, what, lambda *a, work=work, what=what: made_by.append(what) or work(*a))
    wanted = head.loss(HIDDEN, TARGET)
    assert made_by
    made_by.clear()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert_equal(head.loss(HIDDEN, TARGET), wanted.detach())
    assert not made_by


def test_a_head_is_made_where_and_as_its_weight_is():
    embedding = torch.nn.Embedding(V, D).double()
    for name, own in {
        "plif": {"knots": 50},
        "monotonic": {"units": 7},
        "mixture": {"components": K},
        "linear": {"mapping": "entmax", "alpha": "learned"},
    }.items():
        head = parsimax.make_head(name, D, V, tied=embedding, **own)
        assert head.weight is embedding.weight
        assert head.loss(HIDDEN, TARGET).dtype == torch.float64
        alone = parsimax.make_head(name, D, V, dtype=torch.float64, device="meta", **own)
        assert all(p.is_meta for p in alone.parameters())
        assert alone.weight.dtype == alone.bias.dtype == torch.float64
    half = parsimax.PLIFHead(D, V, knots=50, dtype=torch.bfloat16)
    assert half.weight.dtype == torch.bfloat16 and half(HIDDEN.bfloat16()).dtype == torch.float32


def test_what_is_no_parameter_cannot_be_tied():
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Embedding(V, D))
    for tied, word in (
        (normed, "Embedding whose weight is computed"),
        (torch.randn(V, D, requires_grad=True), "Tensor"),
        (torch.nn.Linear(D, V), "Linear"),
    ):
        with pytest.raises(TypeError, match=word):
            parsimax.PLIFHead(D, V, knots=50, tied=tied)
    with pytest.raises(ValueError, match="leave them out"):
        parsimax.LinearHead(D, V, tied=torch.nn.Embedding(V, D), dtype=torch.float64)


@pytest.mark.parametrize("make", [parsimax.LinearHead, parsimax.MixtureOfSoftmaxes])
def test_a_mapping_over_another_dimension_is_no_head(make):
    with pytest.raises(ValueError, match="dim 0"):
        make(D, V, mapping=parsimax.Sparsemax(dim=0))


def test_ignore_index_goes_with_class_indices_only():
    for head in (made("softmax"), made("entmax15")):
        with pytest.raises(ValueError, match="ignore_index goes with class indices"):
            head.loss(HIDDEN, SOFT, ignore_index=3)
