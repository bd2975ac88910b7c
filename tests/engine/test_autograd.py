"""Autograd as people use it around the library: checkpoints, tied inputs, saved-tensor hooks, autocast."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import parsimax

LABELS = torch.tensor([0, 1, 2])
WEIGHT = torch.randn(7, 5, generator=torch.Generator().manual_seed(3))
FUNCTIONS = {
    "sparsemax": parsimax.sparsemax,
    "entmax": lambda x: parsimax.entmax(x, 1.3),
    "rsoftmax": lambda x: parsimax.rsoftmax(x, 0.5),
    "normmax": lambda x: parsimax.normmax(x, 2.0),
    "entmax_loss": lambda x: parsimax.entmax_loss(x, LABELS),
    "linear": lambda x: parsimax.linear_entmax_loss(x, WEIGHT, LABELS, 1.2),
    "attention": lambda x: parsimax.entmax_attention(x, x, x),
}


@pytest.mark.parametrize("kernels", ["torch", "cpu"], indirect=True)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_checkpointing_changes_nothing(name, kernels):
    f, x = FUNCTIONS[name], torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (plain,) = torch.autograd.grad(f(x).square().sum(), x)
    again = torch.autograd.grad(checkpoint(f, x, use_reentrant=False).square().sum(), x)[0]
    with torch.autograd.graph.save_on_cpu():
        kept = torch.autograd.grad(f(x).square().sum(), x)[0]
    assert plain.abs().max() > 0 and torch.equal(plain, again) and torch.equal(plain, kept)


@pytest.mark.parametrize("kernels", ["torch", "cpu"], indirect=True)
def test_an_input_that_depends_on_another_counts_once(kernels):
    weight = torch.randn(50, 8, dtype=torch.double, requires_grad=True)

    def tied(w):
        return parsimax.linear_entmax_loss(torch.tanh(w[:4] @ torch.ones(8, 8, dtype=w.dtype) / 10), w, torch.arange(4))

    (plain,) = torch.autograd.grad(tied(weight), weight)
    (graph,) = torch.autograd.grad(tied(weight), weight, create_graph=True)
    torch.testing.assert_close(graph, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16])
def test_the_fused_loss_under_autocast(alpha, smoothing, hidden_dtype):
    """As the two steps it stands for: the layer in bfloat16, within what that holds."""
    hidden = torch.randn(6, 8).to(hidden_dtype).requires_grad_()
    weight, target = torch.randn(20, 8, requires_grad=True), torch.randint(20, (6,))
    with torch.autocast("cpu", torch.bfloat16):
        fused = parsimax.linear_entmax_loss(hidden, weight, target, alpha, label_smoothing=smoothing)
        steps = parsimax.entmax_loss(
            torch.nn.functional.linear(hidden, weight), target, alpha, label_smoothing=smoothing
        )
    assert fused.dtype == steps.dtype
    torch.testing.assert_close(fused, steps, rtol=2e-2, atol=2e-2)
    ours, theirs = torch.autograd.grad(fused, [hidden, weight]), torch.autograd.grad(steps, [hidden, weight])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=2e-2)


def test_a_float_parameter_may_change_under_compile():
    x = torch.randn(3, 5)
    compiled = torch.compile(lambda x, a: parsimax.entmax(x, a), fullgraph=True, backend="eager")
    for alpha in (1.3, 1.4, 1.7):
        torch.testing.assert_close(compiled(x, alpha), parsimax.entmax(x, alpha))
