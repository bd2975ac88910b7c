"""The loss of a head by kernels: products by torch, a chunk of logits at a time, and rows by C++.

A chunk of logits becomes its losses and, in place, the gradient by the logits; the products with it follow at once.
Of a mixture a chunk is all K rows of a few tokens: the share of a component in a token's probability needs only the
sum of its row and the score of the target, so a mixture is a softmax loss over tokens × K rows with a factor for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..engine.modes import derivative_is_observed
from .pieces import Pieces

if TYPE_CHECKING:
    from .head import Head

ops = torch.ops.parsimax
SHARES = 8  # as in kernels/cpu/heads.h


@dataclass(frozen=True)
class Fused:
    """How a head's loss is made by kernels; the parameters that it has, by role."""

    weight: Tensor
    bias: Tensor | None
    sigmoid: bool = False  # sigsoftmax instead of softmax
    function: Any = None  # a module with pieces
    mixture: Any = None  # a module with contexts and prior
    reach: float = math.inf  # no score is larger in size

    @property
    def parameters(self) -> list[Tensor]:
        more = [] if self.mixture is None else [*self.mixture.contexts.parameters(), *self.mixture.prior.parameters()]
        own = [] if self.function is None else [*self.function.parameters()]
        return [t for t in (self.weight, self.bias, *own, *more) if t is not None]


def kernel_of(head: Head, hidden: Tensor) -> Fused | None:
    """None for a head that has no kernel, or has parameters of which the kernel knows nothing."""
    plan = head.fused(hidden)
    if plan is None or {id(t) for t in plan.parameters} != {id(t) for t in head.parameters()}:
        return None
    return plan


def fused_total(
    head: Head,
    plan: Fused,
    hidden: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    step: int,
) -> Tensor:
    """The sum of the losses of rows, times the weight of their class."""
    options = {"weight": weight, "ignore_index": ignore_index, "label_smoothing": 0.0}
    graded = torch.is_grad_enabled()
    total: Tensor = _Fused.apply(head, plan, options, step, graded, target, hidden, *plan.parameters)  # type: ignore[no-untyped-call]
    return total


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        head: Head,
        plan: Fused,
        options: dict[str, Any],
        step: int,
        graded: bool,
        target: Tensor,
        hidden: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.head, ctx.options = head, options
        names = {id(t): name for name, t in head.named_parameters()}
        ctx.names = [names[id(t)] for t in parameters]
        ctx.save_for_backward(target, hidden, *parameters)
        keep, weight = target != options["ignore_index"], options["weight"]
        aim = torch.where(keep, target, -1).long()
        each = torch.ones_like(aim, dtype=hidden.dtype)
        if weight is not None:
            each = torch.where(keep, weight.to(hidden.dtype)[aim.clamp(min=0)], 0)
        # A class that counts for nothing must not count as 0·∞.
        aim = torch.where(each == 0, -1, aim)
        wanted = {id(t): w for t, w in zip(parameters, ctx.needs_input_grad[7:], strict=True)}
        run = _Run(plan, hidden, aim, each, wanted if graded and any(ctx.needs_input_grad) else {}, step)
        total = run.total()
        ctx.grads = [run.by_hidden if ctx.needs_input_grad[6] else None, *map(run.gradient, parameters)]
        return total

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from .chunks import scaled, whole_backward

        target, hidden, *parameters = ctx.saved_tensors
        wanted = ctx.needs_input_grad[6:]
        if derivative_is_observed(g):
            grads = whole_backward(ctx.head, ctx.names, True, ctx.options, target, hidden, parameters, wanted, g)
        else:
            grads = scaled(ctx.grads, (hidden, *parameters), g)
        return (None, None, None, None, None, None, *grads)


