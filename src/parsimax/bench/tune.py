"""``parsimax tune``: which launch parameters are the fastest on a GPU, by trying them; written where launches look.

A choice that gives a wrong answer, or that the GPU has not the registers or the memory for, is left out. What is found
is kept at once, and a run that was stopped goes on with it.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import parsimax

from .gpu import both_ways, milliseconds
from .selftest import INTERPRETER, place_for, prepared

# Scores that a thread may hold, from the fewest on, the built-in ones among them.
SCORES = {
    "light": (4, 8, 16, 32),
    "heavy": (2, 4, 8, 16),
    "ordered": (4, 8, 16, 32),
    "heaviest": (1, 2, 4, 8),
    "backward": (4, 8, 16, 32),
}
TILES = (1024, 2048, 4096, 8192)
CLUSTERS = (1, 2, 4, 8)  # programs that hold a row together, on GPUs of NVIDIA from this version on
CLUSTERED = 9
# Of attention, the built-in ones among them. Each choice is three kernels to compile, which takes longest.
BLOCKS = [(m, n) for m in (32, 16, 64, 128) for n in (32, 16, 64)]
LAUNCHES = [(warps, stages) for warps in (4, 8) for stages in (1, 2, 3)]
BEST = 2  # so many blocks are tried with every launch
RUNS = 7  # of each choice
NUMBERS, LONG = 1 << 25, 100_000  # scores at a time, and in a row that goes by tiles whatever is chosen
FEW = 64  # rows that are compared with the formula
NEAR = {2: 2e-2, 4: 1e-4}  # how near they must be, by the bytes of a number
THREADS_TRIED = 16  # in the interpreter: rows of 64 are as long there as rows of 4096 on a GPU
Run = Callable[[list[Tensor]], Tensor]
Blocks = tuple[int, int, int, int]  # queries, keys, warps, stages
Found = dict[str, dict[str, Any]]


def _entmax15(inputs: list[Tensor]) -> Tensor:
    return parsimax.entmax15(inputs[0])


def _entmax(inputs: list[Tensor]) -> Tensor:
    return parsimax.entmax(inputs[0], inputs[1])


def _budget(inputs: list[Tensor]) -> Tensor:
    return parsimax.budget_sparsemax(inputs[0], 3.0)


def _loss(inputs: list[Tensor]) -> Tensor:
    x, alpha = inputs
    return parsimax.entmax_loss(x, torch.zeros(len(x), dtype=torch.long, device=x.device), alpha, reduction="none")


# What is launched by the numbers of a kind, and by no others: a call, and whether forward, backward or both.
CALLS: dict[str, tuple[Run, str]] = {
    "light": (_entmax15, "forward"),
    "heavy": (_entmax, "both"),
    "ordered": (_budget, "both"),
    "heaviest": (_loss, "forward"),
    "backward": (_entmax15, "backward"),
}


def milliseconds_of(call: Run, inputs: list[Tensor], way: str) -> float:
    """The median of several runs."""
    device = inputs[0].device
    runs = RUNS if device.type == "cuda" else 1
    run: Callable[[], Any]
    if way == "both":
        run = partial(both_ways, lambda *given: call([*given]), inputs)
    elif way == "forward":
        run = partial(call, inputs)
    else:
        out = call(inputs)
        run = partial(torch.autograd.grad, out, inputs[0], torch.ones_like(out), retain_graph=True)
    return statistics.median(milliseconds(run, device) for _ in range(runs))


def answers(call: Run, inputs: list[Tensor], way: str) -> list[Tensor]:
    """What a call gives, and its gradients unless it goes forward alone, of a few rows."""
    out = call(inputs)
    found = [out]
    if way != "forward":
        g = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype, device=out.device)
        found += torch.autograd.grad(out, inputs, g.expand_as(out))
    return [each[:FEW].detach().cpu().double() for each in found]


def truth(call: Run, inputs: list[Tensor], way: str) -> list[Tensor]:
    """The same by the formulas in float64."""
    with parsimax.use_kernels("torch"):
        return answers(call, [t.detach()[:FEW].cpu().double().requires_grad_() for t in inputs], way)


def off_by(call: Run, inputs: list[Tensor], way: str, true: list[Tensor]) -> float:
    """The largest error; of what is larger than 1 anywhere, as a share of its largest."""
    pairs = zip(answers(call, inputs, way), true, strict=True)
    return max((ours - exact).abs().max().item() / max(1.0, exact.abs().max().item()) for ours, exact in pairs)


def tried(name: str, call: Run, inputs: list[Tensor], way: str, true: list[Tensor]) -> float:
    """The time of what is put into the table; infinite if it does not work, or is wrong."""
    near = NEAR[inputs[0].element_size()]
    try:
        off, time = off_by(call, inputs, way, true), milliseconds_of(call, inputs, way)
    except Exception as error:  # too many registers, too much shared memory: whatever Triton says of it
        print(f"  {name}: {type(error).__name__}")
        return math.inf
    print(f"  {name}: {time:.3f} ms" + ("" if off < near else f", wrong by {off:.1e}"), flush=True)
    return time if off < near else math.inf


def best_of(times: dict[Any, list[float]]) -> Any:
    """The choice with the least product of times, those of every length alike; None if none works everywhere."""
    works = {choice: sum(map(math.log, each)) for choice, each in times.items() if max(each) < math.inf}
    return min(works, key=lambda choice: works[choice]) if works else None


def fastest_rows(
    kind: str, table: dict[str, int], choices: Sequence[int], lengths: Iterable[int], device: torch.device, tiny: bool
) -> int:
    """The best of the choices over rows of all these lengths; the table has it afterwards.

    Choices that would launch the same are timed once: between them there would be nothing but noise to choose by.
    """
    from ..kernels.triton import launch

    call, way = CALLS[kind]
    before, times = table[kind], {choice: list[float]() for choice in choices}
    for n in lengths:
        print(f"{kind}, rows of {n}")
        rows = 4 if tiny else max(FEW, NUMBERS // n)
        inputs = [(2 * torch.randn(rows, n)).to(device).requires_grad_()]
        if call in (_entmax, _loss):
            inputs.append(torch.full((rows, 1), 1.3, device=device).requires_grad_())
        true, known = truth(call, inputs, way), dict[launch.Rows, float]()
        for choice in choices:
            table[kind] = choice
            same = launch.rows(n, kind)
            if same not in known:
                words = "held" if same.one else f"by tiles of {same.B}"
                words += f" by {same.cluster} programs" if same.cluster > 1 else ""
                known[same] = tried(f"{choice} ({words}, {same.warps} warps)", call, inputs, way, true)
            times[choice].append(known[same])
    found = best_of(times)
    table[kind] = before if found is None else found
    return table[kind]


def clustered(device: torch.device) -> bool:
    """Whether programs of this GPU can reduce together."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device)[0] >= CLUSTERED


