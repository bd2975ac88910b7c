"""Kernels of segments and output heads against the reference, on random sizes, types and settings.

``make test-kernels`` draws ten thousand cases, ``make test`` two hundred; each instruction set below runs them too
(tests/kernels/test_kernels.py), as do the sanitizers.
"""

import os
import random

import pytest
import torch

import parsimax
from parsimax.heads import chunks
from parsimax.kernels import dispatch, library

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason=str(library.PROBLEM))
CASES = int(os.environ.get("PARSIMAX_KERNEL_CASES", "200"))
BLOCKS = 10
NEAR = {torch.float64: 1e-10, torch.float32: 2e-5}


def generator(draw):
    return torch.Generator().manual_seed(draw.randrange(1 << 30))


def cases(block):
    return (random.Random(case) for case in range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS))


def equal(run, dtype, reach=0.0):
    """What ``run`` gives with the kernels is what it gives in plain torch.

    ``reach`` is the largest number that probabilities are multiplied by in a gradient: near 1 they are rounded to ε.
    """
    with dispatch.use("auto"):
        ours = run()
    with dispatch.use("torch"):
        truth = run()
    eps = torch.finfo(dtype).eps
    near = max(NEAR.get(dtype, 2 * eps), 8 * eps * reach)
    for mine, their in zip(ours, truth, strict=True):
        assert mine.dtype == their.dtype and mine.shape == their.shape
        size = 1 + torch.where(their.isfinite(), their, 0).abs().amax() if their.numel() else 1
        torch.testing.assert_close(mine.double() / size, their.double() / size, rtol=0, atol=near, equal_nan=True)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_segments_equal_the_reference(block):
    for draw in cases(block):
        dtype = draw.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
        heads, count, longest = (
            draw.choice([1, 2, 4, 7, 8, 16, 19]),
            draw.randrange(1, 30),
            draw.choice([3, 9, 40, 250]),
        )
        source = generator(draw)
        lengths = torch.randint(0, longest + 1, (count,), generator=source)
        ptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
        shape = (int(ptr[-1]), heads)
        x = torch.randn(shape, generator=source, dtype=torch.float64) * draw.choice([0.1, 1, 4])
        # Scores on a grid, and thresholds off it: no support hangs on the last bit.
        x = ((x * 16).round() / 16).to(dtype)
        x[torch.rand(shape, generator=source) < draw.choice([0, 0, 0.2, 0.9])] = -torch.inf
        g = torch.randn(shape, generator=source, dtype=torch.float64).to(dtype)
        name = draw.choice(["segment_softmax", "segment_sparsemax", "segment_entmax15", "segment_entmax"])
        alpha = torch.empty(1, heads, dtype=torch.float64).uniform_(1.05, 1.95, generator=source)
        learned = name == "segment_entmax" and draw.random() < 0.5

        def mapped(scores, own, name=name, ptr=ptr, learned=learned):
            given = {"alpha": own if learned else 1.3} if name == "segment_entmax" else {}
            return getattr(parsimax, name)(scores, ptr=ptr, **given)

        # The gradient jumps where a score meets the threshold, and rounding says which side it is on.
        with dispatch.use("auto"):
            ours = mapped(x, alpha)
        with dispatch.use("torch"):
            truth = mapped(x, alpha)
        edge = dtype != torch.float64 and any(bool(((p > 0) & (p < 1e-4)).any()) for p in (ours, truth))

        def run(x=x, g=g, alpha=alpha, learned=learned, mapped=mapped, edge=edge):
            scores, own = x.clone().requires_grad_(), alpha.clone().requires_grad_()
            p = mapped(scores, own)
            leaves = [scores, own] if learned else [scores]
            return [p.detach(), *([] if edge else torch.autograd.grad(p, leaves, g))]

        equal(run, dtype)


def head_of(draw, features, classes):
    kind = draw.choice(["softmax", "sigsoftmax", "plif", "monotonic", "mixture", "mixture-plif"])
    bias, components = draw.random() < 0.5, draw.randrange(1, 5)
    if kind == "softmax":
        return parsimax.LinearHead(features, classes, bias=bias)
    own = {"plif": {"knots": 2 * draw.randrange(1, 40), "bound": draw.choice([1.0, 5.0, 20.0])}}
    own |= {"monotonic": {"units": draw.randrange(1, 20)}, "mixture": {"components": components, "width": features + 1}}
    own |= {"mixture-plif": {"components": components, "knots": 50, "tanh": draw.random() < 0.5}}
    return parsimax.make_head(kind, features, classes, bias=bias, **own.get(kind, {}))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_heads_equal_the_reference(block, monkeypatch):
    for draw in cases(block):
        dtype = draw.choice([torch.float32, torch.float32, torch.float64])
        features, classes, rows = draw.randrange(1, 20), draw.choice([1, 2, 5, 17, 64, 300, 1100]), draw.randrange(40)
        source = generator(draw)
        torch.manual_seed(draw.randrange(1 << 30))
        head = head_of(draw, features, classes).to(dtype)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter += torch.randn(parameter.shape, generator=source).to(dtype) * draw.choice([0.1, 1])
        hidden = (torch.randn(rows, features, generator=source) * draw.choice([0.3, 1, 5])).to(dtype)
        target = torch.randint(classes, (rows,), generator=source)
        target[torch.rand(rows, generator=source) < 0.2] = -100
        weight = torch.rand(classes, generator=source).to(dtype) if draw.random() < 0.5 else None
        reduction = draw.choice(["mean", "sum"])
        size = draw.choice([1, 7, 1 << 20])
        for name in ("ROWS", "ROWS_OF_MIXTURES", "FEW"):
            monkeypatch.setattr(chunks, name, size)

        def run(head=head, hidden=hidden, target=target, weight=weight, reduction=reduction):
            leaves = [hidden.clone().requires_grad_(), *head.parameters()]
            loss = head.loss(leaves[0], target, weight=weight, reduction=reduction)
            return [loss.detach(), *torch.autograd.grad(loss, leaves)]

        with torch.no_grad():
            used = head.contexts(hidden) if isinstance(head, parsimax.MixtureOfSoftmaxes) else hidden
            reach = float(used.abs().amax()) if rows else 0.0
        equal(run, dtype, reach)
