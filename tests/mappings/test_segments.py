"""Rows of any length: the padded mapping to the bit, every derivative, any order of the entries."""

import pytest
import torch

import parsimax

PTR = torch.tensor([0, 3, 3, 8, 9, 40, 40])
INDEX = torch.repeat_interleave(torch.arange(6), PTR[1:] - PTR[:-1])
ALPHA = torch.tensor([1.2, 1.5, 2.0, 1.0, 1.7, 1.3], dtype=torch.float64)
SHAPES = [(40,), (40, 3)]
TWINS = {"segment_softmax": 1.0, "segment_sparsemax": 2.0, "segment_entmax15": 1.5}


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def padded(x, alpha, dim=-1):
    """The same by a padded tensor: (heads, rows, width) and back."""
    x = x.reshape(len(x), -1).t()
    wide = x.new_full((x.shape[0], 6, 31), -torch.inf)
    place = torch.arange(40) - PTR[INDEX]
    wide = wide.index_put((torch.arange(x.shape[0])[:, None], INDEX, place), x)
    if isinstance(alpha, torch.Tensor):
        alpha = alpha.reshape(1, -1, 1)
    return parsimax.entmax(wide, alpha)[:, INDEX, place].t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 1.3, ALPHA], ids=str)
def test_the_bits_are_those_of_the_padded_mapping(shape, dtype, alpha):
    x, g = (normal(*shape, dtype=dtype, seed=s) * 2 for s in (0, 1))
    x[5], x[20] = -torch.inf, x[21]

    def run(f):
        leaf = x.clone().requires_grad_()
        p = f(leaf).reshape(shape)
        return p.detach(), *torch.autograd.grad(p, leaf, g)

    for ours, wanted in zip(
        run(lambda x: parsimax.segment_entmax(x, alpha=alpha, ptr=PTR)), run(lambda x: padded(x, alpha)), strict=True
    ):
        assert torch.equal(ours, wanted) and ours.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 9, 17])
@pytest.mark.parametrize("longest", [9, 64, 65, 192, 193, 300])
def test_how_far_a_row_is_padded_does_not_show(longest, heads, dtype):
    """Lengths around each switch of snug.inl, each kind of α in its table; nearly dense rows only with a fixed one, as
    the gradient of entmax by a learned α starts from the scores there."""
    sizes = [length for length in (0, 1, 7, 8, 33, 64, 96, 97, 149, 150, 151, 160, 161, 191, 200) if length < longest]
    sizes = torch.tensor([*sizes, longest, 5])
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    segment = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    place = torch.arange(len(segment)) - ptr[segment]
    rows = torch.arange(len(sizes) * heads, dtype=torch.float64).view(-1, heads)
    learned = torch.tensor([1.0, 1.2, 1.5, 1.8, 2.0, 2.4], dtype=torch.float64)[rows.long() % 6].requires_grad_()
    scores, g = (normal(len(segment), heads, dtype=dtype, seed=s) for s in (5, 6))
    for alpha, scale in [(learned, 2.0), *((a, s) for a in (0.5, 1.0, 1.3, 1.5, 2.0, 2.5) for s in (2.0, 0.01))]:
        x = (scores * scale).requires_grad_()
        wanted = [x, alpha] if alpha is learned else [x]
        p = parsimax.segment_entmax(x, alpha=alpha, ptr=ptr)
        wide = x.new_full((len(sizes), longest, heads), -torch.inf).index_put((segment, place), x).mT.contiguous()
        q = parsimax.entmax(wide, alpha.unsqueeze(-1) if alpha is learned else alpha).mT[segment, place]
        assert torch.equal(p, q), (alpha, scale)
        for ours, theirs in zip(*(torch.autograd.grad(out, wanted, g) for out in (p, q)), strict=True):
            assert torch.equal(ours, theirs), (alpha, scale)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_entries_may_come_in_any_order(shape):
    x, order = normal(*shape), torch.randperm(40, generator=torch.Generator().manual_seed(0))
    sorted_p = parsimax.segment_entmax(x, INDEX, 1.3)
    assert torch.equal(sorted_p, parsimax.segment_entmax(x, alpha=1.3, ptr=PTR))
    torch.testing.assert_close(parsimax.segment_entmax(x[order], INDEX[order].int(), 1.3), sorted_p[order])
    assert torch.equal(parsimax.segment_entmax(x, INDEX, 1.3, num_segments=9), sorted_p)
    for name, alpha in TWINS.items():
        twin = getattr(parsimax, name)
        assert torch.equal(twin(x, INDEX), parsimax.segment_entmax(x, INDEX, alpha)), name
        assert torch.equal(twin(x, ptr=PTR), twin(x, INDEX))
    total = torch.zeros(6, *shape[1:], dtype=x.dtype).index_add(0, INDEX, sorted_p)
    filled = torch.tensor([1.0, 0, 1, 1, 1, 0], dtype=x.dtype)
    assert total.allclose(filled.view(-1, *[1] * (len(shape) - 1)).expand(total.shape))


