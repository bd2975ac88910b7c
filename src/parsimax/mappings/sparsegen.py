"""sparsegen-lin: sparsemax with a dial for its sparsity."""

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
from ..kernels.schemas import like
from ..parameters import Setting
from .declaration import MappingModule
from .sparsemax import gini, sparsemax_rows

ops = torch.ops.parsimax
LAM = Setting(
    "lam",
    Interval(-math.inf, 1, closed_low=False, closed_high=False),
    example=0.25,
    about="towards 1 one-hot, below 0 denser than sparsemax",
)


def sparsegen_rows(z: Tensor, live: Tensor, lam: Tensor, *, solve: Solve) -> Tensor:
    return sparsemax_rows(z / (1 - lam), live, solve=solve)


def sparsegen_rule(p: Tensor, g: Tensor, lam: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """With h = g - its mean over the support: dx = h / (1 - λ), and dλ = Σ h p / (1 - λ). NaN counts as support."""
    out, work = p.dtype, formula_dtype(p)
    p, g = p.to(work), g.to(work)
    scale = 1 / (1 - lam.to(work)) if lam is not None else torch.ones((), dtype=work, device=p.device)
    on = p != 0
    mean = torch.where(on, g, 0).sum(-1, keepdim=True) / on.sum(-1, keepdim=True).clamp(min=1)
    dx = torch.where(on, g - mean, 0) * scale * torch.where(p.isnan(), math.nan, 1.0)
    return dx.to(out), (dx * p).sum(-1, keepdim=True)


def sparsegen_kernel() -> RowKernel:
    def forward(x: Tensor, lam: Tensor | None) -> Tensor:
        p: Tensor = ops._sparsegen_fwd(x, lam, 0.0)
        return p

    def backward(p: Tensor, g: Tensor, lam: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._sparsegen_bwd(p, g, lam, 0.0, want)
        return dx, change if want else None

    return RowKernel(forward, backward, sparsegen_rule, operator=lambda x, lam: ops.sparsegen(x, lam))


KERNEL = sparsegen_kernel()


def sparsegen_entropy(p: Tensor, lam: Tensor) -> Tensor:
    """(1 - λ) sum p (1 - p) / 2."""
    return (1 - lam) * gini(p)


def sparsegen_conjugate(z: Tensor, live: Tensor, lam: Tensor, *, solve: Solve) -> Tensor:
    p = settled(sparsegen_rows, z, live, lam, solve=solve)
    return (p * z).sum(-1, keepdim=True) + sparsegen_entropy(p, lam)


def sparsegen(
    scores: Tensor,
    lam: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Sparsegen-lin: sparsemax that rewards (λ > 0) or punishes (λ < 0) a large norm of p.

    .. math::
        p = \operatorname{argmin}_{p \in \Delta} \|p - z\|^2 - \lambda \|p\|^2
          = \operatorname{sparsemax}(z / (1 - \lambda))

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        lam: λ < 1; towards 1 the answer is one-hot, towards -∞ uniform. A float, or a tensor that is 0-dim or
            broadcasts to ``scores`` with size 1 along ``dim``; differentiable. A row whose λ is outside is NaN.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros.

    Example:
        >>> import torch, parsimax
        >>> parsimax.sparsegen(torch.tensor([1.0, 0.5, -1.0]), 0.25)
        tensor([0.8333, 0.1667, 0.0000])

    λ = 0 is :func:`sparsemax`; :func:`sparsehourglass` chooses the scale by the scores.

    Reference: Laha et al., On Controllable Sparse Alternatives to Softmax, NeurIPS 2018.
    """
    parameter = LAM.at(lam)
    return apply(sparsegen_rows, scores, parameter, dim=dim, mask=mask, dtype=dtype, where="sparsegen", kernel=KERNEL)


define("sparsegen(Tensor x, Tensor lam) -> Tensor", KERNEL, sparsegen, like)


class Sparsegen(
    MappingModule,
    function=sparsegen,
    setting=LAM,
    kernel=KERNEL,
    entropy=sparsegen_entropy,
    conjugate=sparsegen_conjugate,
):
    lam: float | Tensor
