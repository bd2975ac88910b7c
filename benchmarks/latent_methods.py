"""Compare all ways to an expected loss on one toy problem: bias, variance, calls and time of the gradient.

python benchmarks/latent_methods.py            print the two tables of docs/latent.md
python benchmarks/latent_methods.py --figure   also draw docs/latent.png
python benchmarks/latent_methods.py --jumps    the second table alone; `python docs/pictures.py jumps` draws it

The problem: z is one of 64, its loss is that of a small decoder, the scores are normal with deviation 1/2. The truth
is the sum over all z under softmax; the sparse methods have a distribution of their own, and are compared with the
exact sum over that.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import parsimax
from parsimax import structured
from parsimax.latent import Gumbel, Marginal, ScoreFunction, SparseMAP, SumAndSample, TopK

Z, WIDTH, DRAWS, REPEATS = 64, 32, 4000, 200
METHODS = {
    "Marginal(softmax)": lambda: Marginal("softmax"),
    "Marginal(sparsemax)": lambda: Marginal("sparsemax"),
    "TopK(5)": lambda: TopK(5),
    "SparseMAP()": lambda: SparseMAP(),  # of one-of-n it is sparsemax
    "ScoreFunction()": lambda: ScoreFunction(),
    "ScoreFunction(mean)": lambda: ScoreFunction("mean"),
    "ScoreFunction(second-sample)": lambda: ScoreFunction("second-sample"),
    "ScoreFunction(leave-one-out)": lambda: ScoreFunction("leave-one-out"),
    "ScoreFunction(network)": lambda: ScoreFunction(nn.Linear(1, 1)),
    "SumAndSample(1)": lambda: SumAndSample(1),
    "SumAndSample(4)": lambda: SumAndSample(4),
    "Gumbel(1.0)": lambda: Gumbel(1.0),
    "Gumbel(1.0, hard)": lambda: Gumbel(1.0, hard=True),
}


class Toy:
    """One row of scores, and a decoder that turns z into a loss."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self.scores = 0.5 * torch.randn(Z, generator=random)
        self.table = torch.randn(Z, WIDTH, generator=random)
        self.target = torch.randn(WIDTH, generator=random)

    def loss_of(self, example: Tensor, z: Tensor) -> Tensor:
        chosen = z @ self.table if z.is_floating_point() else self.table[z]
        return (chosen.tanh() - self.target).square().mean(-1)

    def gradient(self, method: nn.Module, copies: int) -> tuple[Tensor, float, float]:
        """(copies, Z) gradients of independent draws, calls of each, seconds of processor time of all."""
        scores = self.scores.repeat(copies, 1).requires_grad_()
        start = time.process_time()
        out = parsimax.expected_loss(scores, self.loss_of, method, context=torch.ones(copies, 1))
        (grads,) = torch.autograd.grad(out.loss.sum(), scores)
        return grads, out.calls.float().mean().item(), time.process_time() - start

    def truth(self, sparse: nn.Module | None) -> Tensor:
        """The gradient of the exact sum, under softmax or under the method's own sparse distribution."""
        return self.gradient(sparse or Marginal("softmax"), 1)[0][0]


def settle(toy: Toy, method: nn.Module) -> None:
    """Let a baseline that learns have learned."""
    weights = [*method.parameters()]
    optimiser = torch.optim.SGD(weights, lr=0.1) if weights else None
    for _ in range(200):
        scores = toy.scores.repeat(64, 1)
        out = parsimax.expected_loss(scores, toy.loss_of, method, context=torch.ones(64, 1))
        if optimiser is not None:
            optimiser.zero_grad()
            out.baseline_loss.backward()
            optimiser.step()


def compare() -> list[tuple[str, float, float, float, float]]:
    """(method, bias, standard deviation, calls, milliseconds for 64 rows); the first two relative to the truth."""
    toy, rows = Toy(), []
    for name, make in METHODS.items():
        torch.manual_seed(0)
        method = make()
        settle(toy, method)
        own = method if isinstance(method, (Marginal, TopK, SparseMAP)) else None
        truth = toy.truth(own)
        grads, calls, _ = toy.gradient(method, DRAWS)
        size = truth.norm()
        bias = (grads.mean(0) - truth).norm() / size
        spread = grads.var(0, unbiased=False).sum().sqrt() / size
        seconds = min(toy.gradient(method, 64)[2] for _ in range(REPEATS))
        rows.append((name, bias.item(), spread.item(), calls, 1e3 * seconds))
    return rows


