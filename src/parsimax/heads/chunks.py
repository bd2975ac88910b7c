"""The loss of any head, a chunk of rows at a time.

For a mean or a sum the factor of each row's loss is known before the backward pass, so the gradients are made while the
chunk's logits exist: no logits are computed twice, and none are kept. For single losses the backward pass goes through
the chunks again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call

from ..engine.fused import aliases
from ..engine.modes import derivative_is_observed, is_plain, kernels_serve
from ..engine.precision import work_dtype
from ..losses.contract import Options, check_class_weight, check_targets, loss_dtype, reduced
from ..losses.linear import target_is_soft
from .fused import fused_total, kernel_of

if TYPE_CHECKING:
    from .head import Head

ROWS, ROWS_OF_MIXTURES = 256, 512  # rows of logits at a time; fewer, and the products lose a fifth and more
FEW = 1 << 18  # logits that are taken together however many rows they are
CHUNK = 1 << 24  # logits at a time, at most


def tokens_at_a_time(head: Head) -> int:
    rows = ROWS if head.rows_per_token == 1 else ROWS_OF_MIXTURES
    rows = max(rows, FEW // head.classes)
    return max(1, min(rows, CHUNK // head.classes) // head.rows_per_token)


def chunked_loss(head: Head, hidden: Tensor, target: Tensor, options: Options) -> Tensor:
    where, lead, classes = options.where, hidden.shape[:-1], head.classes
    soft = target_is_soft(target, lead, classes, where)
    check_class_weight(options.weight, classes, where)
    if options.weight is not None and options.weight.requires_grad:
        raise ValueError(f"{where}: there is no gradient by weight here, as in F.cross_entropy; detach it")
    if soft and options.ignore_index >= 0:
        raise ValueError(f"{where}: ignore_index goes with class indices only, got {options.ignore_index}")
    work = work_dtype(hidden.device)
    count: Tensor | None = None
    if not soft:
        check_targets(target, classes, options.ignore_index, where)
        keep = target != options.ignore_index
        each = None if options.weight is None else options.weight.to(work)[torch.where(keep, target, 0).long()]
        count = keep.sum() if each is None else torch.where(keep, each, 0).sum()
    given: dict[str, Any] = {"weight": options.weight, "ignore_index": options.ignore_index}
    given["label_smoothing"] = options.label_smoothing
    rows, aims = hidden.reshape(-1, hidden.shape[-1]), target.flatten(0, len(lead) - 1) if lead else target[None]
    out = loss_dtype(hidden)
    parameters = tuple(head.parameters())
    # The gradient by target probabilities is as large as all logits: nothing is gained by chunks of them.
    by_target = target.requires_grad and torch.is_grad_enabled()
    plain = is_plain(hidden, target, *parameters) and not by_target
    total = options.reduction != "none"
    plan = kernel_of(head, rows) if plain and total else None
    kinds: dict[str, Any] = {"soft": soft, "smoothing": options.label_smoothing, "bias": head.bias, "single": not total}
    kinds.update(autocast=torch.is_autocast_enabled(hidden.device.type), head=plan or not (plain and total))
    served = kernels_serve("head_loss", rows, *parameters, **kinds)
    if not plain:
        loss = head.row_losses(rows, aims, given).to(work)
        return reduced(loss.reshape(lead), count, options.reduction).to(out)
    if served and plan is not None:
        sum_ = fused_total(head, plan, rows, aims, options.weight, options.ignore_index, tokens_at_a_time(head))
    else:
        # In a function's forward pass nobody knows whether a gradient will be asked for.
        kept = head, total, torch.is_grad_enabled(), given
        sum_ = _Chunked.apply(*kept, aims, rows, *parameters)  # type: ignore[no-untyped-call]
    if not total:
        return sum_.reshape(lead).to(out)
    if options.reduction == "mean":
        by = torch.full_like(sum_, rows.shape[0]) if count is None else count
        # The mean of nothing is NaN, and its gradient 0, as in F.cross_entropy.
        sum_ = torch.where(by == 0, math.nan, sum_ / torch.where(by == 0, 1, by))
    return sum_.to(out)


def same_autocast(device: str) -> AbstractContextManager[Any]:
    """Autocast as it is now, for what is computed again in the backward pass."""
    return torch.autocast(
        device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device), cache_enabled=False
    )


class _Chunked(torch.autograd.Function):
    """(head, whether to sum, whether a gradient may be asked for, options, target, hidden, *parameters) to the sum of
    the losses, or to each of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        head: Head,
        total: bool,
        graded: bool,
        options: dict[str, Any],
        target: Tensor,
        hidden: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.head, ctx.total, ctx.options = head, total, options
        ctx.names = [name for name, _ in head.named_parameters()]
        ctx.autocast = same_autocast(hidden.device.type)
        ctx.save_for_backward(target, hidden, *parameters)
        need, work = graded and any(ctx.needs_input_grad), work_dtype(hidden.device)
        ctx.random = None if total else Random(hidden.device)
        sums = _Sums(hidden, parameters, ctx.needs_input_grad[5:]) if need and total else None
        losses, step = [], tokens_at_a_time(head)
        for at in range(0, hidden.shape[0], step):
            part = slice(at, at + step)
            if sums is None:
                losses.append(head.row_losses(hidden[part], target[part], options).to(work))
            else:
                losses.append(sums.add(head.row_losses, target[part], part, options))
        ctx.sums = None if sums is None else sums.total
        each = torch.cat(losses) if losses else hidden.new_zeros(0, dtype=work)
        return each.sum() if total else each

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        target, hidden, *parameters = ctx.saved_tensors
        wanted = ctx.needs_input_grad[5:]
        if derivative_is_observed(g):
            grads = whole_backward(ctx.head, ctx.names, ctx.total, ctx.options, target, hidden, parameters, wanted, g)
        elif ctx.total:
            grads = scaled(ctx.sums, (hidden, *parameters), g)
        else:
            sums, step = _Sums(hidden, parameters, wanted), tokens_at_a_time(ctx.head)
            losses = with_parameters(ctx.head, "row_losses", ctx.names, parameters)
            with ctx.autocast, ctx.random.again():
                for at in range(0, hidden.shape[0], step):
                    part = slice(at, at + step)
                    sums.add(losses, target[part], part, ctx.options, g[part])
            grads = scaled(sums.total, (hidden, *parameters), None)
        return (None, None, None, None, None, *grads)


