"""α-entmax for every α from 0 to infinity.

With β = α - 1 the answer is p_i = [1 + β(z_i - θ)]_+^(1/β). Written by w = log(largest p) instead of θ it stays well
scaled for every α:

    p_i = e^w r_i,    r_i = [1 + x_i]_+^(1/β),    x_i = β z_i e^(-βw),    -log n <= w <= 0

and at β = 0 it is softmax. The derivative by w is dp_i/dw = p_i / (1 + x_i) = e^(βw) p_i^(2-α).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..engine.apply import apply
from ..engine.arguments import Interval
from ..engine.chunked import Formula, Solve, Traced
from ..engine.fused import RowKernel
from ..engine.modes import quick
from ..engine.operators import define
from ..engine.search import log_length, narrowed, repeat, search
from ..engine.sums import is_lean, total
from ..kernels.schemas import like
from ..parameters import Setting
from . import entmax_lean
from .declaration import MappingModule
from .entmax15 import Entmax15
from .entmax_rule import entmax_kernel, fixed_entmax
from .softmax import Softmax
from .sparsemax import Sparsemax

ALPHA = Setting(
    "alpha", Interval(0, math.inf), example=1.5, default=1.5, interval=(1, 2), about="1 is softmax, 2 sparsemax"
)
LARGEST = 300.0  # e^(-βw) is kept below e^300: there every entry that is not a maximum is out for any double
NEAR = 1e-3  # |β| below which log(1 + βy)/β is a series in β, or its derivatives by β would cancel


def _scaled(z: Tensor, beta: Tensor, w: Tensor) -> Tensor:
    return z * (-beta * w).clamp(max=LARGEST).exp()


@search(width=2)
def entmax_root(z: Tensor, alpha: Tensor) -> Tensor:
    """w with sum p = 1, as the two ends (high, low) of a bracket, which for α <= 2 are the same number.

    L(θ) = (S^β - 1)/β, S = sum p, is convex and decreasing for 0 <= α <= 2: a power mean of affine functions. So Newton
    on L from θ = 0, that is w = 0, where the largest entry alone gives 1, never passes the root. For α > 2 it may: then
    the bracket is halved, down to neighbouring doubles if need be, as p jumps there when an entry enters the support.
    """
    beta = alpha - 1
    some = torch.where(beta == 0, 1, beta)
    z = z.clamp(min=-1e38)  # entries below do not move w; a graph of ONNX holds no larger constant
    least = torch.zeros_like(z[..., :1] + beta) - log_length(z)

    def find(z: Tensor, start: Tensor) -> Tensor:
        def step(w: Tensor, other: Tensor, low: Tensor, high: Tensor, last: Tensor) -> tuple[Tensor, ...]:
            y = _scaled(z, beta, w)
            x = beta * y
            r = torch.where(x > -1, torch.where(beta == 0, y, x.clamp(min=-1).log1p() / some).exp(), 0)
            total = r.sum(-1, keepdim=True)
            log_sum = w + total.log()
            ratio = total / torch.where(r > 0, r / (1 + x), 0).sum(-1, keepdim=True)
            step = torch.where(beta == 0, -log_sum * ratio, ((-beta * log_sum).expm1() * ratio).log1p() / some)
            high, low = torch.where(log_sum >= 0, w, high), torch.where(log_sum <= 0, w, low)
            to = w + step
            slow = (beta > 1) & (log_sum.abs() > last / 2)
            inside = (to >= low) & (to <= high) & ~slow
            exact = ((beta <= 1) & (step.abs() < 1e-9)) | ((beta > 1) & (log_sum.abs() < 1e-14))
            narrow = (high - low) <= torch.maximum(3e-16 * high.abs(), 1e-17 / beta.clamp(min=1))
            to = torch.where(inside | exact, to, (low + high) / 2)
            w = torch.where(exact & (beta > 1), w, torch.where(narrow & ~exact, high, to))
            other = torch.where(narrow & ~exact, low, w)
            return w, other, low, high, log_sum.abs(), exact | narrow | log_sum.isnan()

        w = start[..., :1]
        state = (w, w.clone(), least, torch.zeros_like(least), torch.full_like(least, math.inf))
        return torch.cat(repeat(step, *state)[:2], -1)

    def edge(bracket: Tensor) -> Tensor:
        # A little lower: rounded otherwise than x > -1 above, it must not leave out an entry that lies just on it.
        return torch.where(beta > 0, -(1 + 1e-12) * (beta * bracket[..., :1]).exp() / some, -math.inf)

    return narrowed(z, torch.zeros_like(least), find, edge, long=128)


def _log1p_over(y: Tensor, beta: Tensor, *, traced: bool) -> Tensor:
    """log(1 + βy)/β, for 1 + βy > 0, smooth through β = 0 with its derivatives."""
    near = beta.abs() < NEAR
    if not traced and not near.any():
        return (beta * y).log1p() / beta
    x = torch.where(near, beta * y, 0).clamp(-0.5, 0.5)
    series = y * (1 - x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x * (1 / 6 - x * (1 / 7 - x / 8)))))))
    some = torch.where(near, 1, beta)
    return torch.where(near, series, torch.where(near, 0, some * y).log1p() / some)


def _at(z: Tensor, live: Tensor, beta: Tensor, w: Tensor, *, traced: bool) -> tuple[Tensor, Tensor]:
    """p and dp/dw at a given w."""
    on = live & (beta * _scaled(z, beta, w) > -1).detach()
    y = torch.where(on, _scaled(z, beta, w), 0)
    p = torch.where(on, (w + _log1p_over(y, beta, traced=traced)).exp(), 0)
    return p, p / (1 + beta * y)


def unpolished(z: Tensor, live: Tensor, alpha: Tensor, *, solve: Solve) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """p and dp/dw at a w with derivatives right to order 2^(steps - 1) - 1; that w; and p at the bracket's low end."""
    beta, traced = alpha - 1, isinstance(solve, Traced)
    w, low = solve(entmax_root, z.masked_fill(~live, -math.inf), alpha).chunk(2, -1)
    p_low = _at(z.detach(), live, beta.detach(), low, traced=traced)[0] if traced or (w > low).any() else None
    for step in range(solve.steps):
        p, slope = _at(z, live, beta, w, traced=traced)
        if step + 1 < solve.steps:  # a Newton step for the derivatives only: its value is 0
            newton = (p.sum(-1, keepdim=True) - 1) / slope.sum(-1, keepdim=True)
            w = w - (newton - newton.detach())
    return p, slope, w, p_low