BITS, STEPS, LINES = 10, 4001, 20
RULES = ("staircase", "systematic", "active-set", "active-set, random start")


def lines() -> tuple[Tensor, Tensor]:
    """The two ends of every line (lines, 2, bits), and the weights of the loss."""
    random = torch.Generator().manual_seed(1)
    weights = torch.randn(BITS, 16, generator=random, dtype=torch.float64)
    return torch.randn(LINES, 2, BITS, generator=random, dtype=torch.float64), weights


def along(rule: str, ends: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The expected loss at every step of a line, and how much its gradient says that it changes from step to step."""
    begin, end = ends
    line = (begin + torch.linspace(0, 1, STEPS, dtype=torch.float64)[:, None] * (end - begin)).requires_grad_()
    start = None
    if "random" in rule:  # as in the code of the paper: each item begins at a structure of its own
        random = torch.Generator().manual_seed(2)
        one, zero = torch.ones(STEPS, dtype=torch.long), torch.zeros(STEPS, dtype=torch.float64)
        codes = torch.randint(2, (STEPS, BITS), generator=random).double()
        start = structured.Distribution(codes, one.double(), codes, one, zero, torch.zeros_like(one))
    found = parsimax.sparsemap(line, structured.Bits(), rule=rule.split(",")[0], start=start)
    value = found.expectation((found.structures @ weights).tanh().sum(-1))
    slope = torch.autograd.grad(value.sum(), line)[0] @ (end - begin)
    return value.detach(), (slope[1:] + slope[:-1]) / 2 / (STEPS - 1)


def jumps() -> list[tuple[str, float, float]]:
    """(rule, jumps along a line, what the gradient misses): is the expected loss the integral of its gradient?"""
    ends, weights = lines()
    rows = []
    for rule in RULES:
        count = missed = 0.0
        for each in ends:
            value, ahead = along(rule, each, weights)
            count += float(((value.diff() - ahead).abs() > 0.01).sum()) / LINES
            missed += float((value[-1] - value[0] - ahead.sum()).abs()) / LINES
        rows.append((rule, count, missed))
    return rows


def draw(rows: list[tuple[str, float, float, float, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [row[0] for row in rows]
    place = range(len(names))
    colours = ["tab:green" if r[2] < 1e-4 else "tab:red" if "Gumbel" in r[0] else "tab:blue" for r in rows]
    figure, (bias, spread, calls, ms) = pyplot.subplots(1, 4, figsize=(12, 3.8), sharey=True, layout="constrained")
    bias.barh(place, [r[1] for r in rows], xerr=[r[2] / DRAWS**0.5 for r in rows], color=colours)
    bias.set(title="bias, ± its standard error", yticks=place, yticklabels=names)
    bias.invert_yaxis()
    spread.barh(place, [r[2] for r in rows], color=colours)
    spread.set(title="standard deviation")
    calls.barh(place, [r[3] for r in rows], color=colours)
    calls.set(title="calls of the loss", xscale="log")
    ms.barh(place, [r[4] for r in rows], color=colours)
    ms.set(title="ms, 64 rows")
    figure.suptitle("Gradients of an expected loss, relative to the true one: exact, unbiased, biased", fontsize=10)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", action="store_true", help="draw docs/latent.png")
    parser.add_argument("--jumps", action="store_true", help="the table of jumps alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [] if options.jumps else compare()
    if rows:
        print(
            "| method | bias ± its standard error | standard deviation | calls | ms, 64 rows |\n|---|---|---|---|---|"
        )
    for name, bias, spread, calls, milliseconds in rows:
        print(
            f"| `{name}` | {bias:.3f} ± {spread / DRAWS**0.5:.3f} | {spread:.2f} | {calls:.1f} | {milliseconds:.2f} |"
        )
    print("\n| rule | jumps along a line | change that the gradient misses |\n|---|---|---|")
    for rule, count, miss in jumps():
        print(f"| `{rule}` | {count:.1f} | {miss:.4f} |")
    if options.figure and rows:
        draw(rows, Path(__file__).parents[1] / "docs" / "latent.png")


if __name__ == "__main__":
    main()
