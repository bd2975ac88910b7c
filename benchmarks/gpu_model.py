"""What the Triton kernels would cost on a GPU, on paper: a prediction, nothing here was measured.

Bytes and operations counted from the kernels, peaks from the data sheets, and one share of each peak that good kernels
reach. A kernel takes as long as the slower of its memory and its arithmetic.

python benchmarks/gpu_model.py    print the tables of docs/gpu.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

FIRST, SOFTMAX = 5, 8  # instructions a score of the pass that finds maxima, and of online softmax
STEPS = 6  # of a search, in attention: a tile waits for its slowest query


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: float  # TB/s
    cache: float  # TB/s out of the L2 cache
    scalar: float  # float32 operations, 1e12 a second
    tensor: float  # bfloat16 operations in tensor cores, 1e12 a second
    reach: float  # the share of the tensor peak that an attention kernel in Triton reaches


GPUS = (Gpu("A100", 2.0, 5.0, 9.7, 312, 0.6), Gpu("H100", 3.35, 7.0, 33.5, 989, 0.4))
MEMORY, SCALAR = 0.85, 0.5  # shares of the peaks; operations here are instructions, of which 2 would be a fused one


def milliseconds(gpu: Gpu, memory: float = 0, cache: float = 0, scalar: float = 0, tensor: float = 0) -> float:
    """For so many bytes from memory and from the cache, and so many operations of either kind."""
    seconds = max(
        memory / (gpu.memory * 1e12 * MEMORY),
        cache / (gpu.cache * 1e12 * MEMORY),
        scalar / (gpu.scalar * 1e12 * SCALAR) + tensor / (gpu.tensor * 1e12 * gpu.reach),
    )
    return 1e3 * seconds


def steps(n: int, alpha: float) -> float:
    """Of the search of device/entmax.py, on rows of normal scores times 2; on average."""
    z = 2 * torch.randn(64, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z -= z.amax(-1, keepdim=True)
    edge, taken, done = torch.ones(64, 1, dtype=torch.float64), torch.zeros(64, 1), torch.zeros(64, 1, dtype=torch.bool)
    while not done.all():
        root = ((alpha - 1) * z + edge).clamp(min=0)
        f = (root if alpha == 2 else root.square()).sum(-1, keepdim=True)
        slope = (root.sign() if alpha == 2 else root).sum(-1, keepdim=True)
        taken += ~done
        done |= (f - 1).abs() <= 2.5e-7
        edge = torch.where(done, edge, edge - (f - (1 if alpha == 2 else f.sqrt())) / slope)
    return taken.mean().item()


def row(gpu: Gpu, rows: int, n: int, size: int, cost: int, held: bool) -> float:
    """entmax forward: one read and one write; ``cost`` instructions a score and step; long rows from the cache."""
    scores, passes = rows * n, steps(n, 1.5)
    again = 0 if held else 2 * scores * size  # what holds no support is not read after the first step
    return milliseconds(gpu, 2 * scores * size, again, cost * (passes if held else 2) * scores)


def softmax(gpu: Gpu, rows: int, n: int, size: int) -> float:
    return milliseconds(gpu, 2 * rows * n * size, 0, 10 * rows * n)


@dataclass(frozen=True)
class Kernel:
    """A row kernel: numbers read and written a score, and instructions a score, those of a step of its search apart."""

    name: str
    tiles: str  # passes over a row that is not held
    once: int
    step: int = 0
    alpha: float = 2  # whose search it is
    back: int = 12
    given: int = 2  # what the backward reads beside g: p, or the scores, or both; and writes dx
    double: int = 1  # 2 where the instructions are of float64, which an A100 and an H100 have half as many units for

    def steps(self, n: int) -> float:
        return steps(n, self.alpha) if self.step else 0

    def forward(self, gpu: Gpu, rows: int, n: int, size: int) -> float:
        work = self.double * (self.once + self.step * self.steps(n))
        return milliseconds(gpu, 2 * rows * n * size, 0, work * rows * n)

    def backward(self, gpu: Gpu, rows: int, n: int, size: int) -> float:
        return milliseconds(gpu, (self.given + 1) * rows * n * size, 0, self.double * self.back * rows * n)


STEP, ANY_STEP, PLACE = 12, 45, 32 * 3  # instructions a score: of a step, of one of any α, of 32 counts
SEARCH = "3 and live tiles a step"
KERNELS = (
    Kernel("`softmax`", "4", 16, back=8),
    Kernel("`sparsemax`", SEARCH, 9, 8),
    Kernel("`entmax15`", SEARCH, 10, STEP, 1.5),
    Kernel("`entmax`, any α", SEARCH, 50, ANY_STEP, 1.5, back=40),
    Kernel("`topk_sparsemax`, sparsemax wider than k", f"{SEARCH}, 7 more", 9 + PLACE + 12, 8),
    Kernel("`budget_sparsemax`", "7 and 1 a step", 9 + PLACE, 16),
    Kernel("`rsoftmax`", "10", 40 + PLACE, back=60 + PLACE),
    Kernel("`tsoftmax`", "4", 40, back=60),
    Kernel("`sigsoftmax`", "4", 40, back=45),
    Kernel("`sparsegen`", SEARCH, 12, 10),
    Kernel("`sparsehourglass`", f"{SEARCH}, 1 more", 15, 10, back=30, given=3),
    Kernel("`normmax`, α = 2", SEARCH, 10, 10, 1.5, back=150, double=2),
    Kernel("`normmax`, other α", SEARCH, 60, 60, 1.5, back=150, double=2),
)


def loss(gpu: Gpu, rows: int, n: int, size: int, cost: int) -> tuple[float, float]:
    """Forward: logits are read, and live tiles again from the cache. Backward: read, and their gradient is written."""
    scores = rows * n
    forward = milliseconds(gpu, scores * size, 2 * scores * size, 2 * cost * scores)
    return forward, milliseconds(gpu, 2 * scores * size, 0, cost * scores)


def cross_entropy(gpu: Gpu, rows: int, n: int, size: int) -> tuple[float, float]:
    """Logits read and log-probabilities written; backward: zeros written, they and log-probabilities read, a gradient
    written."""
    scores = rows * n
    return milliseconds(gpu, 2 * scores * size, 0, 10 * scores), milliseconds(gpu, 4 * scores * size, 0, 8 * scores)


def attention(gpu: Gpu, heads: int, n: int, d: int, density: float, cost: int) -> float:
    """Forward: scores of all blocks once; of the live ones again for each step, and once more for the values."""
    scores = heads * n * n / 2
    again = density * (STEPS + 1)
    return milliseconds(gpu, 0, 0, (FIRST + cost * again) * scores, 2 * d * scores * (1 + again + density))


def flash(gpu: Gpu, heads: int, n: int, d: int) -> float:
    scores = heads * n * n / 2
    return milliseconds(gpu, 0, 0, SOFTMAX * scores, 4 * d * scores)


def attention_backward(gpu: Gpu, heads: int, n: int, d: int, density: float, cost: int) -> float:
    """Live blocks alone. Queries: scores and the gradient by weights twice, dq; keys: both once more, dk and dv: nine
    products."""
    scores = density * heads * n * n / 2
    return milliseconds(gpu, 0, 0, 3 * cost * scores, 9 * 2 * d * scores)


def flash_backward(gpu: Gpu, heads: int, n: int, d: int) -> float:
    """Five products."""
    scores = heads * n * n / 2
    return milliseconds(gpu, 0, 0, SOFTMAX * scores, 5 * 2 * d * scores)


def even(ours: Callable[[float], float], theirs: float) -> str:
    """The share of live blocks at which both take the same time."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if ours(middle) > theirs else (middle, high)
    return f"{low:.0%} of the blocks"


