"""normmax: the largest score minus a norm of p."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..engine.apply import apply
from ..engine.arguments import Interval
from ..engine.chunked import Solve, settled
from ..engine.fused import RowKernel
from ..engine.operators import define
from ..engine.precision import formula_dtype
from ..engine.search import ascend, narrowed, search
from ..engine.sums import below, is_lean, moved, normalised, over, power_total, threshold, total
from ..kernels.schemas import like
from ..parameters import Setting
from .declaration import MappingModule

ops = torch.ops.parsimax
ALPHA = Setting(
    "alpha",
    Interval(1, math.inf, closed_low=False, closed_high=False),
    example=2.0,
    about="the norm: 2 is Euclidean",
)


@search()
def normmax_root(z: Tensor, alpha: Tensor) -> Tensor:
    """tau with ||relu(z - tau)||_q = 1, q = α/(α-1): a norm, so convex, and decreasing; at -1 it is at least 1."""
    power = 1 / (alpha - 1)  # q - 1

    def find(z: Tensor, start: Tensor) -> Tensor:
        def lean_step(tau: Tensor) -> Tensor:
            share = over(z, tau).clamp_(min=0)
            less = share.pow(power)
            log_norm = power_total(z, tau, power).log1p() / (power + 1)
            return log_norm.expm1() / ((-power * log_norm).exp() * less.sum(-1, keepdim=True))

        def step(tau: Tensor) -> Tensor:
            # relative to the largest entry, -tau, so that large powers do not underflow
            share = (1 - z / tau).clamp_(min=0)
            less = share.pow(power)
            norm = (less * share).sum(-1, keepdim=True).pow(1 / (power + 1))
            return (norm * -tau - 1) / (norm.pow(-power) * less.sum(-1, keepdim=True))

        return ascend(lean_step if is_lean(z) else step, start, 1e-15)

    start = threshold(torch.zeros_like(z[..., :1] + alpha) - 1)
    return narrowed(z, start, find, edge=below, long=128)


def normmax_rows(z: Tensor, live: Tensor, alpha: Tensor, *, solve: Solve) -> Tensor:
    """p = d^(q-1) / sum d^(q-1), d = z - tau. Newton steps on sum d^q = 1 polish tau."""
    power = 1 / (alpha - 1)
    tau = solve(normmax_root, z.masked_fill(~live, -math.inf), alpha)
    first = live & (z == 0).detach()
    for step in range(solve.steps + 1):
        share = over(z, tau)
        on = live & (share > 0).detach()
        log = torch.where(on, share, 1).log()
        less = torch.where(on, (log * power).exp(), 0)
        if step < solve.steps:
            # sum d^q - 1, with d^q - 1 of the maxima in one piece: where there is one, d is near 1
            apart = torch.where(first, (log * (power + 1)).expm1(), less * log.exp()).sum(-1, keepdim=True)
            excess = apart + (first.sum(-1, keepdim=True) - 1)
            if is_lean(z):
                excess = total(less * log.exp(), 1)
                excess = power_total(z.masked_fill(~live, -math.inf), tau, power).detach() + (excess - excess.detach())
            tau = moved(tau, excess / ((power + 1) * less.sum(-1, keepdim=True)))
    return normalised(less)


def normmax_rule(p: Tensor, g: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The derivative from p alone: with S = 1/‖p‖_α, d = (p S)^(α-1) is the distance from the threshold.

    With w = p/d, h = g - <p, g> and m = 1/(α-1), dx = m (w h - p <w, h>): the threshold moves with <p, dx>. α moves the
    power of d and the threshold: dα = -m² (<p h, log d> - m/((m+1) S) <p S d, log d> <w, h>). NaN counts as support.
    """
    out, work = p.dtype, formula_dtype(p)
    p, g = p.to(work), g.to(work)
    a = alpha.to(work) if alpha is not None else torch.full((), 2.0, dtype=work, device=p.device)
    on, m = p != 0, 1 / (a - 1)
    log = torch.where(on, p, 1).log()
    norm = torch.where(on, (a * log).exp(), 0).sum(-1, keepdim=True)
    size = -torch.where(norm == 0, 1, norm).log() / a  # log S
    depth = torch.where(on, (a - 1) * (log + size), 0)  # log d
    h = torch.where(on, g - torch.where(on, p * g, 0).sum(-1, keepdim=True), 0)
    moved = torch.where(on, (log - depth).exp() * h, 0)
    shift = moved.sum(-1, keepdim=True)
    own = (p * h * depth).sum(-1, keepdim=True)
    cross = torch.where(on, (log + depth).exp() * depth, 0).sum(-1, keepdim=True)
    return (m * (moved - p * shift)).to(out), -m.square() * (own - m / (m + 1) * cross * shift)


def normmax_kernel() -> RowKernel:
    def forward(x: Tensor, alpha: Tensor | None) -> Tensor:
        p: Tensor = ops._normmax_fwd(x, alpha, 0.0)
        return p

    def backward(p: Tensor, g: Tensor, alpha: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._normmax_bwd(p, g, alpha, 0.0, want)
        return dx, change if want else None

    return RowKernel(forward, backward, normmax_rule, lambda x, alpha: ops.normmax(x, alpha), rule_from_output=False)


KERNEL = normmax_kernel()


def norm_entropy(p: Tensor, alpha: Tensor) -> Tensor:
    """1 - ||p||_α."""
    on = p > 0  # a power has no second derivative at 0
    powers = torch.where(on, torch.where(on, p, 1).pow(alpha), 0)
    return 1 - powers.sum(-1, keepdim=True).pow(1 / alpha)


def normmax_conjugate(z: Tensor, live: Tensor, alpha: Tensor, *, solve: Solve) -> Tensor:
    p = settled(normmax_rows, z, live, alpha, solve=solve)
    return (p * z).sum(-1, keepdim=True) + norm_entropy(p, alpha)


def normmax(
    scores: Tensor,
    alpha: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Normmax: sparse with a margin of 1 at every α.

    .. math:: p = \operatorname{argmax}_{p \in \Delta} p \cdot z - \|p\|_\alpha

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        alpha: in (1, ∞): towards 1 the answer is one-hot, towards ∞ uniform over the best few. A float, or a tensor
            that is 0-dim or broadcasts to ``scores`` with size 1 along ``dim``; differentiable. A row whose α is
            outside is NaN.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros.

    Example:
        >>> import torch, parsimax
        >>> parsimax.normmax(torch.tensor([1.0, 0.5, -1.0]), 2)
        tensor([0.6890, 0.3110, 0.0000])

    :func:`entmax` regularises with a sum over entries and has margin 1/(α-1); here it is a norm, and the margin is 1.

    Reference: Blondel, Martins and Niculae, Learning with Fenchel-Young Losses, JMLR 2020.
    """
    return apply(
        normmax_rows,
        scores,
        ALPHA.at(alpha),
        dim=dim,
        mask=mask,
        dtype=dtype,
        where="normmax",
        kernel=KERNEL,
        alpha=alpha,
    )


define("normmax(Tensor x, Tensor alpha) -> Tensor", KERNEL, normmax, like)


class Normmax(
    MappingModule,
    function=normmax,
    setting=ALPHA,
    kernel=KERNEL,
    entropy=norm_entropy,
    conjugate=normmax_conjugate,
):
    alpha: float | Tensor