class _Run:
    """One pass over the chunks. ``wanted`` says by the id of a parameter whether it needs a gradient."""

    def __init__(
        self, plan: Fused, hidden: Tensor, target: Tensor, each: Tensor, wanted: dict[int, bool], step: int
    ) -> None:
        self.plan, self.hidden, self.target, self.each, self.step = plan, hidden, target, each, max(1, step)
        self.need = bool(wanted)
        self.grads: dict[int, Tensor | None] = {key: None for key, want in wanted.items() if want}
        self.by_hidden = torch.empty_like(hidden) if self.need else None
        self.pieces: Pieces | None = None
        if plan.function is not None:
            self.pieces = plan.function.pieces(plan.reach)
            self.sums = hidden.new_zeros(SHARES, *self.pieces.table.shape)

    def total(self) -> Tensor:
        rows, components = self.hidden.shape[0], 1 if self.plan.mixture is None else self.plan.mixture.components
        # Chunks of one size: a short last one would cost a whole read of the weight.
        parts = max(1, -(-rows // self.step))
        size = -(-rows // parts)
        self.buffer = self.hidden.new_empty(min(rows, size) * components, self.plan.weight.shape[0])
        total = self.hidden.new_zeros((), dtype=torch.float64)
        for at in range(0, rows, max(1, size)):
            part = slice(at, min(rows, at + size))
            total += self._linear(part) if self.plan.mixture is None else self._mixture(part)
        if self.need and self.pieces is not None:
            for parameter, grad in self.pieces.backward(self.sums):
                self._keep(parameter, grad)
        return total

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """0 where there was no row; None where it is not wanted."""
        if id(parameter) not in self.grads:
            return None
        found = self.grads[id(parameter)]
        return torch.zeros_like(parameter) if found is None else found

    def _keep(self, parameter: Tensor | None, grad: Tensor) -> None:
        if parameter is not None and id(parameter) in self.grads:
            known = self.grads[id(parameter)]
            self.grads[id(parameter)] = grad if known is None else known.add_(grad)

    def _add_product(self, parameter: Tensor, a: Tensor, b: Tensor) -> None:
        """Add aᵀ b to the gradient by the parameter."""
        if id(parameter) in self.grads:
            known = self.grads[id(parameter)]
            self.grads[id(parameter)] = a.t() @ b if known is None else known.addmm_(a.t(), b)

    def _logits(self, contexts: Tensor) -> Tensor:
        z, weight, bias = self.buffer[: contexts.shape[0]], self.plan.weight, self.plan.bias
        return torch.mm(contexts, weight.t(), out=z) if bias is None else torch.addmm(bias, contexts, weight.t(), out=z)

    def _products(self, z: Tensor, contexts: Tensor, scale: Tensor | None) -> Tensor:
        """Gradients by the weight and the bias, and the result by the contexts; rows of z still lack ``scale``."""
        plan = self.plan
        by_contexts = torch.mm(z, plan.weight)
        if scale is not None:
            by_contexts.mul_(scale.unsqueeze(1))
            contexts = contexts * scale.unsqueeze(1)
        self._add_product(plan.weight, z, contexts)
        if plan.bias is not None:
            self._keep(plan.bias, z.sum(0) if scale is None else z.t() @ scale)
        return by_contexts

    def _linear(self, part: slice) -> Tensor:
        contexts, target, each = self.hidden[part], self.target[part], self.each[part]
        z = self._logits(contexts)
        if self.pieces is not None:
            p, scale = self.pieces, None
            loss = ops._head_pieces(z, target, each, p.table, p.scale, p.offset, self.sums)
        else:
            loss, inverse = ops._head_rows(z, target, self.plan.sigmoid)
            scale = inverse * each
        if self.by_hidden is not None:
            self.by_hidden[part] = self._products(z, contexts, scale)
        total: Tensor = (loss * each).sum(dtype=torch.float64)
        return total

    def _mixture(self, part: slice) -> Tensor:
        head, hidden, each = self.plan.mixture, self.hidden[part], self.each[part].unsqueeze(1)
        components, tokens = head.components, hidden.shape[0]
        contexts = head.latent(hidden).reshape(tokens * components, head.width)
        prior = head.log_prior(hidden)
        target = self.target[part].repeat_interleave(components)
        z, p = self._logits(contexts), self.pieces
        if p is not None:
            log_sum, own = ops._head_norms(z, target, p.table, p.scale, p.offset)
            logs = (own - log_sum).view(tokens, components)
        else:
            loss, inverse = ops._head_rows(z, target, self.plan.sigmoid)
            logs = -loss.view(tokens, components)
        joint = prior + logs
        likelihood = joint.logsumexp(1, keepdim=True)
        if self.by_hidden is not None:
            share = (joint - likelihood).exp_() * each  # of each component in the probability of the target
            if p is not None:
                factor = share.view(-1)
                ops._head_gradient(z, target, log_sum, factor, p.table, p.scale, p.offset, self.sums)
                by_contexts = self._products(z, contexts, None)
            else:
                by_contexts = self._products(z, contexts, share.view(-1) * inverse)
            if head.tanh:
                by_contexts.mul_(1 - contexts * contexts)
            by_contexts = by_contexts.view(tokens, components * head.width)
            by_prior = prior.exp() * each - share
            counts = (self.target[part] >= 0).unsqueeze(1)
            by_prior = torch.where(counts, by_prior, 0)
            self._add_product(head.contexts.weight, by_contexts, hidden)
            self._keep(head.contexts.bias, by_contexts.sum(0))
            self._add_product(head.prior.weight, by_prior, hidden)
            torch.addmm(by_prior @ head.prior.weight, by_contexts, head.contexts.weight, out=self.by_hidden[part])
        return -torch.where(self.target[part] >= 0, likelihood.squeeze(1) * each.squeeze(1), 0).sum(dtype=torch.float64)


def reach(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> float:
    """No score is larger in size: |h·w + b| ≤ |h| |w| + |b|."""
    if not hidden.numel():
        return math.inf
    most = hidden.detach().norm(dim=1).max() * weight.detach().norm(dim=1).max()
    return float(most + (0 if bias is None else bias.detach().abs().max()))
