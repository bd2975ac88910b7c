"""The contract of ``F.cross_entropy``, for any conjugate in the place of logsumexp.

With ℓ_c = Ω*(z) - z_c in the place of -log p_c, layouts, target kinds, weights, smoothing, ignored targets and
reductions combine the ℓ_c exactly as cross-entropy does. A term with coefficient 0 is 0, never 0·∞.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ..engine.arguments import Interval, check_number, check_scores
from ..engine.chunked import Formula, Solve, Traced, evaluate
from ..engine.clean import Clean, Parameter, as_tensor, clean, fallback, inside, poisoned
from ..engine.modes import is_plain, kernels_serve
from ..engine.precision import formula_dtype, work_dtype

REDUCTIONS = ("mean", "sum", "none")
# The losses of rows by a kernel, of (x, target, parameter, smoothing, class weights or None for ones, which count only
# with smoothing); a target of -1 counts as 0.
RowLosses = Callable[[Tensor, Tensor, Tensor | None, float, Tensor | None], Tensor]
SoftLosses = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # of (x, coefficients, parameter)


@dataclass(frozen=True)
class Options:
    """The options of ``F.cross_entropy``, checked."""

    weight: Tensor | None
    ignore_index: int
    reduction: str
    label_smoothing: float
    where: str

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"{self.where}: reduction must be one of {', '.join(REDUCTIONS)}, got {self.reduction!r}")
        check_number(self.label_smoothing, Interval(0, 1), "label_smoothing", self.where)


@dataclass(frozen=True)
class Bound:
    """A conjugate with its parameter, and the entropy of the target if that is to be kept."""

    conjugate: Formula
    parameters: tuple[Parameter, ...] = ()
    entropy: Callable[..., Tensor] | None = None
    kernel: RowLosses | None = None
    soft_kernel: SoftLosses | None = None


def class_dim(scores: Tensor) -> int:
    return 0 if scores.dim() == 1 else 1


def is_soft(scores: Tensor, target: Tensor, where: str) -> bool:
    """Whether the target holds probabilities; an error if it fits neither kind."""
    if not isinstance(target, Tensor):
        raise TypeError(f"{where}: target must be a torch.Tensor, got {type(target).__name__}")
    dim = class_dim(scores)
    indices = tuple(scores.shape[:dim]) + tuple(scores.shape[dim + 1 :])
    if target.is_floating_point() and target.shape == scores.shape:
        return True
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(
            f"{where}: target must be class indices (an integer tensor of shape {indices}) or probabilities "
            f"(floating point, of shape {tuple(scores.shape)}), got {target.dtype} of shape {tuple(target.shape)}"
        )
    if tuple(target.shape) != indices:
        raise ValueError(
            f"{where}: for scores of shape {tuple(scores.shape)} class indices must have shape {indices}, "
            f"got {tuple(target.shape)}"
        )
    return False


def check_class_weight(weight: Tensor | None, classes: int, where: str) -> None:
    if weight is not None and not isinstance(weight, Tensor):
        raise TypeError(f"{where}: weight must be a torch.Tensor, got {type(weight).__name__}")
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ValueError(f"{where}: weight must have shape ({classes},), one per class, got {tuple(weight.shape)}")


def check_targets(target: Tensor, classes: int, ignore_index: int, where: str) -> None:
    """Values are only read where that costs nothing: on the CPU, outside compiled and transformed code."""
    if target.device.type != "cpu" or not is_plain(target) or target.numel() == 0:
        return
    least, most = target.aminmax()
    if least.item() >= 0 and most.item() < classes:
        return
    bad = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if bad.any():
        raise IndexError(f"{where}: target {target[bad][0].item()} is out of bounds for {classes} classes")


def check_no_weight(alpha: object, classes: int, name: str, where: str, place: str = "third") -> None:
    """The third argument of ``F.cross_entropy`` is the class weights, which must not be taken for α."""
    if isinstance(alpha, Tensor) and alpha.dim() == 1 and alpha.shape[0] == classes:
        raise TypeError(
            f"{where}: the {place} argument is alpha, and a tensor of shape ({classes},) has one number per class; "
            f"pass class weights as {name}=…, and an alpha that all classes share as a number or without that dimension"
        )


def loss_dtype(scores: Tensor) -> torch.dtype:
    """What ``F.cross_entropy`` would return there."""
    if not scores.is_meta and torch.is_autocast_enabled(scores.device.type):
        one = torch.zeros(1, 1, dtype=scores.dtype, device=scores.device)
        return F.cross_entropy(one, torch.zeros(1, dtype=torch.long, device=scores.device)).dtype
    return scores.dtype


def conjugate_rows(
    bound: Bound, x: Tensor, rows: Clean, raw: tuple[Tensor, ...], keep: Tensor | None, solve: Solve
) -> tuple[Tensor, list[Tensor]]:
    """Ω*(z), NaN where a row that counts or its parameter is, and the parameters in the working precision."""
    broken, values = rows.broken, []
    for value, parameter in zip(raw, bound.parameters, strict=True):
        good, bad = inside(value, parameter.domain, fallback(parameter.domain), rows.z.dtype)
        broken = broken | bad
        values.append(good)
    omega = bound.conjugate(rows.z, rows.live, *values, solve=solve)
    some = rows.allowed.any(-1, keepdim=True) | broken
    if isinstance(solve, Traced) or not some.all():  # all forbidden: the loss is infinite whatever the parameters are
        omega = torch.where(some, omega, 0)
    broken = broken if keep is None else broken & keep
    if isinstance(solve, Traced) or broken.any():
        omega = poisoned(omega, x.to(omega.dtype), broken)
    return omega, values


def class_weight_of(index: Tensor, weight: Tensor) -> Tensor:
    """The weight of each row's class; ``index`` (…, 1), ``weight`` (1…, n)."""
    return weight.expand(*index.shape[:-1], weight.shape[-1]).gather(-1, index)


