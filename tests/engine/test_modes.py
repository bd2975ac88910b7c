"""The contract of CONTRIBUTING.md, point 5: derivatives in every mode of torch, for every mapping and every loss.

The truth is that of central differences, and it is checked to be far from zero: a silent zero cannot pass.
"""

import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from cases import TORCH, WHOLE, each, normal
from functions import DETACHED, LOSSES, MAPPINGS, SHARED, Function, X

# torch itself loads its forward-mode rules and parts of inductor through the old torch.jit, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

ALL = MAPPINGS + LOSSES
TRUE = [f for f in ALL + SHARED if f.name not in DETACHED]
# Losses made in other ways; those of the other mappings are put together from the same parts.
KINDS = {"entmax_loss", "entmax_loss options", "fenchel_young_loss entmax", "linear_entmax_loss"}
# Of the formula of entmax or of entmax_loss with its options: for tests in which every case costs a compilation.
ALIKE = ("entmax around 1", "entmax above 2", "log_entmax", "entmax_loss", "fenchel_young_loss entmax")
DIFFERENT = [f for f in TRUE if f in MAPPINGS or f.name in KINDS]
TRACED = [f for f in DIFFERENT if f.name not in ALIKE]
# Each brings a part that those of TRACED have not; graphs of all others are exported below.
PARTS = ("log_entmax", "entmax_loss soft", "fenchel_young_loss normmax", "multilabel_loss entmax")
PARTS += ("linear_entmax_loss by weight", "sparsemax_loss", "entmax15_loss")
INDUCTOR = ["sparsemax", "entmax", "entmax_loss"]


def differences(function, x: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    """The Jacobian by central differences, of the shape of the result followed by that of x."""
    columns = []
    for direction in torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape):
        columns.append((function(x + step * direction) - function(x - step * direction)) / (2 * step))
    return torch.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


def same(ours, truth: torch.Tensor, tolerance: float = 1e-6) -> None:
    assert truth.abs().max() > 1e-3, "the truth is zero, so the test could not fail"
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


def jacobians(f: Function, of=None) -> list[torch.Tensor]:
    return [differences(lambda t, i=i: (of or f.call)(*f.at(i, t)), f.inputs[i]) for i in f.argnums]


SLOPES: dict[str, list[torch.Tensor]] = {}


def slopes(f: Function) -> list[torch.Tensor]:
    """The gradient of the scalar, which several tests ask for."""
    if f.name not in SLOPES:
        SLOPES[f.name] = jacobians(f, f.scalar)
    return SLOPES[f.name]


def tangents(f: Function) -> tuple[torch.Tensor, ...]:
    return tuple(normal(*f.inputs[i].shape, seed=20 + i) for i in f.argnums)


def pushed(f: Function) -> torch.Tensor:
    """The derivative along the tangents of all inputs at once."""
    call, moving = dual(f)

    def along(step: torch.Tensor) -> torch.Tensor:
        return call(*(t + step * d for t, d in zip(moving, tangents(f), strict=True)))

    return differences(along, torch.zeros(1, dtype=torch.float64)).squeeze(-1)


def dual(f: Function):
    """``f`` as a function of its floating-point inputs only, and these."""
    fixed = f.inputs

    def call(*moving):
        replaced = dict(zip(f.argnums, moving, strict=True))
        return f.call(*(replaced.get(i, t) for i, t in enumerate(fixed)))

    return call, tuple(fixed[i] for i in f.argnums)


@each(TRUE)
def test_gradcheck(case):
    leaves = case.leaves()
    assert torch.autograd.gradcheck(
        case.call,
        leaves,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,  # test_first_derivatives has every entry, and the lines below have those of the kernels
    )
    grads = torch.autograd.grad(case.scalar(*leaves), [leaves[i] for i in case.argnums])
    for ours, truth in zip(grads, slopes(case), strict=True):
        same(ours, truth)


@each(DIFFERENT)
def test_gradgradcheck(case):
    assert torch.autograd.gradgradcheck(
        case.call,
        case.leaves(),
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_batched_grad=True,
        fast_mode=True,  # along random directions; test_second_derivatives has every entry
    )


@each(TRUE)
def test_first_derivatives(case):
    truths = jacobians(case)
    for transform in (jacrev, jacfwd):
        for ours, truth in zip(transform(case.call, case.argnums)(*case.inputs), truths, strict=True):
            same(ours, truth)
    for ours, truth in zip(grad(case.scalar, case.argnums)(*case.inputs), slopes(case), strict=True):
        same(ours, truth)
    call, moving = dual(case)
    same(jvp(call, moving, tangents(case))[1], pushed(case))
    out, pull = vjp(call, *moving)
    weights = normal(*out.shape, seed=9)
    for ours, truth in zip(pull(weights), truths, strict=True):
        same(ours, torch.tensordot(weights, truth, out.dim()))


