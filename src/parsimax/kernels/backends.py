"""What a back end cannot do, as reasons: the only place that knows.

The choice, ``parsimax.explain``, ``python -m parsimax.info`` and the error of ``PARSIMAX_KERNELS=cpu`` all read it
here. A caller says what it was asked for (a :class:`Request`) and never whether a kernel takes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import library, triton

EAGER, GRAPH, TRANSFORM = "eager", "graph", "transform"  # who looks at a call: engine/modes.py


class Request(NamedTuple):
    """One call of a function that has kernels, or may have them one day."""

    name: str
    mode: str
    tensors: tuple[Tensor, ...]  # what a kernel would read
    options: Mapping[str, Any]


Condition = Callable[[Request], str | None]  # the reason why a kernel does not take this, if it does not


def _far_norm(request: Request, least: float = 1.0) -> str | None:
    """Powers of the distance from the threshold: above 2 so steep that the rounding of p hides that distance from the
    backward, towards 1 so huge that float64 takes the formula there too.
    """
    alpha = request.options.get("alpha")
    if alpha is None:
        return None
    double = request.tensors[0].dtype == torch.float64
    least = 1.1 if double else least
    span = (f"[{least}, 2]" if least > 1 else "(1, 2]") + (", in float64," if double else "")
    if isinstance(alpha, Tensor) and request.mode != EAGER:
        return f"a tensor alpha, which may be outside {span} where only the formula is exact"
    if isinstance(alpha, Tensor):
        given = alpha.detach()
        far = bool((((given > 1) & (given < least)) | ((given > 2) & (given < math.inf))).any())
    else:
        far = 1 < alpha < least or 2 < alpha < math.inf
    return f"an alpha outside {span} where only the formula is exact" if far else None


def _far_norm_in_float64(request: Request) -> str | None:
    """Nearer to 1 than that, float64 inside the kernel would not prove its answer for every row."""
    return _far_norm(request, 1.001)


def _sized_by_values(request: Request) -> str | None:
    values = request.mode == EAGER
    return None if values else "a size depends on values, which a graph has not: entmax stands for it"


def _detached(request: Request) -> str | None:
    return "detach_threshold=True has no kernel" if request.options.get("detach_threshold") else None


def _soft(request: Request) -> str | None:
    """Target probabilities go through the kernel as they are, in the dtype of the scores."""
    options = request.options
    if not options.get("soft"):
        return None
    if options.get("entropy"):
        return "target probabilities with their entropy kept have no kernel"
    target, weight, x = options.get("target"), options.get("weight"), request.tensors[0]
    if target is None:
        return "target probabilities have no kernel, class indices have"
    if target.requires_grad or (weight is not None and weight.requires_grad):
        return "target probabilities or class weights that need a gradient have no kernel"
    exact = x.dtype in (torch.float32, torch.float64) or (weight is None and not options.get("smoothing"))
    if not exact or torch.promote_types(target.dtype, x.dtype) != x.dtype:
        return f"target probabilities of {target.dtype} would be rounded to {x.dtype}"
    return None


def _other_loss(request: Request) -> str | None:
    return None if request.options.get("conjugate", True) else "the loss of this mapping has no kernel"


def _smoothed(request: Request) -> str | None:
    options = request.options
    weight = options.get("weight")
    if not options.get("smoothing"):
        return None
    if options.get("entropy"):
        return "label smoothing with the entropy of the target kept has no kernel"
    learned = weight is not None and weight.requires_grad
    return "label smoothing with a class weight that needs a gradient has no kernel" if learned else None


def _smoothed_layer(request: Request) -> str | None:
    options = request.options
    bias = options.get("bias")
    if not options.get("smoothing"):
        return None
    if options.get("softcap"):
        return "label smoothing with softcap has no kernel"
    if bias is not None and request.mode != EAGER:
        return "label smoothing with a bias, which may be infinite"
    infinite = bias is not None and not bias.isfinite().all()
    return "label smoothing with an infinite bias has no kernel" if infinite else None


def _weights(request: Request) -> str | None:
    wanted = request.options.get("return_weights")
    return "return_weights=True needs the matrix of weights, which the kernel never builds" if wanted else None


def _only_float32_and_64(request: Request) -> str | None:
    half = [t.dtype for t in request.tensors if t.dtype in (torch.bfloat16, torch.float16)]
    return f"{half[0]} has no kernel, float32 and float64 have" if half else None


def _one_dtype(request: Request) -> str | None:
    kinds = {t.dtype for t in request.tensors if t.is_floating_point()}
    return f"the tensors are {' and '.join(sorted(map(str, kinds)))}; the kernel takes one" if len(kinds) > 1 else None


def _tabled(request: Request) -> str | None:
    """A monotonic net is had from a table where that is worth it, and in float32, which hides what it is off by."""
    count, size = request.options.get("pieces"), request.options.get("size", 0)
    if request.mode == EAGER and any(t.dtype == torch.float64 for t in request.tensors):
        return "float64 is computed sigmoid by sigmoid"
    if request.mode == EAGER and count is None:
        return "so steep a net, or numbers so large, would take too large a table"
    few = request.mode == EAGER and count is not None and size < 4 * count
    return f"{size} numbers are too few for a table of {count} pieces" if few else None


def _traced(request: Request) -> str | None:
    eager = request.mode == EAGER
    return None if eager else "the kernel makes gradients in the forward pass, which a graph does by itself"


def _other_head(request: Request) -> str | None:
    return None if request.options.get("head", True) else "this head has no kernel for its loss"


def _single(request: Request) -> str | None:
    single = request.options.get("single")
    return 'reduction="none" has no kernel, as its gradients are not known in the forward pass' if single else None


def _smoothed_head(request: Request) -> str | None:
    return "label smoothing has no kernel here" if request.options.get("smoothing") else None


def _infinite_bias(request: Request) -> str | None:
    bias = request.options.get("bias")
    infinite = bias is not None and request.mode == EAGER and not bias.detach().isfinite().all()
    return "an infinite bias has no kernel" if infinite else None


def _autocast(request: Request) -> str | None:
    return (
        "under autocast the layer is in a lower precision, which has no kernel"
        if request.options.get("autocast")
        else None
    )


def _custom(request: Request) -> str | None:
    return "a structure given by an oracle in Python has no kernel" if request.options.get("custom") else None


def _soft_layer(request: Request) -> str | None:
    """Target probabilities of the fused layer, the third tensor, are read in float32."""
    if not request.options.get("soft"):
        return None
    target = request.tensors[2]
    if target.requires_grad:
        return "target probabilities that need a gradient have no kernel"
    wide = target.dtype == torch.float64
    return "target probabilities of torch.float64 would be rounded to torch.float32" if wide else None


def _double(request: Request) -> str | None:
    """Of what is mapped; a parameter may be float64."""
    return "float64 is computed by the formula, in float64" if request.tensors[0].dtype == torch.float64 else None


def _wide(request: Request) -> str | None:
    query, _, value, *_ = request.tensors
    if max(query.shape[-1], value.shape[-1]) <= triton.WIDEST or query.dtype == torch.float64:
        return None
    return f"heads of more than {triton.WIDEST} numbers have no kernel"


@dataclass(frozen=True)
class Backend:
    """A set of kernels for one kind of device."""

    name: str
    title: str
    device: str
    dtypes: tuple[torch.dtype, ...]
    problem: str | None  # why it cannot be used at all
    serves: Mapping[str, tuple[Condition, ...]]  # function -> what its kernel does not take

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
            return [*dict.fromkeys(reasons), f"there is no {self.title.removesuffix('s')} for {request.name}"]
        for condition in self.serves[request.name]:
            reason = condition(request)
            if reason is not None:
                reasons.append(reason)
        return list(dict.fromkeys(reasons))  # one of several tensors is as good as another


_LOSS = (_soft, _other_loss, _smoothed)
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
        "entmax": (),
        "support": (_sized_by_values,),
        "segment_softmax": (_sized_by_values,),
        "segment_sparsemax": (_sized_by_values,),
        "segment_entmax15": (_sized_by_values,),
        "segment_entmax": (_sized_by_values,),
        "topk_sparsemax": (),
        "rsoftmax": (_detached,),
        "tsoftmax": (),
        "sigsoftmax": (),
        "sparsegen": (),
        "sparsehourglass": (),
        "normmax": (_far_norm,),
        "budget_sparsemax": (),
        "sparsemax_loss": _LOSS,
        "entmax15_loss": _LOSS,
        "entmax_loss": _LOSS,
        "fenchel_young_loss": _LOSS,
        "linear_entmax_loss": (_soft, _smoothed_layer),
        "entmax_attention": (_weights,),
        "attention": (_detached, _weights),
        "plif": (_only_float32_and_64, _one_dtype, _traced),
        "monotonic": (_only_float32_and_64, _one_dtype, _tabled, _traced),
        "head_loss": (
            _single,
            _other_head,
            _soft,
            _smoothed_head,
            _infinite_bias,
            _only_float32_and_64,
            _one_dtype,
            _autocast,
            _traced,
        ),
        "sparsemap": (_custom,),
        "structured_topk": (_custom,),
    },
)
TRITON = Backend(
    "triton",
    "Triton kernels",
    "cuda",
    (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    triton.PROBLEM,
    {
        "softmax": (_double,),
        "sparsemax": (_double,),
        "entmax15": (_double,),
        "entmax": (_double,),
        "support": (_double, _sized_by_values),
        "topk_sparsemax": (_double,),
        "rsoftmax": (_double, _detached),
        "budget_sparsemax": (_double,),
        "tsoftmax": (_double,),
        "sigsoftmax": (_double,),
        "sparsegen": (_double,),
        "sparsehourglass": (_double,),
        "normmax": (_double, _far_norm_in_float64),
        "sparsemax_loss": (_double, *_LOSS),
        "entmax15_loss": (_double, *_LOSS),
        "entmax_loss": (_double, *_LOSS),
        "fenchel_young_loss": (_double, *_LOSS),
        "linear_entmax_loss": (_double, _soft_layer, _smoothed_layer),
        "entmax_attention": (_double, _weights, _wide),
    },
)
BACKENDS = {backend.name: backend for backend in (CPU, TRITON)}


TORCH, LEAN = "torch", "lean"  # formulas in float64, and in float32 with sums and thresholds in two parts
PLAIN = {
    TORCH: "plain torch, in float64",
    LEAN: "plain torch, in float32 with sums and thresholds in two parts",
}


def formulas_of(device: str, asked: str) -> str:
    """Which formulas run where no kernel does. float64 is slow on a GPU, and MPS has none."""
    if asked == LEAN or device == "mps":
        return LEAN
    return TORCH if asked == TORCH or device in ("cpu", "meta") else LEAN


def by_device(backends: Iterable[Backend]) -> dict[str, tuple[Backend, ...]]:
    """torch has room for one implementation of an operator for each kind of device, and so for one back end."""
    found: dict[str, tuple[Backend, ...]] = {}
    for backend in backends:
        if backend.device in found:
            (other,) = found[backend.device]
            raise ValueError(f"back end {backend.name}: {backend.device} has the back end {other.name} already")
        found[backend.device] = (backend,)
    return found


_OF_DEVICE = by_device(BACKENDS.values())


def near(request: Request, asked: str) -> tuple[Backend, ...]:
    """The back ends that come into question: that of the tensors' device, or the one that was asked for."""
    if asked in BACKENDS:
        return (BACKENDS[asked],)
    return _OF_DEVICE.get(request.tensors[0].device.type, ())
