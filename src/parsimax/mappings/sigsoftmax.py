"""sigsoftmax: softmax of a bent score, which breaks the low rank of a linear output layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..engine.apply import apply, formula_rule, unshifted
from ..engine.chunked import Solve
from ..engine.fused import RowKernel
from ..engine.operators import define
from ..kernels.schemas import like
from .declaration import MappingModule
from .softmax import softmax_rows

ops = torch.ops.parsimax


@unshifted
def sigsoftmax_rows(z: Tensor, live: Tensor, *, solve: Solve) -> Tensor:
    return softmax_rows(z + F.logsigmoid(z), live, solve=solve)


def sigsoftmax_kernel() -> RowKernel:
    def forward(x: Tensor, _: Tensor | None) -> Tensor:
        p: Tensor = ops._sigsoftmax_fwd(x)
        return p

    def backward(x: Tensor, g: Tensor, _: Tensor | None, want: bool) -> tuple[Tensor, Tensor | None]:
        return ops._sigsoftmax_bwd(x, g), None

    rule = formula_rule(sigsoftmax_rows)
    return RowKernel(forward, backward, rule, lambda x: ops.sigsoftmax(x), saves_input=True, rule_from_output=False)


KERNEL = sigsoftmax_kernel()


def sigsoftmax(
    scores: Tensor, dim: int = -1, *, mask: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    r"""Sigsoftmax: softmax weighted by the sigmoid of each score.

    .. math:: p_i \propto \exp(z_i) \, \sigma(z_i)

    Args:
        scores: any shape, floating point; -inf forbids an entry.
        dim: the dimension that sums to 1.
        mask: boolean, broadcastable to ``scores``; True = may be chosen.
        dtype: what the scores are cast to first, and the dtype of the result.

    Returns:
        Probabilities of the shape of ``scores``; dense.

    Example:
        >>> import torch, parsimax
        >>> parsimax.sigsoftmax(torch.tensor([1.0, 0.0, -1.0]))
        tensor([0.7684, 0.1933, 0.0383])

    Not shift invariant, unlike its siblings: far above 0 it is :func:`softmax` of z, far below softmax of 2z.

    Reference: Kanai, Fujiwara, Yamanaka and Adachi, Sigsoftmax, NeurIPS 2018.
    """
    return apply(sigsoftmax_rows, scores, dim=dim, mask=mask, dtype=dtype, where="sigsoftmax", kernel=KERNEL)


define("sigsoftmax(Tensor x) -> Tensor", KERNEL, sigsoftmax, like)


class SigSoftmax(MappingModule, function=sigsoftmax, kernel=KERNEL, sparse=False, shift_invariant=False):
    pass