@pytest.mark.parametrize("kernels", ["cpu", "torch"], indirect=True)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, in forward mode
def test_derivatives(shape, kernels):
    index = INDEX[:9][torch.randperm(9, generator=torch.Generator().manual_seed(0))]
    x, v = (normal(9, *shape[1:], seed=s) for s in (3, 4))
    x.requires_grad_()
    alphas = [torch.tensor(1.4, dtype=torch.float64), ALPHA[:5].clamp(1.1, 1.9)]
    alphas += [torch.tensor([[1.2, 1.5, 1.8]], dtype=torch.float64)] if len(shape) == 2 else []
    for alpha in alphas:
        alpha.requires_grad_()

        def f(x, alpha):
            return parsimax.segment_entmax(x, index, alpha, num_segments=5)

        # Every entry of one column; several columns are compared with the padded mapping above.
        assert torch.autograd.gradcheck(
            f, (x, alpha), check_forward_ad=True, check_batched_grad=True, fast_mode=len(shape) == 2
        )
        assert torch.autograd.gradgradcheck(f, (x, alpha), fast_mode=True)
    whole, one_by_one = (
        torch.autograd.functional.jacobian(lambda x: parsimax.segment_entmax15(x, index), x, vectorize=together)
        for together in (True, False)
    )
    assert whole.allclose(one_by_one, atol=1e-12)
    p, moved = torch.func.jvp(lambda x: parsimax.segment_entmax15(x, index), (x.detach(),), (v,))
    step = (parsimax.segment_entmax15(x + 1e-6 * v, index) - p) / 1e-6
    assert step.allclose(moved, atol=1e-4)


def test_odd_rows():
    assert parsimax.segment_sparsemax(torch.empty(0), torch.empty(0, dtype=torch.long)).shape == (0,)
    assert parsimax.segment_sparsemax(torch.empty(0, 2), ptr=torch.tensor([0, 0])).shape == (0, 2)
    x = torch.tensor([1.0, torch.nan, -torch.inf, -torch.inf, 2.0])
    p = parsimax.segment_entmax15(x, torch.tensor([0, 0, 1, 1, 2]))
    assert p[:2].isnan().all() and torch.equal(p[2:], torch.tensor([0.0, 0, 1]))


def test_errors():
    x = torch.zeros(4)
    for error, words, call in [
        (TypeError, "index or ptr", lambda: parsimax.segment_softmax(x)),
        (TypeError, "not both", lambda: parsimax.segment_softmax(x, torch.zeros(4).long(), ptr=torch.tensor([0, 4]))),
        (ValueError, "one segment per entry", lambda: parsimax.segment_softmax(x, torch.zeros(3).long())),
        (ValueError, r"index.*got torch.float32 of shape \(4,\)", lambda: parsimax.segment_softmax(x, torch.zeros(4))),
        (ValueError, r"ptr.*got torch.float32 of shape \(2,\)", lambda: parsimax.segment_softmax(x, ptr=torch.ones(2))),
        (ValueError, "index.*got list", lambda: parsimax.segment_softmax(x, [0, 0, 1, 1])),
        (IndexError, r"in \[0, 2\)", lambda: parsimax.segment_softmax(x, torch.arange(4), num_segments=2)),
        (IndexError, "got -1", lambda: parsimax.segment_softmax(x, torch.arange(4) - 1)),
        (ValueError, "rise from 0 to 4", lambda: parsimax.segment_softmax(x, ptr=torch.tensor([0, 3]))),
        (ValueError, "rise from 0 to 4", lambda: parsimax.segment_softmax(x, ptr=torch.tensor([0, 3, 2, 4]))),
        (
            ValueError,
            "num_segments says 3",
            lambda: parsimax.segment_softmax(x, ptr=torch.tensor([0, 4]), num_segments=3),
        ),
        (ValueError, "(entries, heads)", lambda: parsimax.segment_softmax(x.view(2, 2, 1), torch.zeros(2).long())),
        (
            ValueError,
            "num_segments must be at least 0, got -1",
            lambda: parsimax.segment_softmax(x[:0], torch.arange(0), num_segments=-1),
        ),
        (
            TypeError,
            "num_segments must be an int, got 2.5",
            lambda: parsimax.segment_softmax(x, torch.zeros(4).long(), num_segments=2.5),
        ),
        (
            TypeError,
            "num_segments must be an int, got '1'",
            lambda: parsimax.segment_softmax(x, ptr=torch.tensor([0, 4]), num_segments="1"),
        ),
        (
            TypeError,
            r"segment_entmax: scores must be floating point, got torch.int64; convert them, as by .float\(\)$",
            lambda: parsimax.segment_entmax(x.long(), torch.arange(4)),
        ),
        (ValueError, "alpha must be", lambda: parsimax.segment_entmax(x, torch.arange(4), torch.ones(3))),
    ]:
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_without_entries_alpha_has_a_gradient_of_0(kernels):
    """A batch whose graphs have no edges: the parameter is in the graph, as distributed training asks for."""
    scores = torch.empty(0, 3, dtype=torch.bfloat16, requires_grad=True)
    alpha = torch.full((1, 3), 1.4, dtype=torch.float64, requires_grad=True)
    with parsimax.use_kernels(kernels):
        p = parsimax.segment_entmax(scores, alpha=alpha, ptr=torch.zeros(4, dtype=torch.int64))
    dx, dalpha = torch.autograd.grad(p.sum(), (scores, alpha))
    assert p.shape == dx.shape == (0, 3) and p.dtype == torch.bfloat16
    assert torch.equal(dalpha, torch.zeros(1, 3, dtype=torch.float64))
