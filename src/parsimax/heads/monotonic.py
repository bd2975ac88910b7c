"""A monotonic net: one hidden layer of sigmoids whose weights cannot be negative."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..engine.arguments import POSITIVE, check_count, check_number, check_scores
from ..engine.fused import aliases
from ..engine.modes import derivative_is_observed, is_plain, kernels_serve
from ..engine.precision import in_float64, work_dtype
from .fused_pointwise import pieces_by_kernel
from .pieces import Pieces, monotonic_pieces, steps_of

STEPS = 200  # of the search for the inverse: more than halving an interval of doubles can take
HALVINGS = 80  # where they cannot end by themselves: near enough for the steps of Newton that follow
Weights = tuple[Tensor, Tensor, Tensor]


def monotonic(x: Tensor, raw_scale: Tensor, shift: Tensor, raw_height: Tensor) -> Tensor:
    r"""An increasing function of each number: a sum of K sigmoids with positive weights.

    .. math:: f(x) = \sum_{i=1}^K v_i \, \sigma(u_i x + b_i), \qquad u = \log(1 + e^{\text{raw\_scale}}), \quad
              v = \log(1 + e^{\text{raw\_height}})

    Args:
        x: any shape, floating point.
        raw_scale: (K), u is its softplus.
        shift: (K), b.
        raw_height: (K), v is its softplus.

    Returns:
        f(x) in (0, Σ v), of the shape and dtype of ``x``. Differentiable by all.

    Example:
        >>> import torch, parsimax
        >>> one = torch.tensor(1.0).expm1().log().view(1)  # its softplus is 1
        >>> parsimax.monotonic(torch.tensor([-1.0, 0.0, 1.0]), one, torch.zeros(1), one)
        tensor([0.2689, 0.5000, 0.7311])

    :class:`Monotonic` is the module, :func:`monotonic_inverse` the way back. Unlike :func:`plif` it is bounded. Many
    numbers of float32 are taken from a table of cubics, made anew at each call and as near as rounding; else it costs K
    sigmoids a number.

    Reference: Daniels and Velikova, Monotone and Partially Monotone Neural Networks, 2010; as an output layer: Ganea
    et al., ICML 2019.
    """
    weights = (raw_scale, shift, raw_height)
    _check(x, weights, "monotonic")
    plain = is_plain(x, *weights)
    reach = most(x) if plain else math.inf
    if kernels_serve("monotonic", x, *weights, pieces=steps_of(weights, reach), size=x.numel()):
        return pieces_by_kernel(x, monotonic_pieces(weights, reach), weights, _formula)
    if not plain:
        return _formula(x, *weights)
    out: Tensor = _Monotonic.apply(x, *weights)  # type: ignore[no-untyped-call]
    return out


def most(x: Tensor) -> float:
    """The largest number in size; not finite if any is not."""
    return x.detach().abs().max().item() if x.numel() else math.inf


def _formula(x: Tensor, raw_scale: Tensor, shift: Tensor, raw_height: Tensor) -> Tensor:
    """All K at once, for modes that look into it."""
    wide = torch.promote_types(x.dtype, torch.float32)
    u, b, v = (t.to(wide) for t in (F.softplus(raw_scale), shift, F.softplus(raw_height)))
    return ((x.to(wide).unsqueeze(-1) * u + b).sigmoid() * v).sum(-1).to(x.dtype)


class _Monotonic(torch.autograd.Function):
    """One sigmoid at a time: K of them never exist together."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        z, out = _wide(x), torch.zeros_like(_wide(x))
        for u, b, v in _units(weights):
            out += v * (z * u + b).sigmoid_()
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if derivative_is_observed(g):
            with torch.enable_grad():
                named = aliases((x, *weights), wanted)
                at = [t for t, w in zip(named, wanted, strict=True) if w]
                grads = iter(torch.autograd.grad(_formula(*named), at, g, create_graph=True, materialize_grads=True))
            return tuple(next(grads) if w else None for w in wanted)
        z, grad, work = _wide(x), _wide(g), work_dtype(x.device)
        by_x, by = torch.zeros_like(z), z.new_zeros(3, weights[0].shape[0], dtype=work)
        for i, (u, b, v) in enumerate(_units(tuple(weights))):
            s = (z * u + b).sigmoid_()
            by[2, i] = (grad * s).sum(dtype=work)
            s = s.mul_(1 - s).mul_(v)
            by_x += u * s
            s *= grad
            by[0, i], by[1, i] = (s * z).sum(dtype=work), s.sum(dtype=work)
        by[0] *= weights[0].to(work).sigmoid()
        by[2] *= weights[2].to(work).sigmoid()
        return (by_x * grad).to(x.dtype), *(b.to(w.dtype) for b, w in zip(by, weights, strict=True))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


@in_float64
def _units(weights: tuple[Tensor, ...]) -> list[tuple[float, float, float]]:
    u, b, v = F.softplus(weights[0].double()), weights[1].double(), F.softplus(weights[2].double())
    return list(zip(u.tolist(), b.tolist(), v.tolist(), strict=True))