def _linear(rows: Clean, x: Tensor, coefficient: Tensor) -> Tensor:
    """sum_c coefficient_c z_c, where a forbidden class counts only if its coefficient is not 0."""
    counts = rows.allowed | (coefficient != 0)
    return (coefficient * torch.where(counts, x.to(rows.z.dtype) - rows.top, 0)).sum(-1, keepdim=True)


def hard_rows(bound: Bound, smoothing: float, x: Tensor, *rest: Tensor, solve: Solve, whole: bool = True) -> Tensor:
    """Losses of rows with a class index: rest is (parameters…, index, keep, class weight).

    Without ``whole`` the part whose gradient is sparse: all but -(smoothing/n) sum_c weight_c z_c.
    """
    *raw, index, keep, weight = rest
    rows = clean(x, traced=isinstance(solve, Traced), dtype=solve.dtype)
    omega, values = conjugate_rows(bound, x, rows, tuple(raw), keep, solve)
    n = x.shape[-1]
    weight = weight.to(omega.dtype)
    scale = class_weight_of(index, weight)
    own = omega - (x.gather(-1, index).to(omega.dtype) - rows.top)
    loss = torch.where(scale != 0, scale * own, 0)
    if smoothing and bound.entropy is None:
        total = weight.sum(-1, keepdim=True)
        spread = total * omega - _linear(rows, x, weight) if whole else total * (omega + rows.top)
        loss = (1 - smoothing) * loss + smoothing / n * spread if smoothing < 1 else spread / n  # 0·∞ is 0
    elif smoothing and bound.entropy is not None:
        target = torch.full_like(rows.z, smoothing / n).scatter_add(
            -1, index, torch.full_like(omega, 1 - smoothing).expand(index.shape)
        )
        divergence = omega - _linear(rows, x, target) - bound.entropy(target, *values)
        loss = torch.where(scale != 0, scale * divergence, 0)
    return torch.where(keep, loss, 0)


def soft_rows(bound: Bound, smoothing: float, x: Tensor, *rest: Tensor, solve: Solve) -> Tensor:
    """Losses of rows with target probabilities: rest is (parameters…, probabilities, class weight)."""
    *raw, target, weight = rest
    rows = clean(x, traced=isinstance(solve, Traced), dtype=solve.dtype)
    omega, values = conjugate_rows(bound, x, rows, tuple(raw), None, solve)
    target = target.to(omega.dtype)
    if smoothing:
        target = (1 - smoothing) * target + smoothing / x.shape[-1]
    coefficient = target * weight.to(omega.dtype)
    total = coefficient.sum(-1, keepdim=True)
    # Without a target a row of forbidden classes counts for nothing, but NaN is passed on, as in cross-entropy.
    loss = torch.where((total != 0) | omega.isnan(), total * omega, 0) - _linear(rows, x, coefficient)
    return loss if bound.entropy is None else loss - bound.entropy(target, *values)


