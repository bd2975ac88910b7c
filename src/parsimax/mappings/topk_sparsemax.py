"""Top-k sparsemax: the nearest point of the simplex with at most k non-zeros, and a certificate."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor

from ..engine.apply import apply
from ..engine.arguments import Interval, check_count
from ..engine.chunked import Solve, Traced
from ..engine.clean import clean
from ..engine.fused import RowKernel
from ..engine.modes import is_plain
from ..engine.operators import define
from ..engine.sums import over
from ..kernels.schemas import like
from ..parameters import Setting
from .declaration import MappingModule
from .entmax_rule import entmax_kernel
from .sparsemax import sparsemax_root, sparsemax_rows

ops = torch.ops.parsimax

K = Setting("k", Interval(1, math.inf, closed_high=False), example=2, continuous=False, about="non-zeros at most")


def _rows(k: int, z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    best = z.detach().masked_fill(~live, -math.inf).topk(min(k, z.shape[-1]), sorted=False).indices
    p = sparsemax_rows(z.gather(-1, best), live.gather(-1, best), solve=solve)
    return torch.zeros_like(z).scatter(-1, best, p)


def _certificate(x: Tensor, k: int) -> Tensor:
    """Sparsemax of the best k is that of the row if and only if the next best is not above the threshold."""
    rows = clean(x.detach())
    if k >= x.shape[-1]:
        return ~rows.broken.squeeze(-1)
    best = rows.z.masked_fill(~rows.live, -math.inf).topk(k + 1).values
    solve = Solve() if is_plain(x) else Traced()
    tau = solve(sparsemax_root, best[..., :k])
    same = (over(best[..., k:], tau) <= 0) | ~rows.allowed.any(-1, keepdim=True)
    return (same & ~rows.broken).squeeze(-1)


def topk_kernel(k: int) -> RowKernel:
    def forward(x: Tensor, _: Tensor | None) -> Tensor:
        p: Tensor = ops._topk_sparsemax_fwd(x, k)[0]
        return p

    sparsemax = entmax_kernel(2.0)
    return RowKernel(forward, sparsemax.backward, sparsemax.rule, lambda x: ops.topk_sparsemax(x, k))


@overload
def topk_sparsemax(
    scores: Tensor,
    k: int,
    dim: int = ...,
    *,
    mask: Tensor | None = ...,
    dtype: torch.dtype | None = ...,
    return_certificate: Literal[False] = ...,
) -> Tensor: ...
@overload
def topk_sparsemax(
    scores: Tensor,
    k: int,
    dim: int = ...,
    *,
    mask: Tensor | None = ...,
    dtype: torch.dtype | None = ...,
    return_certificate: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def topk_sparsemax(
    scores: Tensor,
    k: int,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
    return_certificate: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Top-k sparsemax: at most k non-zeros, and it can say whether that changed anything.

    .. math::
        p = \operatorname{argmin}_{p \in \Delta, \|p\|_0 \le k} \|p - z\|^2
          = \operatorname{sparsemax}(\text{best } k)

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        k: the number of non-zeros allowed, at least 1; above the row length it is the whole row.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.
        return_certificate: also return, for each row, whether the result equals :func:`sparsemax` of the whole row.

    Returns:
        Probabilities of the shape of ``scores``; with ``return_certificate`` a pair, the second a boolean tensor of the
        shape of ``scores`` without ``dim``. A row with NaN has no certificate.

    Example:
        >>> import torch, parsimax
        >>> parsimax.topk_sparsemax(torch.tensor([1.0, 0.8, 0.7]), 2, return_certificate=True)
        (tensor([0.6000, 0.4000, 0.0000]), tensor(False))

    Of tied scores at the k-th place the kernels choose the first ones, plain torch those that ``torch.topk`` chooses;
    the gradient stays on the chosen ones.

    Reference: Correia, Niculae, Aziz and Martins, Efficient Marginalization, NeurIPS 2020.
    """
    k = check_count(k, "k", "topk_sparsemax")
    formula, kernel = partial(_rows, k), topk_kernel(k)
    p = apply(formula, scores, dim=dim, mask=mask, dtype=dtype, where="topk_sparsemax", kernel=kernel)
    if not return_certificate:
        return p
    x = scores if dtype is None else scores.to(dtype)
    x = x if mask is None else x.masked_fill(~mask, -math.inf)
    if x.shape[dim] == 0:
        return p, torch.ones_like(x.sum(dim), dtype=torch.bool)
    return p, _certificate(x.movedim(dim, -1), k)


def _kernel(x: Tensor, k: int) -> Tensor:
    return topk_kernel(k)(x)


define("topk_sparsemax(Tensor x, int k) -> Tensor", _kernel, topk_sparsemax, like)


class TopKSparsemax(MappingModule, function=topk_sparsemax, setting=K):
    k: int