def rows_table(found: Found, keep: Callable[[], None], device: torch.device, tiny: bool) -> None:
    from ..kernels.triton import launch

    threads, part = launch.THREADS, launch.PART
    if tiny:
        launch.THREADS, launch.PART = THREADS_TRIED, THREADS_TRIED * 16
    try:
        for kind, choices in SCORES.items():
            some, tiles = (choices[1:3], TILES[:2]) if tiny else (choices, TILES)
            long = max(SCORES[kind]) * launch.THREADS + 1 if tiny else LONG
            clusters = CLUSTERS[:2] if tiny else CLUSTERS if clustered(device) else ()
            launch.CLUSTER[kind] = 1

            def decide(
                part: str, table: dict[str, int], of_part: Sequence[int], lengths: Iterable[int], kind: str = kind
            ) -> None:
                if kind in found[part]:
                    table[kind] = found[part][kind]
                else:
                    found[part][kind] = fastest_rows(kind, table, of_part, lengths, device, tiny)
                    keep()

            decide("tile", launch.TILE, tiles, [long])
            # As long as each choice can just hold, where it and the one before it differ.
            decide("scores", launch.SCORES, some, [choice * launch.THREADS for choice in some])
            if clusters:
                held = [launch.longest(kind, choice) for choice in clusters]
                decide("cluster", launch.CLUSTER, clusters, sorted({*held} - {held[0]}))
    finally:
        launch.THREADS, launch.PART = threads, part


