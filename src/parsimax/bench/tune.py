"""``parsimax tune``: which launch parameters are the fastest on a GPU, by trying them; written where launches look.

A choice that gives a wrong answer, or that the GPU has not the registers or the memory for, is left out.
"""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import parsimax

from .gpu import both_ways, milliseconds
from .selftest import INTERPRETER, prepared

SCORES = {"light": (4, 8, 16, 32), "heavy": (2, 4, 8, 16)}
TILES = (1024, 2048, 4096, 8192)
BLOCKS = [  # the built-in ones among them
    (m, n, warps, stages) for m in (32, 16, 64, 128) for n in (32, 16, 64) for warps in (4, 8) for stages in (1, 2, 3)
]
RUNS = 7  # of each choice


def fastest(
    choices: Iterable[Any], put: Callable[[Any], None], call: Callable[..., Tensor], inputs: list[Tensor]
) -> Any:
    """The choice with the least median time; None if none works."""
    device = inputs[0].device
    runs = RUNS if device.type == "cuda" else 1
    with parsimax.use_kernels("torch"):
        true = call(*(t.detach().cpu().double() for t in inputs))
    best: tuple[float, Any] | None = None
    for choice in choices:
        put(choice)
        try:
            off = (call(*inputs).detach().cpu().double() - true).abs().max().item()
            times = [milliseconds(lambda: both_ways(call, inputs), device) for _ in range(runs)]
        except Exception as error:  # too many registers, too much shared memory: whatever Triton says of it
            print(f"  {choice}: {type(error).__name__}")
            continue
        time = statistics.median(times)
        print(f"  {choice}: {time:.3f} ms" + ("" if off < 2e-2 else f", wrong by {off:.1e}"), flush=True)
        if off < 2e-2 and (best is None or time < best[0]):
            best = time, choice
    return None if best is None else best[1]


def rows_table(device: torch.device, tiny: bool) -> dict[str, dict[str, int]]:
    from ..kernels.triton import launch

    found: dict[str, dict[str, int]] = {"scores": {}, "tile": {}}
    calls = {"light": lambda x: parsimax.entmax15(x), "heavy": lambda x: parsimax.entmax(x, 1.3)}
    for kind, call in calls.items():
        for part, table, choices, n in (
            ("scores", launch.SCORES, SCORES[kind], 60 if tiny else 4000),
            ("tile", launch.TILE, TILES, 60 if tiny else 100_000),
        ):
            print(f"{part}, {kind}, rows of {n}")
            x = (2 * torch.randn(4 if tiny else 2048, n)).to(device).requires_grad_()
            before = table[kind]
            choice = fastest(choices[:2] if tiny else choices, lambda c: table.__setitem__(kind, c), call, [x])  # noqa: B023
            table[kind] = before if choice is None else choice
            found[part][kind] = table[kind]
    return found


def attention_table(device: torch.device, tiny: bool) -> dict[str, list[int]]:
    from ..kernels.triton import WIDEST, launch

    found: dict[str, list[int]] = {}
    measured = launch.MEASURED.setdefault("attention", {})
    for dim in (16,) if tiny else (32, 64, 128, 256):
        for dtype in (torch.float32,) if tiny else (torch.bfloat16, torch.float32):
            if dim > WIDEST[dtype.itemsize]:
                continue  # there is no kernel whose time could be taken
            for heavy in (False, True):
                key = f"{dim}, {dtype.itemsize}, {heavy}"
                alpha = 1.3 if heavy else 1.5
                print(f"attention, {key}")
                shape = (1, 1, 20, dim) if tiny else (2, 8, 2048, dim)
                qkv = [torch.randn(shape).to(device, dtype).requires_grad_() for _ in range(3)]

                def attend(q: Tensor, k: Tensor, v: Tensor, alpha: float = alpha) -> Tensor:
                    return parsimax.entmax_attention(q, k, v, alpha=alpha, is_causal=True)

                choice = fastest(BLOCKS[:2] if tiny else BLOCKS, lambda c: measured.__setitem__(key, c), attend, qkv)  # noqa: B023
                measured.pop(key, None)
                if choice is not None:
                    found[key] = measured[key] = list(choice)
    return found


def run(options: Namespace) -> int:
    tiny = options.device == INTERPRETER
    device = prepared(options.device)
    from ..kernels.triton import PROBLEM, table

    if PROBLEM is not None:
        raise RuntimeError(f"tune: {PROBLEM}")
    out = Path(options.out) if options.out else table.path()
    if out is None:
        raise ValueError("tune: no GPU is in use, so there is no place for its table; pass --out FILE")
    found: dict[str, Any] = {**rows_table(device, tiny), "attention": attention_table(device, tiny)}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return 0
