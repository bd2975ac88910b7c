"""The plain torch path of parsimax against the default functions of the ``entmax`` package, forward and backward.

python benchmarks/reference.py [--repeats 5] [--only entmax] [--cpu-time]

Both sides run in one process, in turns, on the same scores; the minimum counts. A case whose answers differ from the
package's in float64 by more than 1e-5 (relative to the largest value, if above 1) is not timed, and the run fails.
``--cpu-time`` counts the processor time of one thread: on a busy machine that says more than the wall clock of two.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ["PARSIMAX_KERNELS"] = "torch"  # read at import

import entmax as peer
import torch
from torch import Tensor

import parsimax

Clock = Callable[[], float]
SHAPES = ((1024, 32000), (8, 8, 512, 512))
TOLERANCE = 1e-5
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


@dataclass(frozen=True)
class Case:
    """Two functions of (scores, alpha, target) that should agree."""

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    by_alpha: bool = False


def flat(scores: Tensor) -> Tensor:
    return scores.reshape(-1, scores.shape[-1])


CASES = (
    Case("sparsemax", lambda z, a, y: parsimax.sparsemax(z), lambda z, a, y: peer.sparsemax(z, dim=-1)),
    Case("entmax15", lambda z, a, y: parsimax.entmax15(z), lambda z, a, y: peer.entmax15(z, dim=-1)),
    Case(
        "entmax, tensor α",
        lambda z, a, y: parsimax.entmax(z, a),
        lambda z, a, y: peer.entmax_bisect(z, a, dim=-1),
        by_alpha=True,
    ),
    Case(
        "sparsemax_loss",
        lambda z, a, y: parsimax.sparsemax_loss(flat(z), y, reduction="none"),
        lambda z, a, y: peer.sparsemax_loss(flat(z), y),
    ),
    Case(
        "entmax15_loss",
        lambda z, a, y: parsimax.entmax15_loss(flat(z), y, reduction="none"),
        lambda z, a, y: peer.entmax15_loss(flat(z), y),
    ),
    Case(
        "budget_sparsemax, 4",
        lambda z, a, y: parsimax.budget_sparsemax(z, 4.0),
        lambda z, a, y: peer.budget_bisect(z, budget=4, dim=-1),
    ),
    Case("normmax, α = 2", lambda z, a, y: parsimax.normmax(z, 2.0), lambda z, a, y: peer.normmax_bisect(z, 2, dim=-1)),
)


def keep_freed_memory() -> None:
    """Large blocks stay with the process, so that no side pays for the page faults of the other."""
    if platform.system() == "Linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def inputs(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, α, targets, and what the result is weighted with for the backward pass."""
    make = torch.Generator().manual_seed(0)
    scores = torch.randn(shape, generator=make).mul_(2).requires_grad_()
    target = torch.randint(shape[-1], (scores.numel() // shape[-1],), generator=make)
    return scores, torch.tensor(1.5, requires_grad=True), target, torch.randn(shape, generator=make)


def run(
    function: Callable[..., Tensor], case: Case, data: tuple[Tensor, ...], clock: Clock
) -> tuple[float, float, list[Tensor]]:
    """Seconds forward, seconds backward, and the answers."""
    scores, alpha, target, weights = data
    leaves = [scores, alpha] if case.by_alpha else [scores]
    start = clock()
    out = function(scores, alpha, target)
    middle = clock()
    grads = torch.autograd.grad(out, leaves, weights if out.shape == scores.shape else torch.ones_like(out))
    return middle - start, clock() - middle, [out.detach(), *grads]


def disagreement(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference, relative to the largest value where that is above 1: losses, and the gradient by α."""
    pairs = zip(ours, theirs, strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs)


def measure(case: Case, shape: tuple[int, ...], repeats: int, clock: Clock) -> str:
    data = inputs(shape)
    # The package in float64, on an eighth of the rows: in float32 its own gradient by α is off by 2e-5.
    few = inputs((max(1, shape[0] // 8), *shape[1:]))
    wide = tuple(t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in few)
    error = disagreement(run(case.ours, case, few, clock)[2], run(case.theirs, case, wide, clock)[2])
    size = "×".join(map(str, shape))
    if not error <= TOLERANCE:
        raise ValueError(f"{case.name} at {size}: {error:.1e} off the package in float64, more than {TOLERANCE:g}")
    best: dict[Any, list[float]] = {case.ours: [9e9] * 3, case.theirs: [9e9] * 3}
    for _ in range(repeats):
        for function, low in best.items():
            forward, backward, _answers = run(function, case, data, clock)
            del _answers
            low[:] = map(min, low, (forward, backward, forward + backward))
    ours, theirs = best[case.ours], best[case.theirs]
    cells = [f"{1e3 * a:.0f} / {1e3 * b:.0f} ({b / a:.1f}×)" for a, b in zip(ours, theirs, strict=True)]
    return f"| {case.name} | {size} | {' | '.join(cells)} | {error:.0e} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--cpu-time", action="store_true", help="processor time of one thread")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1 if options.cpu_time else 2)
    clock: Clock = time.process_time if options.cpu_time else time.perf_counter
    load = os.getloadavg()[0]
    kind = "processor time of one thread" if options.cpu_time else "wall clock, 2 threads"
    print(f"float32, {kind}, torch {torch.__version__}, entmax {peer.__version__}, ", end="")
    print(f"minimum of {options.repeats}, load average {load:.1f} at the start.\n")
    print("| function | scores | forward, ms: parsimax / entmax | backward | both | largest difference |")
    print("|---|---|---|---|---|---|", flush=True)
    failed = False
    for shape in SHAPES:
        for case in CASES:
            if options.only in case.name:
                try:
                    print(measure(case, shape, options.repeats, clock), flush=True)
                except ValueError as error:
                    failed = True
                    print(error, file=sys.stderr, flush=True)
    print(f"\nLoad average {os.getloadavg()[0]:.1f} at the end.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
