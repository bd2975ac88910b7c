"""``parsimax selftest``: every function with kernels on a device, against the formula in float64 on the CPU.

Random rows with NaN, infinities and rows without anything allowed; leaders over plateaus around the threshold; sums and
exact zeros; losses, the fused layer and attention with their options; gradients; two runs that must have the same bits.
One report to send back, whatever it says, with the back end that ran each line.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import parsimax

INTERPRETER = "interpreter"  # the Triton kernels on the CPU, in Triton's interpreter
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Public:
    """A public function with what it is given beside the inputs, which come first, or by ``names``.

    ``after`` makes one tensor of the answer.
    """

    function: str
    options: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    after: Call = lambda out: out

    def given(self, inputs: tuple[Tensor, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        there = {
            name: value.to(inputs[0].device) if isinstance(value, Tensor) else value
            for name, value in self.options.items()
        }
        return (() if self.names else inputs), {**dict(zip(self.names, inputs, strict=False)), **there}

    def __call__(self, *inputs: Tensor) -> Tensor:
        args, options = self.given(inputs)
        return self.after(getattr(parsimax, self.function)(*args, **options))

    def explained(self, *inputs: Tensor) -> str:
        args, options = self.given(inputs)
        return parsimax.explain(self.function, *args, **options).partition(": ")[2].partition("\n")[0].split(" ")[0]


@dataclass(frozen=True)
class Check:
    """A call on tensors that may be differentiated by; ``tolerance`` is relative to 1 + the largest true number.

    ``sums``: rows that must sum to what they should; ``zeros``: what is exactly 0 in float64 must be exactly 0, but for
    one entry a row, which may lie at the threshold.
    """

    name: str
    call: Call
    inputs: tuple[Tensor, ...]
    dtype: torch.dtype
    tolerance: float = 1e-5
    sums: bool = False
    zeros: bool = False


@dataclass(frozen=True)
class Result:
    name: str
    error: float  # the largest, in units of the tolerance
    repeats: bool
    seconds: float
    problem: str = ""
    back_end: str = ""  # by which it ran, as explain says

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
            raise ValueError(
                f"--device {device} cannot be used here: {why}; a GPU, its driver and a torch built for it are needed, "
                f"or --device {INTERPRETER}, which needs none"
            ) from None
    os.environ["TRITON_INTERPRET"] = "1"
    from ..kernels import backends, triton  # with the first the C++ kernels are there, whose place these take

    if backends.TRITON.problem is not None:
        raise RuntimeError(f"--device {INTERPRETER}: {backends.TRITON.problem}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel", UserWarning)
        triton.register("CPU")
    return torch.device("cpu")


def place_for(file: str | Path) -> Path:
    """Where a report will be written: minutes of work come first, so that one that cannot be is refused before."""
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'not writable'}; give another file")
    return path


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


MAPPINGS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sparsemax": {},
    "entmax15": {},
    "entmax": {"alpha": 1.3},
    "topk_sparsemax": {"k": 5},
    "rsoftmax": {"rate": 0.4},
    "budget_sparsemax": {"budget": 2.5},
    "tsoftmax": {"t": 1.5},
    "sigsoftmax": {},
    "sparsegen": {"lam": 0.2},
    "sparsehourglass": {},
    "normmax": {"alpha": 1.7},
}


def mapping_checks(rows: int, lengths: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Check]:
    for n in lengths:
        for name, options in MAPPINGS.items():
            call, zeros = Public(name, options), name not in ("softmax", "sigsoftmax")
            ties = name != "rsoftmax"  # of tied scores any may be the one at the quantile, and have its gradient
            for dtype in dtypes:
                x = hostile(rows, n, n, ties)
                yield Check(f"{name}, {n}, {dtype}", call, (x,), dtype, 2e-5, sums=True, zeros=zeros)
        alpha = torch.linspace(1, 2, rows)[:, None]
        x = torch.randn(rows, n, generator=torch.Generator().manual_seed(n))
        yield Check(f"entmax, learned, {n}", Public("entmax"), (x, alpha), torch.float32, 1e-4, sums=True)
        yield from plateau_checks(rows, n)
        dense = Public("support", {"alpha": 1.5}, after=lambda found, n=n: _dense(found, n))
        x = hostile(rows, n, n + 1, ties=False)[4:]
        yield Check(f"support, {n}", dense, (x,), torch.float32, 2e-5, sums=True, zeros=True)


def _dense(found: Any, n: int) -> Tensor:
    p: Tensor = found.probabilities
    return p.new_zeros(*p.shape[:-1], n).scatter_add(-1, found.indices, p)


def plateau_checks(rows: int, n: int) -> Iterator[Check]:
    """Of values alone: a gradient jumps where a score crosses the threshold."""
    half, two = plateaus(rows, n, 1.5, n), plateaus(rows, n, 2.0, n)
    inputs = dict.fromkeys(MAPPINGS, half) | dict.fromkeys(("sparsemax", "sparsehourglass", "topk_sparsemax"), two)
    inputs |= {"sparsegen": 0.8 * two, "normmax": half * (1 - 1 / 1.7), "budget_sparsemax": two}
    for name, x in inputs.items():
        options = {"budget": 1.0} if name == "budget_sparsemax" else MAPPINGS[name]
        # Which of many equal scores are among the k largest is not said.
        after: Call = (lambda p: p.detach().sort(-1).values) if name == "topk_sparsemax" else Tensor.detach
        call = Public(name, options, after=after)
        yield Check(f"{name} over plateaus, {n}", call, (x,), torch.float32, 2e-6, sums=True)
    for alpha in (1.1, 1.9, 2.0):
        call = Public("entmax", {"alpha": alpha}, after=Tensor.detach)
        x = plateaus(rows, n, alpha, n)
        yield Check(f"entmax {alpha} over plateaus, {n}", call, (x,), torch.float32, 2e-6, sums=True)


def loss_checks(rows: int, lengths: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Check]:
    for n in lengths:
        draw = torch.Generator().manual_seed(n)
        target = torch.randint(n, (rows,), generator=draw)
        target[0] = -100
        x, alpha = torch.randn(rows, n, generator=draw) * 2, torch.linspace(1.1, 2, rows)[:, None]
        hidden, weight = (torch.randn(size, 16, generator=draw) for size in (rows, n))
        soft, classes = torch.rand(rows, n, generator=draw), torch.rand(n, generator=draw)
        soft /= soft.sum(-1, keepdim=True)
        common: dict[str, Any] = {"target": target, "reduction": "none"}

        def loss(own: dict[str, Any] = common, **more: Any) -> Public:
            return Public("entmax_loss", {**own, **more}, ("scores", "alpha"))

        for dtype in dtypes:
            yield Check(f"entmax_loss, {n}, {dtype}", loss(), (x,), dtype)
        yield Check(f"entmax_loss, learned, {n}", loss(), (x, alpha), torch.float32, 1e-4)
        yield Check(f"entmax_loss, smoothed, {n}", loss(label_smoothing=0.1), (x,), torch.float32)
        yield Check(f"entmax_loss, class weights, {n}", loss(weight=classes), (x,), torch.float32)
        both = loss(weight=classes, label_smoothing=0.1)
        yield Check(f"entmax_loss, class weights, smoothed, {n}", both, (x,), torch.float32)
        yield Check(f"entmax_loss, soft targets, {n}", loss(target=soft), (x,), torch.float32)
        for words, given in (("", target), (", soft targets", soft)):
            layer = Public("linear_entmax_loss", {**common, "target": given}, ("hidden", "weight"))
            yield Check(f"linear_entmax_loss{words}, {n}", layer, (hidden, weight), torch.float32)


def attention_checks(length: int, sizes: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Iterator[Check]:
    for size in sizes:
        draw = torch.Generator().manual_seed(size)
        q, k, v = (torch.randn(1, 2, length + extra, size, generator=draw) for extra in (0, 13, 13))
        bias = torch.randn(1, 2, length, length + 13, generator=draw)
        allowed = bias > 0
        allowed[..., 3, :] = False  # a query that may attend to nothing
        alpha = torch.tensor([1.2, 1.9]).view(2, 1, 1)
        many = torch.randn(1, 4, length, size, generator=draw)

        def attend(*more: str, **options: Any) -> Public:
            return Public("entmax_attention", options, ("query", "key", "value", *more))

        for dtype in dtypes:
            yield Check(f"entmax_attention, causal, {size}, {dtype}", attend(is_causal=True), (q, k, v), dtype)
        single = torch.float32
        yield Check(f"entmax_attention, α per head, {size}", attend("alpha"), (q, k, v, alpha), single, 1e-4)
        yield Check(f"entmax_attention, added mask, {size}", attend("attn_mask", alpha=2.0), (q, k, v, bias), single)
        yield Check(f"entmax_attention, boolean mask, {size}", attend(attn_mask=allowed), (q, k, v), single)
        groups = attend(enable_gqa=True, is_causal=True)
        yield Check(f"entmax_attention, groups of heads, {size}", groups, (many, k, v), single)
        yield Check(f"entmax_attention, one query and a cache, {size}", attend(), (q[..., :1, :], k, v), single)
        few = min(48, size)  # keys, as the values that show the weights are the unit matrix
        yield Check(f"entmax_attention, dropout, {size}", Dropped(), (2 * q, k[..., :few, :]), single)


@dataclass(frozen=True)
class Dropped:
    """Weights with half of them dropped, and those instead from a call that drops nothing: then it is all weights.

    Which are dropped is not the formula's choice, so that they cannot be compared as they are.
    """

    kind: ClassVar[Public] = Public("entmax_attention", {"dropout_p": 0.5})

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        unit = torch.eye(k.shape[-2]).to(q).expand(*k.shape[:-1], k.shape[-2])
        torch.manual_seed(7)
        some, whole = self.kind(q, k, unit) / 2, parsimax.entmax_attention(q, k, unit)
        share = ((some != 0).sum() / (whole != 0).sum()).item()
        return torch.where(some != 0, some, whole) * (1 if 0.3 < share < 0.7 else math.nan)

    def explained(self, q: Tensor, k: Tensor) -> str:
        return self.kind.explained(q, k, k)


def checks(tiny: bool) -> Iterator[Check]:
    """All of them; a few small ones for the interpreter."""
    lengths = (33,) if tiny else (7, 64, 1000, 4097, 32000, 65_000, 100_001)
    dtypes = (torch.float32,) if tiny else (*ROUNDING,)
    yield from mapping_checks(6 if tiny else 24, lengths, dtypes)
    yield from loss_checks(4 if tiny else 24, lengths, dtypes)
    yield from attention_checks(20 if tiny else 500, (16,) if tiny else (32, 64, 80, 128, 256), dtypes)


def outputs(check: Check, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """The result, and the gradients by all inputs where there are any; on the CPU, so that what fails on the way of
    the device, which runs behind, fails here."""
    inputs = [t.to(check.dtype).to(device, dtype).requires_grad_() for t in check.inputs]
    out = check.call(*inputs)
    if not out.requires_grad:
        return [out.cpu()]
    g = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(check.dtype).to(out)
    return [t.cpu() for t in (out.detach(), *torch.autograd.grad(out, inputs, g))]


def contract(check: Check, p: Tensor, exact: Tensor) -> str:
    """What is wrong with rows of probabilities, if anything is."""
    whole = ~exact.isnan().any(-1)
    p, exact = p[whole], exact[whole]
    allowed = 2e-6 + ROUNDING[check.dtype] + (6e-8 * p.shape[-1] if check.dtype == torch.float16 else 0)
    off = (p.sum(-1) - exact.sum(-1)).abs().amax().item() if p.numel() else 0.0
    if check.sums and not off <= allowed * (1 + exact.sum(-1).abs().amax().item()):
        return f"a sum is off by {off:.1e}"
    if check.sums and bool((p < 0).any()):
        return f"a probability is {p.min().item():.1e}"
    extra = ((exact == 0) & (p != 0)).sum(-1)
    if check.zeros and bool((extra > 1).any()):
        return f"{extra.max().item()} entries of a row are not exactly 0"
    return ""


def result_of(check: Check, device: torch.device) -> Result:
    began = time.perf_counter()
    explained = getattr(check.call, "explained", None)
    back_end = ""
    try:
        if explained is not None:
            back_end = explained(*(t.to(device, check.dtype).requires_grad_() for t in check.inputs))
        ours, again = outputs(check, device, check.dtype), outputs(check, device, check.dtype)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return Result(check.name, math.inf, False, time.perf_counter() - began, said, back_end)
    with parsimax.use_kernels("torch"):
        true = outputs(check, torch.device("cpu"), torch.float64)
    worst, repeats = 0.0, True
    for one, other, exact in zip(ours, again, true, strict=True):
        one, other = one.double(), other.double()
        repeats &= torch.equal(one.nan_to_num(), other.nan_to_num())
        broken = exact.isnan()
        largest = exact[~broken].abs().amax().item() if bool((~broken).any()) else 0.0
        allowed = (check.tolerance + 4 * ROUNDING[check.dtype]) * (1 + largest)
        off = (one - exact).abs()[~broken]
        worst = max(worst, (off.nan_to_num(math.inf).amax() / allowed).item() if off.numel() else 0.0)
        worst = max(worst, 0.0 if bool(one[broken].isnan().all()) else math.inf)
    said = contract(check, ours[0].double(), true[0]) if check.sums or check.zeros else ""
    return Result(check.name, worst, repeats, time.perf_counter() - began, said, back_end)


def run(options: Namespace) -> int:
    """What the command does: 0 if all passed."""
    device = prepared(options.device)
    out = place_for(options.report) if options.report else None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else options.device
    facts = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    facts["parsimax"] = parsimax.__version__
    print(f"parsimax {parsimax.__version__} on {name}, torch {torch.__version__}")
    results = []
    for check in checks(options.device == INTERPRETER or options.tiny):
        found = result_of(check, device)
        if options.device == INTERPRETER and found.back_end == "cpu":
            found = replace(found, back_end="triton")  # whose place on the CPU these have taken
        results.append(found)
        said = "passed" if found.passed else found.problem or ("bits differ" if not found.repeats else "WRONG")
        print(f"  {found.name:52} {found.back_end:7} {found.error:8.2g} of what is allowed   {said}", flush=True)
    failed = [r for r in results if not r.passed]
    print(f"{len(results) - len(failed)} of {len(results)} passed")
    facts["triton"] = getattr(sys.modules.get("triton"), "__version__", "not used")
    if out is not None:
        report = {**facts, "results": [asdict(r) for r in results]}
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0
