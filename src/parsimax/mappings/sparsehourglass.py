"""sparsehourglass: sparsemax of scores scaled by their own sum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..engine.apply import apply, formula_rule, unshifted
from ..engine.arguments import Interval
from ..engine.chunked import Solve
from ..engine.fused import RowKernel
from ..engine.operators import define
from ..engine.sums import signed_total
from ..kernels.schemas import like
from ..parameters import Setting
from .declaration import MappingModule
from .sparsemax import sparsemax_rows
from .tsoftmax import from_top

ops = torch.ops.parsimax
Q = Setting(
    "q",
    Interval(0, math.inf, closed_low=False, closed_high=False),
    example=1.0,
    default=10.0,
    about="small is nearly scale invariant, large is sparsemax",
)


def hourglass_scale(z: Tensor, live: Tensor, q: Tensor) -> Tensor:
    """a = (1 + Kq) / (|sum z| + Kq) over the K live entries."""
    kq = live.sum(-1, keepdim=True) * q
    return (1 + kq) / (signed_total(torch.where(live, z, 0)).abs() + kq)


@unshifted
def sparsehourglass_rows(z: Tensor, live: Tensor, q: Tensor, *, solve: Solve) -> Tensor:
    return sparsemax_rows(hourglass_scale(z, live, q) * from_top(z, live), live, solve=solve)


def hourglass_kernel() -> RowKernel:
    def forward(x: Tensor, q: Tensor | None) -> Tensor:
        p: Tensor = ops._hourglass_fwd(x, q, 0.0)
        return p

    def backward(x: Tensor, g: Tensor, q: Tensor | None, want: bool, p: Tensor) -> tuple[Tensor, Tensor | None]:
        dx, change = ops._hourglass_bwd(x, p, g, q, 0.0, want)
        return dx, change if want else None

    rule = formula_rule(sparsehourglass_rows, Q.domain)
    return RowKernel(
        forward, backward, rule, lambda x, q: ops.sparsehourglass(x, q), saves_both=True, rule_from_output=False
    )


KERNEL = hourglass_kernel()


def sparsehourglass(
    scores: Tensor,
    q: float | Tensor = 10.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Sparsehourglass: sparsemax that trades shift invariance for invariance to scale.

    .. math:: p = \operatorname{sparsemax}(a z), \qquad a = \frac{1 + K q}{|\sum_i z_i| + K q}

    Args:
        scores: any shape, floating point; -inf forbids an entry. K counts the allowed entries.
        q: in (0, ∞); small q is nearly scale invariant, large q is :func:`sparsemax`. A float, or a tensor that is
            0-dim or broadcasts to ``scores`` with size 1 along ``dim``; differentiable. A row whose q is outside is
            NaN.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``, with exact zeros.

    Example:
        >>> import torch, parsimax
        >>> parsimax.sparsehourglass(torch.tensor([4.0, 3.5, 1.0]), 1.0)
        tensor([0.5870, 0.4130, 0.0000])

    Not shift invariant, unlike its siblings.

    Reference: Laha et al., On Controllable Sparse Alternatives to Softmax, NeurIPS 2018.
    """
    parameter, where = Q.at(q), "sparsehourglass"
    return apply(sparsehourglass_rows, scores, parameter, dim=dim, mask=mask, dtype=dtype, where=where, kernel=KERNEL)


define("sparsehourglass(Tensor x, Tensor q) -> Tensor", KERNEL, sparsehourglass, like)


class SparseHourglass(MappingModule, function=sparsehourglass, setting=Q, kernel=KERNEL, shift_invariant=False):
    q: float | Tensor
