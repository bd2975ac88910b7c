"""The tensors of a case."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

import parsimax

from .cases import MAPPED, PADDED, Case

KNOTS, UNITS, COMPONENTS = 100_000, 100, 15  # of the output heads
ROWS = 64  # enough to count non-zeros on


@dataclass(frozen=True)
class Inputs:
    """``leaves`` are what gradients are taken by; ``upstream`` is the gradient of the result, None for a scalar."""

    leaves: dict[str, Tensor]
    alpha: Tensor
    target: Tensor
    upstream: Tensor | None
    causal: bool = False
    mask: Tensor | None = None
    kept: Tensor | None = None  # what dropout leaves: for the truth
    own: dict[str, Tensor] = field(default_factory=dict)  # what only our side has, and takes gradients by
    soft: Tensor | None = None  # target probabilities
    ptr: Tensor | None = None  # where segments begin and end
    dim: int = -1

    def __getitem__(self, name: str) -> Tensor:
        return self.leaves[name]


def make(case: Case) -> Inputs:
    random = torch.Generator().manual_seed(0)
    dtype = getattr(torch, case.dtype)
    scale = case.scale
    if case.nonzeros is not None:
        scale = score_scale(case.nonzeros, case.shape[1 if "attention" in case.ours else -1], case.causal)

    def normal(*shape: int, times: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=random).mul_(times).to(dtype)

    def classes(rows: int, n: int) -> Tensor:
        return torch.randint(n, (rows,), generator=random)

    alpha = torch.tensor(1.4)
    if "attention" in case.ours:
        heads, n, d = case.shape
        names = ("query", "key", "value")
        leaves = {name: normal(1, heads, n, d, times=scale if name == "query" else 1.0) for name in names}
        alpha = torch.linspace(1.4, 1.6, heads).view(heads, 1, 1)
        mask = (torch.arange(n) < PADDED * n).view(1, 1, 1, n) if case.padded else None
        inputs = Inputs(leaves, alpha, torch.empty(0), normal(1, heads, n, d), case.causal, mask)
    elif case.ours.startswith("head_"):
        rows, d, n = case.shape
        leaves = {"hidden": normal(rows, d), "weight": normal(n, d, times=scale / math.sqrt(d))}
        own = head_leaves(case.ours, d, normal)
        inputs = Inputs(leaves, alpha, classes(rows, n), None, own=own)
    elif case.group == "segments":
        segments, heads, longest = case.shape
        sizes = torch.randint(longest // 8, longest + 1, (segments,), generator=random)
        ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
        entries = int(ptr[-1])
        leaves = {"scores": normal(entries, heads, times=scale)}
        inputs = Inputs(leaves, alpha, torch.empty(0), normal(entries, heads), ptr=ptr)
    elif case.group == "structured":
        leaves = {"scores": normal(*case.shape, times=scale)}
        if case.ours.endswith("chain"):
            items, positions, n = case.shape
            leaves["transitions"] = normal(items, positions - 1, n, n, times=scale)
        if case.ours.endswith("ising"):
            items, side = case.shape[0], math.isqrt(case.shape[1])
            leaves["couplings"] = normal(items, 2 * side * (side - 1), times=scale)
        inputs = Inputs(leaves, alpha, torch.empty(case.shape[0]), normal(*case.shape))
    elif case.ours.startswith("linear"):
        rows, d, n = case.shape
        leaves = {"hidden": normal(rows, d, times=scale / math.sqrt(d)), "weight": normal(n, d)}
        inputs = Inputs(leaves, alpha, classes(rows, n), None)
    else:
        rows, n = math.prod(case.shape[:-1]), case.shape[-1]
        loss, soft = case.ours.endswith("_loss"), None
        if case.ours.endswith("soft_loss"):
            soft = torch.softmax(normal(*case.shape, times=scale), -1)
        if "steep" in case.ours:
            alpha = torch.tensor(2.5, dtype=dtype)
        upstream, scores = None if loss else normal(*case.shape), normal(*case.shape, times=scale)
        inputs = Inputs({"scores": scores}, alpha, classes(rows, n), upstream, soft=soft, dim=case.dim)
    if case.gradient:
        for tensor in (*inputs.leaves.values(), inputs.alpha, *inputs.own.values()):
            tensor.requires_grad_()
    return inputs


def padded(inputs: Inputs) -> Inputs:
    """Segments as rows (segments, heads, longest) that -inf fills up."""
    ptr, x, upstream = inputs.ptr, inputs["scores"], inputs.upstream
    assert ptr is not None and upstream is not None, "this side needs a case of segments"
    sizes = ptr[1:] - ptr[:-1]
    row = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    place = row, torch.arange(len(x)) - ptr[row]

    def wide(t: Tensor, fill: float) -> Tensor:
        room = t.new_full((len(sizes), int(sizes.max()), t.shape[1]), fill)
        room[place] = t.detach()
        return room.transpose(1, 2).contiguous()

    scores = wide(x, -math.inf).requires_grad_(x.requires_grad)
    return replace(inputs, leaves={"scores": scores}, upstream=wide(upstream, 0.0))


def head_leaves(ours: str, d: int, normal: Callable[..., Tensor]) -> dict[str, Tensor]:
    """The parameters that a head has beside the weight of the layer."""
    own: dict[str, Tensor] = {}
    if "plif" in ours:
        # Neighbours are alike, to less than the check can see: float32 may put a score on the other side of a knot.
        own["raw_slopes"] = math.log(math.e - 1) + 0.2 * torch.linspace(-1.5, 1.5, KNOTS).sin()
    if "monotonic" in ours:
        net = parsimax.Monotonic(UNITS)
        own |= {name: p.detach() + normal(UNITS, times=0.1) for name, p in net.named_parameters()}
    if "mixture" in ours:
        own["contexts"] = normal(COMPONENTS * d, d, times=1 / math.sqrt(d))
        own["prior"] = normal(COMPONENTS, d, times=1 / math.sqrt(d))
    return own


@functools.cache
def score_scale(nonzeros: int, n: int, causal: bool) -> float:
    """The scale of normal scores at which 1.5-entmax keeps about so many of a row of n, on average over the rows."""
    scores = torch.randn((ROWS, n), generator=torch.Generator().manual_seed(1))
    if causal:
        scores = scores.masked_fill(_later(_some_rows(n), n), -math.inf)
    low, high = 0.01, 100.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        many = _count(scores * middle) > nonzeros
        low, high = (middle, high) if many else (low, middle)
    return low


def nonzeros(case: Case, inputs: Inputs) -> float:
    """How many entries a row really keeps, on average over a sample of rows."""
    if case.ours.startswith("head_"):
        return math.nan
    with torch.no_grad():
        if case.group in ("structured", "segments"):
            return math.nan
        if "query" in inputs.leaves:
            n, d = case.shape[1:]
            rows = _some_rows(n)
            scores = inputs["query"][:, :, rows].float() @ inputs["key"].float().mT / math.sqrt(d)
            hidden = _later(rows, n) if case.causal else torch.zeros(1, dtype=torch.bool)
            scores = scores.masked_fill(hidden if inputs.mask is None else ~inputs.mask, -math.inf)
            name = case.ours.removeprefix("attention_")
            if name in MAPPED:
                weights: Tensor = getattr(parsimax, name)(scores, **MAPPED[name])
                return (weights > 0).sum(-1).float().mean().item()
            return _count(scores, inputs.alpha if case.learned else 1.5)
        if "hidden" in inputs.leaves:
            return _count(inputs["hidden"][:ROWS].float() @ inputs["weight"].float().T)
        rows = inputs["scores"].movedim(case.dim, -1).flatten(0, -2)[:ROWS].float()
        if case.group == "others":
            from .sides import SIDES  # which is built on this

            few = replace(inputs, leaves={"scores": rows})
            return (SIDES[case.ours].call(few) > 0).sum(-1).float().mean().item()
        return _count(rows, inputs.alpha if case.learned else 2.0 if case.ours == "sparsemax" else 1.5)


def _count(scores: Tensor, alpha: float | Tensor = 1.5) -> float:
    return (parsimax.entmax(scores, alpha) > 0).sum(-1).float().mean().item()


def _some_rows(n: int) -> Tensor:
    return torch.linspace(0, n - 1, ROWS).long()


def _later(rows: Tensor, n: int) -> Tensor:
    return torch.arange(n) > rows[:, None]
