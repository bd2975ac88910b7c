"""What a back end cannot do, as reasons: the only place that knows.

The choice, ``parsimax.explain``, ``python -m parsimax.info`` and the error of ``PARSIMAX_KERNELS=cpu`` all read it
here. A caller says what it was asked for (a :class:`Request`) and never whether a kernel takes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import library

EAGER, GRAPH, TRANSFORM = "eager", "graph", "transform"  # who looks at a call: engine/modes.py


class Request(NamedTuple):
    """One call of a function that has kernels, or may have them one day."""

    name: str
    mode: str
    tensors: tuple[Tensor, ...]  # what a kernel would read
    options: Mapping[str, Any]


Reasons = Iterator[str]


def _steep(request: Request) -> Reasons:
    """For α > 2 an entry can appear between two neighbouring doubles; only the formula goes between them."""
    alpha = request.options.get("alpha")
    if alpha is None or request.tensors[0].dtype != torch.float64:
        return
    if isinstance(alpha, Tensor):
        if request.mode != EAGER:
            yield "float64 scores with a tensor alpha, which may be above 2, where only the formula is exact"
        elif bool(alpha.detach().gt(2).any()):
            yield "float64 scores with an alpha above 2, where only the formula is exact"
    elif 2 < alpha < math.inf:
        yield "float64 scores with an alpha above 2, where only the formula is exact"


def _sized_by_values(request: Request) -> Reasons:
    if request.mode != EAGER:
        yield "the size of the result depends on values, which a graph has not: entmax stands for it"


def _threshold(request: Request) -> Reasons:
    if request.options.get("detach_threshold"):
        yield "detach_threshold=True has no kernel"


def _class_indices(request: Request) -> Reasons:
    """What holds for every loss."""
    options = request.options
    if options.get("soft"):
        yield "target probabilities have no kernel, class indices have"
    if not options.get("conjugate", True):
        yield "the loss of this mapping has no kernel"


def _loss(request: Request) -> Reasons:
    yield from _class_indices(request)
    options = request.options
    weight = options.get("weight")
    if options.get("smoothing"):
        if options.get("entropy"):
            yield "label smoothing with the entropy of the target kept has no kernel"
        if weight is not None and weight.requires_grad:
            yield "label smoothing with a class weight that needs a gradient has no kernel"


def _linear(request: Request) -> Reasons:
    yield from _class_indices(request)
    options = request.options
    bias = options.get("bias")
    if options.get("smoothing"):
        if options.get("softcap"):
            yield "label smoothing with softcap has no kernel"
        if bias is not None and request.mode != EAGER:
            yield "label smoothing with a bias, which may be infinite"
        elif bias is not None and not bias.isfinite().all():
            yield "label smoothing with an infinite bias has no kernel"


def _attention(request: Request) -> Reasons:
    if request.options.get("dropout"):
        yield "dropout has no kernel"
    if request.options.get("return_weights"):
        yield "return_weights=True needs the matrix of weights, which the kernel never builds"


@dataclass(frozen=True)
class Backend:
    """A set of kernels for one kind of device."""

    name: str
    title: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    problem: str | None  # why it cannot be used at all
    serves: Mapping[str, tuple[Callable[[Request], Reasons], ...]]  # function -> what its kernel does not take

    def reasons_against(self, request: Request) -> list[str]:
        """Why it cannot run this; empty if it can."""
        reasons = [] if self.problem is None else [self.problem]
        for tensor in request.tensors:
            if tensor.device.type != self.device:
                reasons.append(f"a tensor is on {tensor.device}, the {self.title} run on {self.device}")
            if tensor.dtype not in self.dtypes and tensor.is_floating_point():
                reasons.append(f"a tensor is {tensor.dtype}, the {self.title} take {', '.join(map(str, self.dtypes))}")
        if request.mode == TRANSFORM:
            reasons.append("torch.func, forward mode or a tensor subclass looks at the call: only the formula can")
        if request.name not in self.serves:
            return [*reasons, f"there is no {self.title.removesuffix('s')} for {request.name}"]
        for condition in self.serves[request.name]:
            reasons.extend(condition(request))
        return reasons


CPU = Backend(
    "cpu",
    "C++ kernels",
    "cpu",
    (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    library.PROBLEM,
    {
        "softmax": (),
        "sparsemax": (),
        "entmax15": (),
        "entmax": (_steep,),
        "support": (_steep, _sized_by_values),
        "topk_sparsemax": (),
        "rsoftmax": (_threshold,),
        "budget_sparsemax": (),
        "sparsemax_loss": (_loss,),
        "entmax15_loss": (_loss,),
        "entmax_loss": (_loss,),
        "fenchel_young_loss": (_loss,),
        "linear_entmax_loss": (_linear,),
        "entmax_attention": (_attention,),
    },
)
BACKENDS = {backend.name: backend for backend in (CPU,)}