def cells(values: Iterable[float]) -> str:
    return " | ".join(f"{value:.2f} ms" for value in values)


def table(*head: str) -> None:
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))


def print_kernels(rows: int, n: int, size: int) -> None:
    table("4096 × 8000, float32", "numbers a score", "instructions a score", "passes by tiles", *TIMES)
    for kernel in KERNELS:
        forward = kernel.once + kernel.step * kernel.steps(n)
        wide = " of float64" if kernel.double == 2 else ""
        given = f"2, {kernel.given + 1} | {forward:.0f}, {kernel.back}{wide} | {kernel.tiles}"
        times = (way(g, rows, n, size) for g in GPUS for way in (kernel.forward, kernel.backward))
        print(f"| {kernel.name} | {given} | {cells(times)} |")
    plain = Kernel("", "", 10, back=8)
    times = (way(g, rows, n, size) for g in GPUS for way in (plain.forward, plain.backward))
    print(f"| `torch.softmax` | 2, 3 | 10, 8 | | {cells(times)} |")


TIMES = [f"{g.name} {way}" for g in GPUS for way in ("forward", "backward")]


def print_long_rows() -> None:
    table("4096 × 32000, bfloat16, by tiles", "numbers a score", *TIMES)
    for alpha, cost in (("α = 1.5", STEP), ("any α", ANY_STEP)):
        print(f"| `entmax_loss`, {alpha} | 1, 2 | {cells(t for g in GPUS for t in loss(g, 4096, 32000, 2, cost))} |")
    print(f"| `F.cross_entropy` | 2, 4 | {cells(t for g in GPUS for t in cross_entropy(g, 4096, 32000, 2))} |")
    ours = (t for g in GPUS for t in (row(g, 4096, 32000, 2, STEP, False), KERNELS[2].backward(g, 4096, 32000, 2)))
    print(f"| `entmax15` | 2, 3 | {cells(ours)} |")
    theirs = (t for g in GPUS for t in (softmax(g, 4096, 32000, 2), KERNELS[0].backward(g, 4096, 32000, 2)))
    print(f"| `torch.softmax` | 2, 3 | {cells(theirs)} |")


def print_attention(heads: int, n: int, d: int) -> None:
    table(f"causal attention, {heads} heads of {d}, {n} tokens, bfloat16", "products of 2d a score", *TIMES)
    theirs = (way(g, heads, n, d) for g in GPUS for way in (flash, flash_backward))
    print(f"| FlashAttention-2 | 2, 5 | {cells(theirs)} |")
    for density in (0.02, 0.1, 0.3, 1.0):
        ways = (attention, attention_backward)
        ours = (way(g, heads, n, d, density, STEP) for g in GPUS for way in ways)
        count = f"{1 + density * (STEPS + 2):.1f}, {9 * density:.1f}"
        print(f"| α = 1.5, {density:.0%} of the blocks live | {count} | {cells(ours)} |")
    shares = [
        even(lambda share, g=g, own=own: own(g, heads, n, d, share, STEP), other(g, heads, n, d))  # type: ignore[misc]
        for g in GPUS
        for own, other in ((attention, flash), (attention_backward, flash_backward))
    ]
    print(f"| breaks even at | | {' | '.join(shares)} |")


def main() -> None:
    found = ", ".join(f"{n}: {steps(n, a):.1f} (α = {a})" for a in (1.5, 2) for n in (64, 1000, 8000, 32000))
    print(f"Steps of the search on rows of normal scores times 2, by their length: {found}.")
    print_kernels(4096, 8000, 4)
    print_long_rows()
    print_attention(16, 8192, 64)


if __name__ == "__main__":
    main()