@in_float64
def monotonic_inverse(y: Tensor, raw_scale: Tensor, shift: Tensor, raw_height: Tensor) -> Tensor:
    r"""The x at which :func:`monotonic` is y: -∞ for y ≤ 0, +∞ for y ≥ Σ v.

    .. math:: f(f^{-1}(y)) = y

    Args:
        y: any shape, floating point.
        raw_scale: (K), as in :func:`monotonic`.
        shift: (K).
        raw_height: (K).

    Returns:
        x, of the shape and dtype of ``y``; differentiable by all, up to three times.

    Example:
        >>> import torch, parsimax
        >>> one = torch.tensor(1.0).expm1().log().view(1)
        >>> parsimax.monotonic_inverse(torch.tensor([0.2689, 0.6225, 2.0]), one, torch.zeros(1), one)
        tensor([-1.0002,  0.5002,     inf])
    """
    weights = (raw_scale, shift, raw_height)
    _check(y, weights, "monotonic_inverse")
    value = y.double()
    double = tuple(w.double() for w in weights)
    total = F.softplus(double[2]).sum()
    with torch.no_grad():
        inner = (value > 0) & (value < total)
        root = _search(torch.where(inner, value, total / 2), double)
    # At the root a step of Newton moves nothing; one carries the first derivatives, two the second and third as well.
    x, aim = root, torch.where(inner, value, total.detach() / 2)
    for _ in range(2):
        x = x - (_formula(x, *double) - aim) / _slope(x, *double)
    x = torch.where(inner, x, torch.where(value <= 0, -math.inf, math.inf))
    return torch.where(value.isnan(), value, x).to(y.dtype)


def _slope(x: Tensor, raw_scale: Tensor, shift: Tensor, raw_height: Tensor) -> Tensor:
    u, v = F.softplus(raw_scale), F.softplus(raw_height)
    s = (x.unsqueeze(-1) * u + shift).sigmoid()
    return (s * (1 - s) * u * v).sum(-1)


def _search(value: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """By halving. Where |x| is the reach, |u x| - |b| is above the logit of y / Σ v for every unit, so y is between."""
    u, b, v = F.softplus(weights[0]), weights[1], F.softplus(weights[2])
    share = (value / v.sum()).clamp(1e-300, 1 - 1e-16)
    reach = ((share.log() - (-share).log1p()).abs() + b.abs().max() + 1) / u.min()
    low, high = -reach, reach
    ends = is_plain(value, *weights)  # who looks into it cannot look at values
    for _ in range(STEPS if ends else HALVINGS):
        middle = (low + high) / 2
        below = _formula(middle, *weights) < value
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        if ends and bool(((middle == low) & (middle == high) | (high - low <= 4e-16 * high.abs())).all()):
            break
    return (low + high) / 2


def _check(x: Tensor, weights: Weights, where: str) -> None:
    check_scores(x, None, where, least=0)
    for name, w in zip(("raw_scale", "shift", "raw_height"), weights, strict=True):
        if not isinstance(w, Tensor) or not w.is_floating_point():
            given = w.dtype if isinstance(w, Tensor) else type(w).__name__
            raise TypeError(f"{where}: {name} must be a floating-point tensor, got {given}")
        if w.dim() != 1 or w.shape != weights[0].shape or not w.shape[0]:
            shapes = ", ".join(str(tuple(t.shape)) for t in weights if isinstance(t, Tensor))
            raise ValueError(f"{where}: raw_scale, shift and raw_height must have one shape (K,), got {shapes}")


class Monotonic(nn.Module):
    """:func:`monotonic` as a module, with its weights to learn.

    At the start the sigmoids stand at equal distances over [-bound, bound], which makes it nearly x + bound there.

    Args:
        units: the number of sigmoids.
        bound: half the width of the interval that they are spread over.

    Example:
        >>> import torch, parsimax
        >>> f = parsimax.Monotonic(units=50)
        >>> f
        Monotonic(units=50)
        >>> bool((f(torch.linspace(-5, 5, 100)).diff() > 0).all())
        True
    """

    def __init__(self, units: int = 100, bound: float = 10.0) -> None:
        super().__init__()
        check_count(units, "units", "Monotonic")
        check_number(bound, POSITIVE, "bound", "Monotonic")
        one = math.log(math.e - 1)
        height = 2 * bound / units
        self.raw_scale = nn.Parameter(torch.full((units,), one))
        self.shift = nn.Parameter(-torch.linspace(-bound, bound, units))
        self.raw_height = nn.Parameter(torch.full((units,), height + math.log(-math.expm1(-height))))

    @property
    def weights(self) -> Weights:
        return self.raw_scale, self.shift, self.raw_height

    def forward(self, x: Tensor) -> Tensor:
        return monotonic(x, *self.weights)

    def inverse(self, y: Tensor) -> Tensor:
        """:func:`monotonic_inverse` of ``y``."""
        return monotonic_inverse(y, *self.weights)

    def pieces(self, reach: float) -> Pieces:
        """What the kernels of the losses read, for scores within ±reach."""
        return monotonic_pieces(self.weights, reach)

    def extra_repr(self) -> str:
        return f"units={self.shift.shape[0]}"