def _coefficients(target: Tensor, options: Options, x: Tensor) -> Tensor:
    """What target probabilities, smoothing and class weights make of each ℓ_c, in the dtype of the scores."""
    if options.label_smoothing or options.weight is not None:
        target = target.to(formula_dtype(x))
    if options.label_smoothing:
        target = (1 - options.label_smoothing) * target + options.label_smoothing / x.shape[-1]
    return (target if options.weight is None else target * options.weight.to(target.dtype)).to(x.dtype)


def classification_loss(bound: Bound, scores: Tensor, target: Tensor, options: Options) -> Tensor:
    """The loss over the class dimension of ``scores``, reduced."""
    where = options.where
    check_scores(scores, None, where)
    dim = class_dim(scores)
    x = scores if dim == scores.dim() - 1 else scores.movedim(dim, -1)
    classes = x.shape[-1]
    soft = is_soft(scores, target, where)
    if soft and options.ignore_index >= 0:
        raise ValueError(f"{where}: ignore_index goes with class indices only, got {options.ignore_index}")
    check_class_weight(options.weight, classes, where)
    work = work_dtype(scores.device)
    weight = torch.ones((), dtype=work, device=scores.device) if options.weight is None else options.weight
    weight = weight.expand((1,) * (x.dim() - 1) + (classes,))
    raw = [as_tensor(p, scores, dim, where) for p in bound.parameters]
    out = loss_dtype(scores)
    run = partial(evaluate, width=1, dtype=work)
    kinds = {"soft": soft, "smoothing": options.label_smoothing, "weight": options.weight}
    kinds.update(conjugate=bound.kernel is not None, entropy=bound.entropy is not None, target=target)
    served = kernels_serve(where, x, *raw, **kinds)
    if soft:
        rows = partial(soft_rows, bound, options.label_smoothing)
        aims = target.movedim(dim, -1)
        # Without classes there are no terms: 0 a row, as in cross-entropy.
        if served and classes and bound.soft_kernel is not None:
            aims = _coefficients(aims, options, x)
            loss = bound.soft_kernel(x.contiguous(), aims.contiguous(), raw[0] if raw else None).to(work)
        else:
            loss = run(rows, x, *raw, aims, weight).squeeze(-1) if classes else (x.to(work) * aims).sum(-1)
        count: Tensor | None = None if classes else loss.new_zeros(())  # what cross-entropy divides by there
    else:
        check_targets(target, classes, options.ignore_index, where)
        keep = (target != options.ignore_index).unsqueeze(-1)
        index = torch.where(keep, target.unsqueeze(-1).long(), 0)
        rows = partial(hard_rows, bound, options.label_smoothing)
        # The kernel smooths with weights; without smoothing they are a factor, and may have a gradient.
        smoothed = options.weight if options.label_smoothing else None
        if served and bound.kernel is not None:
            aim = torch.where(keep, index, -1).squeeze(-1).contiguous()
            smoothed = None if smoothed is None else smoothed.to(work)
            alpha = raw[0] if raw else None
            loss = bound.kernel(x.contiguous(), aim, alpha, options.label_smoothing, smoothed).to(work)
            if options.weight is not None and smoothed is None:
                scale = class_weight_of(index, weight.to(work)).squeeze(-1)
                loss = torch.where(scale != 0, scale * loss, 0)
        else:
            loss = run(rows, x, *raw, index, keep, weight).squeeze(-1)
        count = keep.sum()
        if options.weight is not None:
            count = torch.where(keep, class_weight_of(index, weight.to(work)), 0).sum()
    return reduced(loss, count, options.reduction).to(out)


def reduced(loss: Tensor, count: Tensor | None, reduction: str) -> Tensor:
    """``count`` is what a mean divides by, the number of rows if None."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.mean() if count is None else loss.sum() / count