def argmax_rows(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    """α = infinity: uniform over the maxima, constant between ties."""
    top = (live & (z == 0)).to(z.dtype)
    return top / top.sum(-1, keepdim=True) + 0 * z


def entmax_rows(z: Tensor, live: Tensor, alpha: Tensor, *, solve: Solve) -> Tensor:
    hard = alpha == math.inf
    some = torch.where(hard, 2, alpha)
    if is_lean(z):
        p, slope, p_low = entmax_lean.unpolished(z, live, some, solve=solve)
    else:
        p, slope, _, p_low = unpolished(z, live, some, solve=solve)
    if p_low is not None:
        # Between two neighbouring doubles w an entry can go from 0 to 1e-5 and more: the answer lies in between.
        rise = (p - p_low).detach()
        whole = rise.sum(-1, keepdim=True)
        share = (total(p.detach(), 1) / torch.where(whole > 0, whole, 1)).clamp(0, 1)
        p = p - share * rise
    # The last Newton step, along the tangent.
    p = (p - slope * (total(p, 1) / slope.sum(-1, keepdim=True))).clamp(min=0)
    return torch.where(hard, argmax_rows(z, live, solve=solve), p)


def entmax_conjugate(z: Tensor, live: Tensor, alpha: Tensor, *, solve: Solve) -> Tensor:
    """max over p of p.z + H(p), as the minimum over θ of the dual θ + (S - 1)/α + (β/α) sum p (z - θ), S = sum p.

    At a minimum the derivative by θ is 0: the derivatives by z and α are right although θ is taken as known.
    """
    hard = alpha == math.inf
    alpha = torch.where(hard, 2, alpha)
    if is_lean(z):
        dual = entmax_lean.conjugate(z, live, alpha, solve=solve)
    else:
        p, _, w, _ = unpolished(z, live, alpha, solve=solve)
        beta = alpha - 1
        theta = -_expm1_over(w, beta)
        dual = theta + (p.sum(-1, keepdim=True) - 1 + beta * (p * (z - theta)).sum(-1, keepdim=True)) / alpha
    return torch.where(hard, (argmax_rows(z, live, solve=solve).detach() * z).sum(-1, keepdim=True), dual)


def _expm1_over(y: Tensor, beta: Tensor) -> Tensor:
    """(e^(βy) - 1)/β, smooth through β = 0 with its derivatives."""
    near = beta.abs() < NEAR
    x = torch.where(near, beta * y, 0)
    series = y * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7))))))
    some = torch.where(near, 1, beta)
    return torch.where(near, series, torch.where(near, 0, some * y).expm1() / some)


def tsallis(p: Tensor, alpha: Tensor) -> Tensor:
    """sum (p - p^α) / (α(α-1)), Shannon's at α = 1 and 0 at infinity."""
    hard = alpha == math.inf
    alpha = torch.where(hard, 2, alpha)
    log = torch.where(p > 0, p, 1).log()
    return torch.where(hard, 0, -(p * _expm1_over(log, alpha - 1)).sum(-1, keepdim=True) / alpha)


