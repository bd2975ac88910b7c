"""``parsimax selftest``: every function with kernels on a device, against the formula in float64 on the CPU.

Random rows with NaN, infinities and rows without anything allowed; leaders over plateaus around the threshold; losses,
the fused layer and attention with their options; gradients; two runs that must have the same bits. One report to send
back, whatever it says.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import parsimax

INTERPRETER = "interpreter"  # the Triton kernels on the CPU, in Triton's interpreter
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Check:
    """A call on tensors that may be differentiated by; ``tolerance`` is relative to 1 + the largest true number."""

    name: str
    call: Call
    inputs: tuple[Tensor, ...]
    dtype: torch.dtype
    tolerance: float = 1e-5


@dataclass(frozen=True)
class Result:
    name: str
    error: float  # the largest, in units of the tolerance
    repeats: bool
    seconds: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        return self.error <= 1 and self.repeats and not self.problem


def prepared(device: str) -> torch.device:
    """The device to put tensors on; the interpreter has to be chosen before Triton is imported."""
    if device != INTERPRETER:
        try:
            return torch.empty(1, device=device).device
        except (RuntimeError, AssertionError) as error:  # the latter where torch is built without CUDA
            why = str(error).partition("\n")[0].partition(". ")[0]
            raise ValueError(f"--device {device} cannot be used here: {why}; give cpu, cuda or {INTERPRETER}") from None
    os.environ["TRITON_INTERPRET"] = "1"
    from ..kernels import backends, triton  # with the first the C++ kernels are there, whose place these take

    if backends.TRITON.problem is not None:
        raise RuntimeError(f"--device {INTERPRETER}: {backends.TRITON.problem}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel", UserWarning)
        triton.register("CPU")
    return torch.device("cpu")


def hostile(rows: int, n: int, seed: int, ties: bool = True) -> Tensor:
    """Random rows; some with a forbidden entry, a NaN, +inf, nothing allowed, ties, far from 0."""
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(seed)) * 2
    for row, change in enumerate((-math.inf, math.nan, math.inf)):
        x[row % rows, n // 2] = change
    x[3 % rows] = -math.inf
    if ties:
        x[4 % rows], x[5 % rows] = x[4 % rows].round(), x[5 % rows] + 300
    return x


def plateaus(rows: int, n: int, alpha: float, seed: int) -> Tensor:
    """Leaders over a plateau that is near to the threshold which they alone would have."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.empty(rows, n)
    for row in range(rows):
        leaders = (1, 2, 5)[row % 3]
        away = 10.0 ** -int(torch.randint(1, 7, (), generator=draw)) * (1 if row % 2 else -1)
        x[row] = -(leaders ** (1 - alpha)) / (alpha - 1) * (1 + away)
        x[row, torch.randperm(n, generator=draw)[:leaders]] = 0
    return x


def mapping_checks(rows: int, lengths: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Check]:
    calls: dict[str, Call] = {
        "softmax": parsimax.softmax,
        "sparsemax": parsimax.sparsemax,
        "entmax15": parsimax.entmax15,
        "entmax 1.3": lambda x: parsimax.entmax(x, 1.3),
        "topk_sparsemax": lambda x: parsimax.topk_sparsemax(x, 5),
        "rsoftmax": lambda x: parsimax.rsoftmax(x, 0.4),
        "budget_sparsemax": lambda x: parsimax.budget_sparsemax(x, 2.5),
        "tsoftmax": lambda x: parsimax.tsoftmax(x, 1.5),
        "sigsoftmax": parsimax.sigsoftmax,
        "sparsegen": lambda x: parsimax.sparsegen(x, 0.2),
        "sparsehourglass": parsimax.sparsehourglass,
        "normmax": lambda x: parsimax.normmax(x, 1.7),
    }
    for n in lengths:
        for name, call in calls.items():
            for dtype in dtypes:
                ties = name != "rsoftmax"  # of tied scores any may be the one at the quantile, and have its gradient
                yield Check(f"{name}, {n}, {dtype}", call, (hostile(rows, n, n, ties),), dtype, 2e-5)
        alpha = torch.linspace(1, 2, rows)[:, None]
        x = torch.randn(rows, n, generator=torch.Generator().manual_seed(n))
        yield Check(f"entmax, learned, {n}", parsimax.entmax, (x, alpha), torch.float32, 1e-4)
        for a in (1.1, 1.5, 1.9, 2.0):
            yield Check(f"entmax {a} over plateaus, {n}", _steady(a), (plateaus(rows, n, a, n),), torch.float32, 2e-6)


def _steady(alpha: float) -> Call:
    """Without a gradient, which jumps where a score crosses the threshold."""
    return lambda x: parsimax.entmax(x.detach(), alpha)