@each(TRUE)
def test_forward_ad(case):
    call, moving = dual(case)
    with fwad.dual_level():
        out = call(*(fwad.make_dual(t, d) for t, d in zip(moving, tangents(case), strict=True)))
        same(fwad.unpack_dual(out).tangent, pushed(case))


@each(TRUE)
def test_second_derivatives(case):
    for i in case.argnums[:2]:
        slope = grad(case.scalar, i)
        truth = differences(lambda t, i=i, slope=slope: slope(*case.at(i, t)), case.inputs[i])
        if truth.abs().max() <= 1e-3:  # linear in this input
            assert i > 0
            continue
        same(hessian(case.scalar, i)(*case.inputs), truth, 1e-5)
        if case in DIFFERENT:
            for second in (jacrev(slope, i), jacfwd(jacfwd(case.scalar, i), i)):
                same(second(*case.inputs), truth, 1e-5)


@each(ALL)
def test_vmap(case):
    whole = case.call(*case.inputs)
    rows = [case.call(*row) for row in zip(*case.inputs, strict=True)]
    same(torch.stack(rows), whole, 1e-12)
    same(vmap(case.call)(*case.inputs), whole, 1e-12)
    last = [t.movedim(0, -1) for t in case.inputs]
    same(vmap(case.call, in_dims=-1, out_dims=-1)(*last).movedim(-1, 0), whole, 1e-12)
    shared = vmap(case.call, in_dims=(0, *(None for _ in case.inputs[1:])))
    same(
        shared(case.inputs[0], *(t[0] for t in case.inputs[1:])),
        torch.stack([case.call(x, *(t[0] for t in case.inputs[1:])) for x in case.inputs[0]]),
        1e-12,
    )


@each(ALL)
def test_vmap_of_derivatives(case):
    for i in case.argnums:
        each_row = [jacrev(case.call, i)(*row) for row in zip(*case.inputs, strict=True)]
        same(vmap(jacrev(case.call, i))(*case.inputs), torch.stack(each_row), 1e-10)
        if case.name not in DETACHED:
            whole = differences(lambda t, i=i: case.call(*case.at(i, t)), case.inputs[i])
            own = torch.stack([whole[r].select(whole[r].dim() - case.inputs[i].dim(), r) for r in range(len(X))])
            same(torch.stack(each_row), own)
    if case.name not in DETACHED:  # plain autograd around a transform
        leaves = case.leaves()
        (ours,) = torch.autograd.grad(vmap(case.call)(*leaves), leaves[0], case.call(*case.inputs) ** 2)
        (truth,) = torch.autograd.grad(case.call(*leaves), leaves[0], case.call(*case.inputs) ** 2)
        same(ours, truth, 1e-10)


def compiled(function, backend: str = "aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


def check_compiled_backward(case: Function, backend: str) -> None:
    leaves = case.leaves()
    run = compiled(case.scalar, backend)
    value = run(*leaves)
    same(value, case.scalar(*case.inputs), 1e-10)
    grads = torch.autograd.grad(value, [leaves[i] for i in case.argnums])
    for ours, truth in zip(grads, slopes(case), strict=True):
        same(ours, truth)


@each([f for f in TRUE if f in TRACED or f.name in PARTS or WHOLE])
def test_compile(case):
    check_compiled_backward(case, "aot_eager")


@each([f for f in TRUE if f.name in INDUCTOR])
def test_inductor(case):
    check_compiled_backward(case, "inductor")


@each(TRACED)
def test_compile_of_grad_and_jvp(case):
    for ours, truth in zip(compiled(grad(case.scalar, case.argnums))(*case.inputs), slopes(case), strict=True):
        same(ours, truth)
    if case.name == "linear_entmax_loss":  # behind the product the rows of "entmax_loss options"
        return
    call, moving = dual(case)
    same(compiled(lambda m, d: jvp(call, m, d)[1])(moving, tangents(case)), pushed(case))


@each(ALL)
def test_export_with_a_dynamic_batch(case):
    if case.name == "linear_entmax_loss" and TORCH < (2, 10):
        pytest.skip("this torch exports no tensors of the code around")

    class Exported(torch.nn.Module):
        def forward(self, *inputs):
            return case.call(*inputs)

    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(
        Exported(), case.inputs, dynamic_shapes=(tuple({0: batch} for _ in case.inputs),)
    ).module()
    larger = tuple(torch.cat([t, t.flip(0), t]) for t in case.inputs)
    same(program(*larger), case.call(*larger), 1e-12)
    if case.name not in DETACHED:
        leaves = case.leaves()
        (ours,) = torch.autograd.grad(program(*leaves), leaves[0], case.call(*case.inputs) ** 2)
        truth = torch.tensordot(case.call(*case.inputs) ** 2, jacobians(case)[0], case.call(*case.inputs).dim())
        same(ours, truth)
