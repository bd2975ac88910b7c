"""What the Triton kernels would cost on a GPU, on paper: a prediction, nothing here was measured.

Bytes and operations counted from the kernels, peaks from the data sheets, and one share of each peak that good kernels
reach. A kernel takes as long as the slower of its memory and its arithmetic.

python benchmarks/gpu_model.py    print the tables of docs/gpu.md
"""

from __future__ import annotations

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


def attention(gpu: Gpu, heads: int, n: int, d: int, density: float, cost: int) -> float:
    """Forward: scores of all blocks once; of the live ones again for each step, and once more for the values."""
    scores = heads * n * n / 2
    again = density * (STEPS + 1)
    return milliseconds(gpu, 0, 0, (FIRST + cost * again) * scores, 2 * d * scores * (1 + again + density))


def flash(gpu: Gpu, heads: int, n: int, d: int) -> float:
    scores = heads * n * n / 2
    return milliseconds(gpu, 0, 0, SOFTMAX * scores, 4 * d * scores)


def even(gpu: Gpu, d: int, cost: int) -> float:
    """The share of live blocks at which the forward passes take the same time, or 0 if there is none."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        slower = attention(gpu, 1, 4096, d, middle, cost) > flash(gpu, 1, 4096, d)
        low, high = (low, middle) if slower else (middle, high)
    return low


def main() -> None:
    found = ", ".join(f"{n}: {steps(n, a):.1f} (α = {a})" for a in (1.5, 2) for n in (64, 1000, 8000, 32000))
    print(f"Steps of the search on rows of normal scores times 2, by their length: {found}.\n")
    print("| forward | " + " | ".join(f"{g.name}: ours | torch" for g in GPUS) + " |\n|" + "---|" * (1 + 2 * len(GPUS)))
    for what, rows, n, size, cost, held in (
        ("α = 1.5, 4096 × 8000, float32", 4096, 8000, 4, 12, True),
        ("α = 1.5, 4096 × 32000, bfloat16", 4096, 32000, 2, 12, False),
        ("any α, 4096 × 8000, float32", 4096, 8000, 4, 45, True),
        ("α = 1.5, 65536 × 64, float32", 65536, 64, 4, 12, True),
    ):
        cells = [f"{row(g, rows, n, size, cost, held):.2f} ms | {softmax(g, rows, n, size):.2f} ms" for g in GPUS]
        print(f"| {what} | {' | '.join(cells)} |")
    print()
    print(
        "| causal attention forward, 16 heads of 64, 8192 tokens, bfloat16 | " + " | ".join(g.name for g in GPUS) + " |"
    )
    print("|" + "---|" * (1 + len(GPUS)))
    print("| FlashAttention-2 | " + " | ".join(f"{flash(g, 16, 8192, 64):.2f} ms" for g in GPUS) + " |")
    for density in (0.02, 0.1, 0.3, 1.0):
        cells = [f"{attention(g, 16, 8192, 64, density, 12):.2f} ms" for g in GPUS]
        print(f"| α = 1.5, {density:.0%} of the blocks live | {' | '.join(cells)} |")
    print("| breaks even at | " + " | ".join(f"{even(g, 64, 12):.0%} of the blocks" for g in GPUS) + " |")


if __name__ == "__main__":
    main()