def loss_checks(rows: int, lengths: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Check]:
    for n in lengths:
        draw = torch.Generator().manual_seed(n)
        target = torch.randint(n, (rows,), generator=draw)
        target[0] = -100
        x, alpha = torch.randn(rows, n, generator=draw) * 2, torch.linspace(1.1, 2, rows)[:, None]
        hidden, weight = (torch.randn(size, 16, generator=draw) for size in (rows, n))

        def loss(x: Tensor, alpha: float | Tensor = 1.5, t: Tensor = target, **options: Any) -> Tensor:
            return parsimax.entmax_loss(x, t.to(x.device), alpha, reduction="none", **options)

        def layer(h: Tensor, w: Tensor, t: Tensor = target) -> Tensor:
            return parsimax.linear_entmax_loss(h, w, t.to(h.device), 1.5, reduction="none")

        for dtype in dtypes:
            yield Check(f"entmax_loss, {n}, {dtype}", loss, (x,), dtype)
        yield Check(f"entmax_loss, learned, {n}", loss, (x, alpha), torch.float32, 1e-4)
        smoothed = lambda x, own=loss: own(x, label_smoothing=0.1)  # noqa: E731
        yield Check(f"entmax_loss, smoothed, {n}", smoothed, (x,), torch.float32)
        yield Check(f"linear_entmax_loss, {n}", layer, (hidden, weight), torch.float32)


def attention_checks(length: int, sizes: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Check]:
    for size in sizes:
        draw = torch.Generator().manual_seed(size)
        q, k, v = (torch.randn(1, 2, length + extra, size, generator=draw) for extra in (0, 13, 13))
        bias = torch.randn(1, 2, length, length + 13, generator=draw)
        alpha = torch.tensor([1.2, 1.9]).view(2, 1, 1)

        def attend(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
            return parsimax.entmax_attention(q, k, v, alpha=alpha)

        def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            return parsimax.entmax_attention(q, k, v, alpha=2.0, attn_mask=bias)

        for dtype in dtypes:
            causal = lambda q, k, v: parsimax.entmax_attention(q, k, v, is_causal=True)  # noqa: E731
            yield Check(f"entmax_attention, causal, {size}, {dtype}", causal, (q, k, v), dtype)
        yield Check(f"entmax_attention, α per head, {size}", attend, (q, k, v, alpha), torch.float32, 1e-4)
        yield Check(f"entmax_attention, added mask, {size}", biased, (q, k, v, bias), torch.float32)


def checks(tiny: bool) -> Iterator[Check]:
    """All of them; a few small ones for the interpreter."""
    lengths = (33,) if tiny else (7, 64, 1000, 4097, 32000, 100_001)
    dtypes = (torch.float32,) if tiny else (*ROUNDING,)
    yield from mapping_checks(6 if tiny else 24, lengths, dtypes)
    yield from loss_checks(4 if tiny else 24, lengths, dtypes)
    yield from attention_checks(20 if tiny else 500, (16,) if tiny else (32, 64, 80, 128, 256), dtypes)


def outputs(check: Check, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """The result, and the gradients by all inputs where there are any."""
    inputs = [t.to(check.dtype).to(device, dtype).requires_grad_() for t in check.inputs]
    out = check.call(*inputs)
    if not out.requires_grad:
        return [out]
    g = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(check.dtype).to(out)
    return [out.detach(), *torch.autograd.grad(out, inputs, g)]


def result_of(check: Check, device: torch.device) -> Result:
    began = time.perf_counter()
    try:
        ours, again = outputs(check, device, check.dtype), outputs(check, device, check.dtype)
    except Exception as error:
        return Result(check.name, math.inf, False, time.perf_counter() - began, f"{type(error).__name__}: {error}")
    with parsimax.use_kernels("torch"):
        true = outputs(check, torch.device("cpu"), torch.float64)
    worst, repeats = 0.0, True
    for one, other, exact in zip(ours, again, true, strict=True):
        one, other = one.cpu().double(), other.cpu().double()
        repeats &= torch.equal(one.nan_to_num(), other.nan_to_num())
        broken = exact.isnan()
        allowed = (check.tolerance + 4 * ROUNDING[check.dtype]) * (1 + exact[~broken].abs().amax().item())
        off = (one - exact).abs()[~broken]
        worst = max(worst, (off.nan_to_num(math.inf).amax() / allowed).item() if off.numel() else 0.0)
        worst = max(worst, 0.0 if bool(one[broken].isnan().all()) else math.inf)
    return Result(check.name, worst, repeats, time.perf_counter() - began)


def run(options: Namespace) -> int:
    """What the command does: 0 if all passed."""
    device = prepared(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else options.device
    facts = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    facts["parsimax"] = parsimax.__version__
    print(f"parsimax {parsimax.__version__} on {name}, torch {torch.__version__}")
    results = []
    for check in checks(options.device == INTERPRETER or options.tiny):
        found = result_of(check, device)
        results.append(found)
        said = "passed" if found.passed else found.problem or ("bits differ" if not found.repeats else "WRONG")
        print(f"  {found.name:48} {found.error:8.2g} of what is allowed   {said}", flush=True)
    failed = [r for r in results if not r.passed]
    print(f"{len(results) - len(failed)} of {len(results)} passed")
    facts["triton"] = getattr(sys.modules.get("triton"), "__version__", "not used")
    if options.report:
        report = {**facts, "results": [asdict(r) for r in results]}
        Path(options.report).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0
