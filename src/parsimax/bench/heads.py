"""The output heads of the table: modules around the tensors of a case, and the same written out."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import parsimax

from .inputs import COMPONENTS, KNOTS, UNITS, Inputs

KINDS = ("softmax", "sigsoftmax", "plif", "monotonic", "mixture", "mixture_plif")
BOUND = 20.0


@functools.lru_cache(2)
def made(kind: str, d: int, classes: int) -> parsimax.Head:
    with torch.device("meta"):
        match kind:
            case "softmax":
                return parsimax.LinearHead(d, classes, bias=False)
            case "sigsoftmax":
                return parsimax.SigSoftmaxHead(d, classes, bias=False)
            case "plif":
                return parsimax.PLIFHead(d, classes, knots=KNOTS, bound=BOUND, bias=False)
            case "monotonic":
                return parsimax.MonotonicHead(d, classes, units=UNITS, bias=False)
        function = parsimax.PLIF(KNOTS, BOUND) if kind == "mixture_plif" else None
        return parsimax.MixtureOfSoftmaxes(d, classes, COMPONENTS, function=function, bias=False)


def loss(kind: str, i: Inputs) -> Tensor:
    """By the head, whose parameters are the tensors of the case."""
    weight = i["weight"]
    names = {"raw_slopes": "function.raw_slopes", "raw_scale": "function.raw_scale", "shift": "function.shift"}
    names |= {"raw_height": "function.raw_height", "contexts": "contexts.weight", "prior": "prior.weight"}
    values = {"weight": weight, **{names[k]: v for k, v in i.own.items()}}
    if "contexts" in i.own:
        values["contexts.bias"] = weight.new_zeros(i.own["contexts"].shape[0])
    head = _Loss(made(kind, weight.shape[1], weight.shape[0]))
    out: Tensor = functional_call(head, {f"head.{k}": v for k, v in values.items()}, (i["hidden"], i.target))
    return out


class _Loss(torch.nn.Module):
    def __init__(self, head: parsimax.Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.head.loss(hidden, target)


def formula(kind: str, i: Inputs) -> Tensor:
    """Written out, with the matrix of all logits; of a mixture one component at a time."""
    if "mixture" not in kind:
        return F.cross_entropy(_bent(kind, F.linear(i["hidden"], i["weight"]), i), i.target)
    hidden, d = i["hidden"], i["weight"].shape[1]
    prior = F.log_softmax(hidden @ i.own["prior"].T, -1)
    total: Tensor | None = None
    for k, part in enumerate(i.own["contexts"].split(d)):
        logits = _bent(kind, F.linear(torch.tanh(F.linear(hidden, part)), i["weight"]), i)
        one = prior[:, k] - F.cross_entropy(logits, i.target, reduction="none")
        total = one if total is None else torch.logaddexp(total, one)
    assert total is not None
    return -total.mean()


def _bent(kind: str, x: Tensor, i: Inputs) -> Tensor:
    own = i.own
    if kind == "sigsoftmax":
        return x + F.logsigmoid(x)
    if "plif" in kind:
        slopes = F.softplus(own["raw_slopes"])
        width = 2 * BOUND / len(slopes)
        at = ((x.detach() + BOUND) / width).floor().clamp(0, len(slopes) - 1).long()
        starts = (slopes.cumsum(0) - slopes) * width
        return starts.take(at) + (x - (at * width - BOUND)) * slopes.take(at)
    if kind == "monotonic":
        return parsimax.monotonic(x, own["raw_scale"], own["shift"], own["raw_height"])
    return x