def fastest_blocks(usual: Sequence[int], time_of: Callable[[Blocks], float], tiny: bool) -> Blocks | None:
    """All blocks with the usual warps and stages, then the best of them with all others; None if none works."""
    blocks, launches = (BLOCKS[:2], []) if tiny else (BLOCKS, LAUNCHES)
    first: list[Blocks] = [(m, n, *usual[2:]) for m, n in blocks]  # type: ignore[misc]
    times = {choice: time_of(choice) for choice in first}
    for m, n, *_ in sorted(first, key=lambda choice: times[choice])[:BEST]:
        for choice in ((m, n, warps, stages) for warps, stages in launches):
            if choice not in times:
                times[choice] = time_of(choice)
    best: Blocks | None = best_of({choice: [time] for choice, time in times.items()})
    return best


def attention_table(found: Found, keep: Callable[[], None], device: torch.device, tiny: bool) -> None:
    from ..kernels.triton import launch

    measured = launch.MEASURED.setdefault("attention", {})
    for dim in (16,) if tiny else (32, 64, 128, 256):
        for dtype in (torch.float32,) if tiny else (torch.bfloat16, torch.float32):
            for heavy in (False, True):
                key = f"{dim}, {dtype.itemsize}, {heavy}"
                if key in found["attention"]:
                    continue
                print(f"attention, {key}")
                shape = (1, 1, 20, dim) if tiny else (2, 8, 2048, dim)
                qkv = [torch.randn(shape).to(device, dtype).requires_grad_() for _ in range(3)]

                def attend(qkv: list[Tensor], alpha: float = 1.3 if heavy else 1.5) -> Tensor:
                    q, k, v = qkv
                    return parsimax.entmax_attention(q, k, v, alpha=alpha, is_causal=True)

                true = truth(attend, qkv, "both")

                def time_of(
                    choice: Blocks, key: str = key, qkv: list[Tensor] = qkv, true: list[Tensor] = true
                ) -> float:
                    measured[key] = list(choice)
                    return tried(str(choice), attend, qkv, "both", true)

                measured.pop(key, None)
                best = fastest_blocks(launch.attention(dim, dtype.itemsize, heavy), time_of, tiny)
                measured.pop(key, None)
                if best is not None:
                    found["attention"][key] = measured[key] = list(best)
                    keep()


def begun(part: Path) -> Found:
    """What a run that was stopped has found."""
    from ..kernels.triton import table

    empty: Found = {"tile": {}, "scores": {}, "cluster": {}, "attention": {}}
    if not part.exists():
        return empty
    try:
        found = {**empty, **json.loads(part.read_text(encoding="utf-8"))}
        wrong = table.problem(found)
    except (ValueError, TypeError) as error:
        wrong = str(error)
    if wrong is not None:
        raise ValueError(f"{part} was to be gone on with, and is no launch table: {wrong}; remove it to begin anew")
    print(f"goes on with {part}; remove it to begin anew")
    return found


def run(options: Namespace) -> int:
    from ..kernels.triton import PROBLEM, table

    if PROBLEM is not None:
        raise RuntimeError(f"tune: {PROBLEM}")
    tiny = options.device == INTERPRETER
    device = prepared(options.device)
    if not tiny and device.type != "cuda":
        raise ValueError(
            f"tune: launch tables are of the Triton kernels, which run on a GPU, not on {device.type}; give "
            f"--device cuda, or {INTERPRETER} to see that the command works"
        )
    out = Path(options.out) if options.out else table.path()
    if out is None:
        raise ValueError("tune: no GPU is in use, so there is no place for its table; pass --out FILE")
    out = place_for(out)
    of = re.sub(r"\W+", "-", INTERPRETER if tiny else torch.cuda.get_device_name(device)).strip("-").lower()
    part = place_for(out.with_name(f"{out.name}.{of}.part"))
    found = begun(part)

    def keep() -> None:
        beside = part.with_name(f"{part.name}~")
        beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        beside.replace(part)

    rows_table(found, keep, device, tiny)
    attention_table(found, keep, device, tiny)
    keep()
    part.replace(out)
    print(f"written to {out}; `parsimax selftest` checks the kernels as they are launched with it")
    return 0
