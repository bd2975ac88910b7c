"""The attention kernels of Triton against float64: masks, groups, α per head, odd sizes, every gradient."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import interpreted
import parsimax
from parsimax._attention import fused
from parsimax.kernels import dispatch
from sweep import rows, truth

interpreted.only()
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from parsimax.kernels.triton import attention  # noqa: E402

inf, nan = math.inf, math.nan


def reference(f, *args):
    with dispatch.use("torch"):
        return f(*args)


def drawn(*shapes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=draw) for shape in shapes]


def compared(inputs, dtype=torch.float32, tolerance=5e-6, **options):
    """Context and gradients by q, k, v, and by a mask and an α that are floating point."""
    inputs = {name: t.to(dtype) if name in ("q", "k", "v") else t for name, t in inputs.items()}
    free = [name for name, t in inputs.items() if isinstance(t, torch.Tensor) and t.is_floating_point()]
    ours = {n: t.clone().requires_grad_() if n in free else t for n, t in inputs.items()}
    wide = {n: t.double().requires_grad_() if n in free else t for n, t in inputs.items()}

    def run(given):
        return parsimax.entmax_attention(
            given["q"], given["k"], given["v"], attn_mask=given.get("mask"), alpha=given.get("alpha", 1.5), **options
        )

    out, true = run(ours), reference(run, wide)
    g = drawn(out.shape, seed=1)[0].to(dtype)
    found = torch.autograd.grad(out, [ours[n] for n in free], g)
    expected = reference(lambda: torch.autograd.grad(true, [wide[n] for n in free], g.double()))
    for name, one, other in zip(["out", *free], [out, *found], [true, *expected], strict=True):
        off = (one.double() - other).abs().max() / (1 + other.abs().max())
        assert off < tolerance, (name, off)
    return out


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3, 1.0, inf, 2.5])
def test_odd_lengths_and_sizes(alpha):
    q, k, v = drawn((1, 1, 37, 12), (1, 1, 70, 12), (1, 1, 70, 20))
    compared({"q": q * 2, "k": k, "v": v, "alpha": alpha})


@pytest.mark.parametrize("size", [(200, 256), (256, 40)], ids=str)
def test_wide_heads(size):
    """Of float32 above 128, whose products are two sums."""
    dim, dimv = size
    q, k, v = drawn((1, 1, 19, dim), (1, 1, 35, dim), (1, 1, 35, dimv))
    compared({"q": q * 2, "k": k, "v": v, "alpha": torch.tensor(1.4)})


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.2, 1.9]).view(2, 1, 1)], ids=str)
def test_causal_with_groups(alpha):
    q, k, v = drawn((1, 2, 45, 16), (1, 1, 45, 16), (1, 1, 45, 16))
    compared({"q": q * 2, "k": k, "v": v, "alpha": alpha}, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("learned", [False, True])
def test_dropout_is_that_of_the_formula(learned):
    """The same seed drops the same weights, so that context and gradients can be compared; odd sizes, groups."""
    inputs = drawn((1, 2, 21, 16), (1, 1, 37, 16), (1, 1, 37, 16))
    inputs[0] *= 2
    inputs += [torch.tensor([1.2, 1.9]).view(1, 2, 1, 1)] if learned else []
    seed, g = torch.tensor(2**62 + 12345), drawn((1, 2, 21, 16), seed=1)[0]

    def attend(run, p, q, k, v, alpha=None):
        return run(q, k, v, None, alpha, 1.5, "entmax", True, 0.25, p, seed)

    for p in (0.75,) if learned else (0.3, 1.0):
        ours = [t.clone().requires_grad_() for t in inputs]
        wide = [t.double().requires_grad_() for t in inputs]
        out = attend(fused._kernel, p, *ours)
        true = reference(lambda p=p, wide=wide: attend(fused._formula, p, *wide))
        found = torch.autograd.grad(out, ours, g)
        expected = reference(lambda true=true, wide=wide: torch.autograd.grad(true, wide, g.double()))
        for one, other in zip([out, *found], [true, *expected], strict=True):
            assert ((one.double() - other).abs() <= 5e-6 * (1 + other.abs().max())).all(), p
        assert p == 1 or (out.abs().sum() > 1 and not torch.equal(out, attend(fused._kernel, 0.0, *inputs)))


def test_masks():
    q, k, v, added = drawn((1, 2, 40, 16), (1, 2, 50, 16), (1, 2, 50, 16), (1, 2, 40, 50))
    allowed = added > -0.5
    allowed[0, 0, 3] = False  # nothing allowed
    allowed[..., 32:48] = False  # a block and more that nobody sees
    k[..., 33, :] = nan  # what is forbidden is not looked at
    v[..., 33, :] = nan
    given = {"q": q * 2, "k": k.nan_to_num(), "v": v.nan_to_num(), "mask": allowed}
    true = compared(given)
    out = parsimax.entmax_attention(q * 2, k, v, attn_mask=allowed)
    assert torch.equal(out, true) and (out[0, 0, 3] == 0).all()
    k, v = k.nan_to_num(), v.nan_to_num()
    compared({"q": q * 2, "k": k, "v": v, "mask": added, "alpha": torch.tensor(1.4)})
    padding = added[:, :1, :1].where(allowed[:, 1:, :1], -inf)
    compared({"q": q * 2, "k": k, "v": v, "mask": padding})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types(dtype):
    q, k, v = drawn((1, 2, 40, 16), (1, 2, 40, 16), (1, 2, 40, 16))
    for alpha in (1.5, torch.tensor([1.3, 1.8]).view(2, 1, 1)):
        compared({"q": q * 2, "k": k, "v": v, "alpha": alpha}, dtype, 8 * torch.finfo(dtype).eps, is_causal=True)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
def test_plateaus_under_leaders(alpha):
    """The scores come as a bias; the gradient by the bias is that of the mapping."""
    x = rows(150, alpha, 8, 3)
    t = truth(x, alpha)
    q, k, v, g = drawn((8, 8), (150, 8), (150, 8), (8, 8))
    bias = x.clone().requires_grad_()
    out = parsimax.entmax_attention(0 * q, k, v, alpha=alpha, attn_mask=bias)
    good = (1 + t.b * t.z / t.E).abs().amin(-1) > 1e-3 if alpha > 2 else slice(None)
    assert ((out - t.p @ v.double()).abs()[good] <= 4e-6 * v.abs().max()).all()
    if alpha <= 2:
        by_p = (g @ v.t()).double()
        dx, _, slack, _ = t.derivatives(by_p)
        (ours,) = torch.autograd.grad(out, bias, g)
        assert ((ours - dx).abs()[t.clear] <= (2e-5 * by_p.abs().amax() + slack)[t.clear]).all()


def test_nearly_dense_attention_has_a_precise_gradient_by_alpha():
    q, k, v, g = drawn((1, 3, 20, 16), (1, 3, 50, 16), (1, 3, 50, 16), (1, 3, 20, 16))
    q, alpha = q * 0.01, torch.tensor([1.1, 1.4, 1.6]).view(3, 1, 1).requires_grad_()
    (ours,) = torch.autograd.grad(parsimax.entmax_attention(q, k, v, alpha=alpha), alpha, g)
    wide = alpha.detach().double().requires_grad_()
    out = reference(lambda: parsimax.entmax_attention(q.double(), k.double(), v.double(), alpha=wide))
    (true,) = torch.autograd.grad(out, wide, g.double())
    assert ((ours - true).abs() < 2e-5 * true.abs().amax()).all()


def test_a_broken_query_harms_no_other():
    q, k, v, g = drawn((1, 1, 70, 16), (1, 1, 70, 16), (1, 1, 70, 16), (1, 1, 70, 16))
    good = parsimax.entmax_attention(q, k, v, is_causal=True)
    q[0, 0, 40, 3] = nan
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = parsimax.entmax_attention(*leaves, is_causal=True)
    rest = [i for i in range(70) if i != 40]
    assert out[0, 0, 40].isnan().all() and torch.equal(out[0, 0, rest], good[0, 0, rest])
    dq, dk, dv = torch.autograd.grad(out, leaves, g)
    assert dq[0, 0, 40].isnan().all() and dq[0, 0, rest].isfinite().all()
    for d in (dk, dv):
        assert d[0, 0, :41].isnan().all() and d[0, 0, 41:].isfinite().all()


def test_one_query_against_a_cache():
    q, k, v = drawn((1, 4, 1, 16), (1, 2, 101, 16), (1, 2, 101, 16))
    compared({"q": q, "k": k, "v": v}, enable_gqa=True)


def test_blocks_without_support_are_not_looked_at():
    """Two clusters of keys far apart: of the blocks of the other one nothing is live, nor is it read again."""
    side = torch.zeros(128, 16)
    side[:64, 0], side[64:, 0] = 12.0, -12.0
    k = (side + drawn((128, 16))[0] * 0.3).view(1, 1, 128, 16)
    _, _, index, *_ = attention.attention_fwd(k, k, k, None, None, 1.5, 0, False, 0.25, 0.0, None, True)
    plan = attention.Plan(k, k, k, None, None, 1.5, False, 0.25, 0.0)
    flags, _, by_tile = plan.live(index)
    flags = flags.flatten()
    live = torch.stack([flags[t * by_tile : t * by_tile + plan.blocks] for t in range(plan.tiles)]).bool()
    near = torch.arange(plan.blocks) < plan.blocks // 2
    assert live.any(1).all() and not live[: plan.tiles // 2, ~near].any() and not live[plan.tiles // 2 :, near].any()


@pytest.mark.parametrize("alpha", [1.5, inf])
def test_a_barrier_stands_before_what_another_thread_has_written(alpha, monkeypatch):
    """On a GPU one thread writes a byte of the live blocks. One that reads it too early takes another branch than the
    others, and waits for them for ever. Here a program is one thread, so what it would see is recorded."""
    builder = interpreter.InterpreterBuilder
    load, store, fresh, seen = builder.create_masked_load, builder.create_masked_store, set(), []

    def loads(self, at, *rest):
        if at.get_element_ty() == tl.int8:
            seen.append(fresh.isdisjoint(at.data.flatten().tolist()))
        return load(self, at, *rest)

    def stores(self, at, *rest):
        if at.get_element_ty() == tl.int8:
            fresh.update(at.data.flatten().tolist())
        return store(self, at, *rest)

    monkeypatch.setattr(builder, "create_masked_load", loads)
    monkeypatch.setattr(builder, "create_masked_store", stores)
    monkeypatch.setattr(builder, "create_barrier", lambda self: fresh.clear())
    q, k, v = drawn((1, 1, 37, 16), (1, 1, 70, 16), (1, 1, 70, 16))
    q[0, 0, 3] = nan
    parsimax.entmax_attention(q * 3, k, v, alpha=alpha)
    assert len(seen) > 10 and all(seen)


def test_a_mask_whose_keys_lie_far_apart():
    """Offsets beyond 2^31: of the memory only what is looked at is ever touched."""
    q, k, v, added = drawn((1, 1, 3, 16), (1, 1, 70, 16), (1, 1, 70, 16), (3, 70))
    far = torch.empty(70 << 25, dtype=torch.bool).as_strided((3, 70), (1, 1 << 25))
    far.copy_(added > 0)
    out = parsimax.entmax_attention(q, k, v, attn_mask=far)
    assert torch.equal(out, parsimax.entmax_attention(q, k, v, attn_mask=far.contiguous()))


def test_the_seed_of_dropout_makes_nobody_wait(monkeypatch):
    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.add(function._schema.name.removeprefix("aten::"))
            return function(*args, **(kwargs or {}))

    called = set()
    seed = torch.tensor(2**62 + 1)
    with Recorded():
        drop, rescale = attention._dropped(0.25, seed, torch.device("cpu"))
    assert called <= {"empty", "select", "fill_", "_local_scalar_dense"}  # no copy between devices
    assert drop.tolist() == [2**62 + 1, 2**30] and rescale == 4 / 3
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="a CUDA graph would drop the same each time"):
        attention._dropped(0.25, seed, torch.device("cuda"))


def test_without_room_for_the_live_blocks_all_are(monkeypatch):
    """A last tile of one query and few columns: there the backward looks at every block."""
    monkeypatch.setattr(attention, "CAP", 0)
    q, k, v = drawn((1, 1, 33, 8), (1, 1, 70, 8), (1, 1, 70, 8))
    compared({"q": q * 2, "k": k, "v": v})


def test_outputs_are_written_and_bits_repeat(monkeypatch):
    q, k, v, g = drawn((1, 2, 20, 12), (1, 1, 50, 12), (1, 1, 50, 20), (1, 2, 20, 20))

    def run():
        leaves = [t.clone().requires_grad_() for t in (q, k, v, torch.full((2, 1, 1), 1.3))]
        out = parsimax.entmax_attention(*leaves[:3], alpha=leaves[3], enable_gqa=True)
        return [out.detach(), *torch.autograd.grad(out, leaves, g)]

    clean = run()
    for name in ("empty", "Tensor.new_empty"):
        owner = torch.Tensor if "." in name else torch
        plain = getattr(owner, name.rpartition(".")[2])

        def poisoned(*args, plain=plain, **options):
            made = plain(*args, **options)
            return made.view(torch.uint8).fill_(255).view(made.dtype) if made.numel() else made

        monkeypatch.setattr(owner, name.rpartition(".")[2], poisoned)
    for one, other in zip(clean, run(), strict=True):
        assert torch.equal(one, other)


class Recorder:
    """Stands for a kernel: keeps the grids it is launched with, and computes nothing."""

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *args, **options: None


def test_many_heads_go_on_the_axis_of_the_grid_that_has_room(monkeypatch):
    """The first axis takes 2^31 - 1 programs on NVIDIA's GPUs, the others 65535."""
    recorders = {name: Recorder() for name in ("forward", "queries", "keys")}
    for name, recorder in recorders.items():
        monkeypatch.setattr(attention.kernels, name, recorder)
    q, k = torch.zeros(1).expand(40000, 4, 3, 16), torch.zeros(1).expand(40000, 2, 40, 16)
    common = (q, k, k, None, None, 1.5, 0, False, 1.0, 0.0, None)
    out, state, index, weight, count = attention.attention_fwd(*common, True)
    attention.attention_bwd(out, *common, state, index, weight, count, False)
    keys = -(-40 // attention.launch.attention(16, 4, False).BN)
    expected = {"forward": [(160_000,)], "queries": [(160_000,)], "keys": [(keys * 80_000,)]}
    assert {name: recorder.grids for name, recorder in recorders.items()} == expected