class Random:
    """The state of the generator of a device, for what is computed again: a function of scores may draw numbers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.state = torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state()

    @contextmanager
    def again(self) -> Iterator[None]:
        kind = self.device.type
        with torch.random.fork_rng(
            [] if kind == "cpu" else [self.device], device_type="cuda" if kind == "cpu" else kind
        ):
            if kind == "cpu":
                torch.set_rng_state(self.state)
            else:
                torch.get_device_module(self.device).set_rng_state(self.state)
            yield


class _Sums:
    """Gradients by the hidden states and the parameters, summed over chunks in at least float32."""

    def __init__(self, hidden: Tensor, parameters: Any, wanted: Any) -> None:
        self.hidden, self.given = hidden, (hidden, *parameters)
        self.total = [
            torch.zeros(t.shape, dtype=torch.promote_types(t.dtype, torch.float32), device=t.device) if w else None
            for t, w in zip(self.given, wanted, strict=True)
        ]

    def add(
        self,
        losses: Callable[..., Tensor],
        target: Tensor,
        part: slice,
        options: dict[str, Any],
        factor: Tensor | None = None,
    ) -> Tensor:
        with torch.enable_grad():
            rows = self.hidden[part].detach().requires_grad_()
            loss = losses(rows, target, options).to(work_dtype(rows.device))
        leaves = [rows, *self.given[1:]]
        at = [t for t, sum_ in zip(leaves, self.total, strict=True) if sum_ is not None]
        if not loss.requires_grad or not at:
            return loss.detach()
        factor = torch.ones_like(loss) if factor is None else factor.to(loss.dtype)
        grads = iter(torch.autograd.grad(loss, at, factor, allow_unused=True))
        for i, sum_ in enumerate(self.total):
            grad = next(grads) if sum_ is not None else None
            if sum_ is not None and grad is not None:
                (sum_[part] if i == 0 else sum_).add_(grad)
        return loss.detach()


def scaled(sums: Any, inputs: tuple[Tensor, ...], g: Tensor | None) -> list[Tensor | None]:
    """Gradients of the inputs' types, times what came from above."""
    return [
        None if s is None else (s if g is None else s * g.to(s.dtype)).to(t.dtype)
        for s, t in zip(sums, inputs, strict=True)
    ]


def whole_backward(
    head: Head,
    names: list[str],
    total: bool,
    options: dict[str, Any],
    target: Tensor,
    hidden: Tensor,
    parameters: Any,
    wanted: Any,
    g: Tensor,
) -> list[Tensor | None]:
    """The gradient as a differentiable function, of all rows at once: for create_graph."""
    with torch.enable_grad():
        # New names: where the hidden states depend on a tied weight, that path must not count.
        rows, *values = aliases((hidden, *parameters), wanted)
        y = with_parameters(head, "row_losses", names, values)(rows, target, options).to(work_dtype(rows.device))
        y = y.sum() if total else y
        at = [t for t, w in zip((rows, *values), wanted, strict=True) if w]
        grads = iter(torch.autograd.grad(y, at, g.to(y.dtype), create_graph=True, materialize_grads=True))
    return [next(grads) if w else None for w in wanted]


def with_parameters(head: Head, method: str, names: Sequence[str], values: Sequence[Tensor]) -> Callable[..., Tensor]:
    """A method of a head with these parameters: in the backward pass the head may have others than it was called with,
    by ``functional_call``.
    """
    given, caller = {f"head.{name}": value for name, value in zip(names, values, strict=True)}, _Caller(head, method)

    def call(*words: Any) -> Tensor:
        out: Tensor = functional_call(caller, given, words)
        return out

    return call


class _Caller(torch.nn.Module):
    """A method of a head as the call of a module, which is what ``functional_call`` makes."""

    def __init__(self, head: Head, method: str) -> None:
        super().__init__()
        self.head, self.method = head, method

    def forward(self, *words: Any) -> Any:
        return getattr(self.head, self.method)(*words)
