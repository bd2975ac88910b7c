"""``parsimax bench --device cuda``: the kernels of a GPU against torch's, forward and backward, in one process.

Each side runs until ``--seconds`` are over, in turns, and the median counts. A case whose answer is wrong is not timed,
nor is one that the GPU has not the memory for, nor another's kernel that does not take it.
With ``--device interpreter`` tiny cases run in Triton's interpreter: that the command works, not how fast.
"""

from __future__ import annotations

import csv
import importlib.util
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import parsimax

from .selftest import INTERPRETER, MAPPINGS, Public, place_for, prepared

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
FEWEST = 3  # runs of each side


@dataclass(frozen=True)
class Case:
    name: str
    ours: Callable[..., Tensor]
    against: dict[str, Callable[..., Tensor]]
    inputs: tuple[Tensor, ...]  # on the CPU


def causal_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Its flash kernel or an error: left to itself SDPA may take a slower one."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return causal_sdpa(q, k, v)


def sdpa(dtype: torch.dtype, tiny: bool) -> dict[str, Callable[..., Tensor]]:
    """float32 has no flash kernel on a GPU."""
    flash = dtype != torch.float32 and (tiny or torch.backends.cuda.is_flash_attention_available())
    return {"SDPA, flash": causal_flash} if flash else {"SDPA": causal_sdpa}


def layer_and_cross_entropy(hidden: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), y)


def cases(tiny: bool) -> Iterator[Case]:
    for dtype in TOLERANCE:
        word = str(dtype).removeprefix("torch.")
        for rows, n in ((4, 70),) if tiny else ((65536, 64), (4096, 1000), (4096, 8000), (2048, 32000), (512, 128_000)):
            draw = torch.Generator().manual_seed(n)
            x = (2 * torch.randn(rows, n, generator=draw)).to(dtype)
            y = torch.randint(n, (rows,), generator=draw)
            soft = {"torch.softmax": lambda x, *_: torch.softmax(x, -1)}
            yield Case(f"sparsemax, {rows}x{n}, {word}", lambda x: parsimax.sparsemax(x), soft, (x,))
            yield Case(f"entmax15, {rows}x{n}, {word}", lambda x: parsimax.entmax15(x), soft, (x,))
            alpha = torch.full((rows, 1), 1.3)
            yield Case(f"entmax, learned, {rows}x{n}, {word}", parsimax.entmax, soft, (x, alpha))
            cross = {"F.cross_entropy": lambda x, y: F.cross_entropy(x, y)}
            yield Case(f"entmax15_loss, {rows}x{n}, {word}", lambda x, y: parsimax.entmax15_loss(x, y), cross, (x, y))
            if n in (70, 1000, 32000):  # in registers, and by tiles
                for name in (name for name in MAPPINGS if name not in ("softmax", "sparsemax", "entmax15", "entmax")):
                    yield Case(f"{name}, {rows}x{n}, {word}", Public(name, MAPPINGS[name]), soft, (x,))
            if n in (70, 32000, 128_000):
                width = 16 if tiny else 1024
                hidden, weight = (torch.randn(size, width, generator=draw) / width**0.25 for size in (rows, n))
                layer = Public("linear_entmax_loss", names=("hidden", "weight", "target"))
                against = {"F.cross_entropy": layer_and_cross_entropy}
                inputs = (hidden.to(dtype), weight.to(dtype), y)
                yield Case(f"linear_entmax_loss, {rows}x{n}, {word}", layer, against, inputs)
        for n, d in ((20, 16),) if tiny else ((1024, 64), (4096, 64), (4096, 128), (16384, 64)):
            draw = torch.Generator().manual_seed(n)
            q, k, v = ((2 * torch.randn(1, 8, n, d, generator=draw)).to(dtype) for _ in range(3))
            others = sdpa(dtype, tiny)
            if importlib.util.find_spec("adasplash") is not None and not tiny:
                adasplash = importlib.import_module("adasplash").adasplash

                others["adasplash"] = lambda q, k, v, f=adasplash: f(q, k, v, alpha=1.5, is_causal=True)
            attend = lambda q, k, v: parsimax.entmax_attention(q, k, v, is_causal=True)  # noqa: E731
            yield Case(f"entmax_attention, causal, 8x{n}x{d}, {word}", attend, others, (q, k, v))


def both_ways(call: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    out = call(*inputs)
    wanted = [t for t in inputs if t.requires_grad]
    torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)


def ready(t: Tensor, device: torch.device) -> Tensor:
    t = t.to(device)
    return t.requires_grad_() if t.is_floating_point() else t


def wrong(case: Case, device: torch.device) -> str | None:
    """On the first rows, or the first queries of attention: what is wrong with the answer."""
    first = len(case.inputs[0])  # rows; a weight matrix has others
    few = [t[..., :33, :] if t.dim() == 4 else t[:8] if len(t) == first else t for t in case.inputs]
    ours = case.ours(*(t.to(device) for t in few)).cpu().double()
    with parsimax.use_kernels("torch"):
        true = case.ours(*(t.double() if t.is_floating_point() else t for t in few))
    off = ((ours - true).abs() / (1 + true.abs())).max().item()
    return None if off <= TOLERANCE[case.inputs[0].dtype] else f"off by {off:.2e}"


def milliseconds(call: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - began)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end))


def said_of(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def medians(case: Case, device: torch.device, seconds: float) -> dict[str, float]:
    inputs = [ready(t, device) for t in case.inputs]
    sides = {"parsimax": case.ours, **case.against}
    for name, call in [*sides.items()]:  # compiles, and fills the caches
        try:
            both_ways(call, inputs)
        except Exception as error:
            if call is case.ours:
                raise
            print(f"{case.name:52} without {name}: {said_of(error)}")
            del sides[name]
    taken: dict[str, list[float]] = {name: [] for name in sides}
    end = time.perf_counter() + seconds
    while min(map(len, taken.values())) < FEWEST or time.perf_counter() < end:
        for name, call in sides.items():
            taken[name].append(milliseconds(lambda c=call: both_ways(c, inputs), device))  # type: ignore[misc]
    return {name: statistics.median(times) for name, times in taken.items()}


def run(options: Namespace) -> int:
    device = prepared(options.device)
    out = place_for(options.csv) if options.csv else None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else options.device
    print(f"{name}, torch {torch.__version__}: milliseconds, forward and backward")
    written: list[dict[str, Any]] = []
    failed = 0
    for case in cases(options.device == INTERPRETER):
        if options.case and not any(part in case.name for part in options.case):
            continue
        times: dict[str, float] = {}
        try:
            why = wrong(case, device)
            times = {} if why else medians(case, device, options.seconds)
        except Exception as error:  # the other cases, and the file, are worth having
            why = said_of(error)
        if why is not None:
            failed += 1
            print(f"{case.name:52} not timed: {why}")
            continue
        ours = times.pop("parsimax")
        said = ", ".join(f"{other} {ms:.3f} ({ours / ms:.2f})" for other, ms in times.items())
        print(f"{case.name:52} {ours:9.3f}   {said}", flush=True)
        for other, ms in times.items():
            row = {"case": case.name, "ours_ms": ours, "against": other, "against_ms": ms, "device": name}
            written.append({**row, "torch": torch.__version__, "parsimax": parsimax.__version__})
    if out is not None and written:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(written[0]))
            writer.writeheader()
            writer.writerows(written)
    return 1 if failed else 0
