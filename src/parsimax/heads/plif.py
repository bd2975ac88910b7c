"""PLIF: a piecewise linear increasing function with very many knots, learned slope by slope."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..engine.arguments import POSITIVE, check_count, check_number, check_scores
from ..engine.modes import kernels_serve
from ..engine.precision import in_float64
from .fused_pointwise import plif_by_kernel
from .pieces import Pieces, plif_pieces

MOST = 1 << 23  # pieces whose number a float32 can count with a bit to spare
ONE = math.log(math.e - 1)  # its softplus, the slope, is 1


def plif(x: Tensor, raw_slopes: Tensor, bound: float = 20.0) -> Tensor:
    r"""A piecewise linear increasing function of each number, of K equal pieces on [-bound, bound].

    .. math:: f'(x) = \log(1 + e^{v_i}) \;\text{ on piece } i, \qquad f(0) = 0

    Beyond the interval it goes on with the slope of the first and of the last piece, so it is a bijection of the real
    line for any ``raw_slopes``. A call takes two numbers from a table, however many pieces there are.

    Args:
        x: any shape, floating point.
        raw_slopes: (K), K even; the slopes are their softplus. Differentiable.
        bound: half the width of the interval.

    Returns:
        f(x), of the shape and dtype of ``x``.

    Example:
        >>> import torch, parsimax
        >>> raw = torch.tensor([-1.0, 1.0])  # slopes 0.3133 left of 0 and 1.3133 right of it
        >>> parsimax.plif(torch.tensor([-2.0, 0.0, 1.0, 30.0]), raw)
        tensor([-0.6265,  0.0000,  1.3133, 39.3979])

    :class:`PLIF` is the module, :func:`plif_inverse` the way back. The gradient by the slopes is summed in an order
    that the number of threads does not change; on a GPU, ``torch.use_deterministic_algorithms`` makes it repeat.

    Reference: Ganea, Gelly, Bécigneul and Severyn, Breaking the Softmax Bottleneck via Learnable Monotonic Pointwise
    Non-linearities, ICML 2019.
    """
    _check(x, raw_slopes, bound, "plif")
    if kernels_serve("plif", x, raw_slopes):
        return plif_by_kernel(x, raw_slopes, bound, plif_formula)
    return plif_formula(x, raw_slopes, bound)


def plif_formula(x: Tensor, raw_slopes: Tensor, bound: float) -> Tensor:
    """The same in plain torch; ``x`` at a knot belongs to the piece on its right."""
    pieces, wide = raw_slopes.shape[0], torch.promote_types(x.dtype, torch.float32)
    rise, left = plif_table(raw_slopes, bound, wide)
    z, scale = x.to(wide), pieces / (2 * bound)
    piece = (z.detach() * scale + pieces // 2).nan_to_num(0.0).floor().clamp(0, pieces - 1)
    place = z * scale + (pieces // 2 - piece)
    at = piece.long().reshape(-1)
    out = place * rise.index_select(0, at).view_as(z) + left.index_select(0, at).view_as(z)
    return out.to(x.dtype)


@in_float64
def plif_table(raw_slopes: Tensor, bound: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What each piece rises by, and the value at its left end; summed in float64 from 0 outwards, rounded once."""
    pieces = raw_slopes.shape[0]
    # A slope that rounds to 0 would make a product with an infinite x NaN. It counts in the values too: with others
    # than the slopes give, the function would not increase.
    rise = (F.softplus(raw_slopes.double()) * (2 * bound / pieces)).clamp(min=torch.finfo(dtype).tiny)
    low, high = rise[: pieces // 2], rise[pieces // 2 :]
    left = torch.cat((-low.flip(0).cumsum(0).flip(0), high.cumsum(0) - high))
    return rise.to(dtype), left.to(dtype)


@in_float64
def plif_inverse(y: Tensor, raw_slopes: Tensor, bound: float = 20.0) -> Tensor:
    r"""The x at which :func:`plif` is y.

    .. math:: f(f^{-1}(y)) = y

    Args:
        y: any shape, floating point.
        raw_slopes: (K), as in :func:`plif`; differentiable.
        bound: as in :func:`plif`.

    Returns:
        x, of the shape and dtype of ``y``.

    Example:
        >>> import torch, parsimax
        >>> raw = torch.tensor([-1.0, 1.0])
        >>> parsimax.plif_inverse(torch.tensor([-0.6265, 0.0, 1.3133, 39.3979]), raw)
        tensor([-1.9999,  0.0000,  1.0000, 30.0000])
    """
    _check(y, raw_slopes, bound, "plif_inverse")
    pieces = raw_slopes.shape[0]
    rise, left = plif_table(raw_slopes.double(), bound, torch.float64)
    value = y.double()
    at = (torch.searchsorted(left.detach(), value.detach().reshape(-1), right=True) - 1).clamp(0, pieces - 1)
    piece = at.view_as(value)
    start, steep = left.index_select(0, at).view_as(value), rise.index_select(0, at).view_as(value)
    return ((piece - pieces // 2 + (value - start) / steep) * (2 * bound / pieces)).to(y.dtype)


def _check(x: Tensor, raw_slopes: Tensor, bound: float, where: str) -> None:
    check_scores(x, None, where, least=0)
    if not isinstance(raw_slopes, Tensor) or not raw_slopes.is_floating_point():
        given = raw_slopes.dtype if isinstance(raw_slopes, Tensor) else type(raw_slopes).__name__
        raise TypeError(f"{where}: raw_slopes must be a floating-point tensor, got {given}")
    _check_pieces(raw_slopes.shape, where)
    check_number(bound, POSITIVE, "bound", where)


def _check_pieces(shape: tuple[int, ...], where: str) -> None:
    if len(shape) != 1 or not 2 <= shape[0] <= MOST or shape[0] % 2:
        raise ValueError(
            f"{where}: the slopes must be one dimension of an even number from 2 to {MOST}, so that 0 is a knot; "
            f"got shape {tuple(shape)}"
        )


class PLIF(nn.Module):
    """:func:`plif` as a module, with slopes to learn; at the start it is the identity.

    Args:
        knots: the number of pieces, even.
        bound: half the width of the interval that they cover.

    Example:
        >>> import torch, parsimax
        >>> f = parsimax.PLIF(knots=1000)
        >>> f
        PLIF(knots=1000, bound=20)
        >>> f(torch.tensor([-1.5, 0.0, 100.0])).tolist()
        [-1.5, 0.0, 100.0]
    """

    def __init__(self, knots: int = 100_000, bound: float = 20.0) -> None:
        super().__init__()
        knots = check_count(knots, "knots", type(self).__name__)
        _check_pieces((knots,), type(self).__name__)
        check_number(bound, POSITIVE, "bound", type(self).__name__)
        self.bound = float(bound)
        self.raw_slopes = nn.Parameter(torch.full((knots,), ONE))

    @property
    def slopes(self) -> Tensor:
        """Of each piece, from left to right."""
        return F.softplus(self.raw_slopes)

    def forward(self, x: Tensor) -> Tensor:
        return plif(x, self.raw_slopes, self.bound)

    def inverse(self, y: Tensor) -> Tensor:
        """:func:`plif_inverse` of ``y``."""
        return plif_inverse(y, self.raw_slopes, self.bound)

    def pieces(self, reach: float) -> Pieces:
        """What the kernels of the losses read; the same for scores of any size."""
        return plif_pieces(self.raw_slopes, self.bound)

    def extra_repr(self) -> str:
        return f"knots={self.raw_slopes.shape[0]}, bound={self.bound:g}"