KERNEL = entmax_kernel(None)
# The members of the family that have a formula and a kernel of their own, as their files declare them; and α = ∞.
MEMBERS: dict[float, Any] = {float(member.entry.alpha or 0): member.entry for member in (Softmax, Entmax15, Sparsemax)}
SPECIAL: dict[float, Formula] = {alpha: entry.formula for alpha, entry in MEMBERS.items()} | {math.inf: argmax_rows}
KERNELS: dict[float, RowKernel] = {alpha: entry.kernel for alpha, entry in MEMBERS.items()}
KERNELS[math.inf] = entmax_kernel(math.inf)


def entmax(
    scores: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""α-entmax: one family from dense to one-hot, differentiable in the scores and in α.

    .. math::
        p = \operatorname{argmax}_{p \in \Delta} p \cdot z + \frac{1}{\alpha(\alpha-1)} \sum_j (p_j - p_j^\alpha)
          = [(\alpha - 1) z - \tau]_+^{1/(\alpha-1)}

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        alpha: in [0, ∞]; 1 is softmax, 2 sparsemax, ∞ argmax (uniform over ties), below 1 denser than softmax. A float,
            or a tensor that is 0-dim or broadcasts to ``scores`` with size 1 along ``dim``: one α per head of scores
            (B, H, L, S) has shape (H, 1, 1). It keeps its dtype, and so does its gradient. The values of a tensor are
            not checked: a row whose α is outside [0, ∞] is NaN.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros for α > 1.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([1.0, 0.5, -1.0])
        >>> parsimax.entmax(scores, 1.25)
        tensor([0.6315, 0.3451, 0.0235])
        >>> alpha = torch.tensor(1.5, requires_grad=True)
        >>> parsimax.entmax(scores, alpha)[0].backward()
        >>> round(alpha.grad.item(), 4)
        0.1239

    :func:`sparsemax` and :func:`entmax15` are its fixed points 2 and 1.5; :class:`Entmax` holds a learned α.

    Reference: Peters, Niculae and Martins, Sparse Sequence-to-Sequence Models, ACL 2019; Correia, Niculae and Martins,
    Adaptively Sparse Transformers, EMNLP 2019 (the gradient by α).
    """
    if isinstance(alpha, (int, float)) and not isinstance(alpha, bool):
        alpha = float(alpha)
        if mask is None and dtype is None and alpha >= 0 and quick(scores, dim):
            return fixed_entmax(alpha)(scores)
        if alpha in SPECIAL:
            kernel = KERNELS[alpha]
            return apply(SPECIAL[alpha], scores, dim=dim, mask=mask, dtype=dtype, where="entmax", kernel=kernel)
    return apply(
        entmax_rows,
        scores,
        ALPHA.at(alpha),
        dim=dim,
        mask=mask,
        dtype=dtype,
        where="entmax",
        kernel=KERNEL,
        alpha=alpha,
    )


def _kernel(x: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    return KERNEL(x, alpha) if alpha is not None else KERNELS[value](x)


def _formula(x: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    return entmax(x, value if alpha is None else alpha)


define("entmax(Tensor x, Tensor? alpha, float value) -> Tensor", _kernel, _formula, like)


class Entmax(
    MappingModule,
    function=entmax,
    setting=ALPHA,
    kernel=KERNEL,
    entropy=tsallis,
    conjugate=entmax_conjugate,
    loss_domain=Interval(0, math.inf, closed_low=False),
):
    """:func:`entmax` as a module, with an α that is fixed, learned or scheduled.

    Args:
        alpha: a number, a tensor, a schedule (a function of the step that :func:`set_step` tells) or ``"learned"``.
        dim: the dimension that sums to 1.
        learnable: train α by gradient from this value on, held inside ``interval`` by construction.
        shape: the shape of a learned α, () for a single one: (H, 1, 1) is one per head of scores (B, H, L, S).
        interval: the ends of a learned α, (1, 2) if not given; the start must lie strictly between them.

    The property ``alpha`` is the value in use. The ``state_dict`` holds ``learned_alpha.raw`` of a learned α,
    ``fixed_alpha`` of a tensor and ``step`` of a schedule.

    Example:
        >>> import torch, parsimax
        >>> head = parsimax.Entmax(1.5, learnable=True, shape=(8, 1, 1))
        >>> head
        Entmax(alpha=1.5 learned, shape=(8, 1, 1), interval=(1, 2), dim=-1)
        >>> head(torch.randn(2, 8, 5, 5)).sum().backward()
        >>> head.learned_alpha.raw.grad.shape
        torch.Size([8, 1, 1])

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019.
    """

    alpha: float | Tensor
