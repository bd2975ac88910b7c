"""Entmax as a module, with an α that can be learned and cannot leave its interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .entmax import DOMAIN, entmax
from .modules import MappingModule, hold, readable


class BoundedParameter(nn.Module):
    """A learned number that stays in [low, high] whatever the optimiser does: low + (high - low) sigmoid(raw).

    With ``high`` infinite it is low + softplus(raw). ``raw`` is what is trained and saved; of a single number, whose
    shape is (), it has shape (1,), since FSDP shards no scalars.
    """

    def __init__(
        self, start: float | Tensor, interval: tuple[float, float], shape: tuple[int, ...], where: str
    ) -> None:
        super().__init__()
        low, high = interval
        if not (math.isfinite(low) and 0 <= low < high):
            raise ValueError(f"{where}: interval must be (low, high) with 0 <= low < high, low finite, got {interval}")
        start = torch.as_tensor(start, dtype=torch.get_default_dtype())
        if not start.is_meta and not ((start > low) & (start < high)).all():
            raise ValueError(
                f"{where}: a learned value must start strictly inside of {interval}, where it has a gradient, "
                f"got {start.min().item():g} to {start.max().item():g}"
            )
        try:
            start = start.expand(shape)
        except RuntimeError:
            raise ValueError(f"{where}: a start of shape {tuple(start.shape)} does not fit shape={shape}") from None
        self.low, self.high = float(low), float(high)
        wide = start.double()
        above = wide - low
        # the inverses of sigmoid and softplus, the latter without overflow
        raw = (above / (high - wide)).log() if math.isfinite(high) else above + (-(-above).expm1()).log()
        self.shape = tuple(start.shape)
        self.raw = nn.Parameter(raw.to(start.dtype).reshape(self.shape or (1,)).contiguous())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """A model that goes to half precision leaves this in float32: a step of α is smaller than theirs."""
        before = self.raw.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.raw.dtype in (torch.bfloat16, torch.float16) and before.dtype in (torch.float32, torch.float64):
            with torch.no_grad():
                self.raw.data = before.to(self.raw.device, torch.float32)
        return self

    def forward(self) -> Tensor:
        if math.isinf(self.high):
            value = self.low + F.softplus(self.raw)
        else:  # the sum can round past the end; a value outside of the interval must not exist
            value = (self.low + (self.high - self.low) * torch.sigmoid(self.raw)).clamp(self.low, self.high)
        return value if self.shape else value.sum()  # not reshape, which a sharded tensor refuses

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}raw")
        if saved is not None and saved.dim() == 0 and not self.shape:  # as a single number was saved at first
            state_dict[f"{prefix}raw"] = saved.reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def shape_of(alpha: float | Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a learned α: as given, or that of its start."""
    return tuple(shape) or (tuple(alpha.shape) if isinstance(alpha, Tensor) else ())


class Entmax(MappingModule):
    """:func:`entmax` as a module, with a fixed or a learned α.

    Args:
        alpha: the value, or where learning starts; a float or a tensor.
        dim: the dimension that sums to 1.
        learnable: train α by gradient, held inside of ``interval`` by construction.
        shape: the shape of a learned α, () for a single one: (H, 1, 1) is one per head of scores (B, H, L, S).
        interval: the ends of a learned α; the start must lie strictly between them.

    The property ``alpha`` is the value in use. The ``state_dict`` holds ``learned_alpha.raw`` for a learned α and
    ``fixed_alpha`` for a fixed tensor.

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

    function = entmax
    fixed_alpha: float | Tensor

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        dim: int = -1,
        learnable: bool = False,
        shape: tuple[int, ...] = (),
        interval: tuple[float, float] = (1, 2),
    ) -> None:
        super().__init__(dim)
        self.learned_alpha: BoundedParameter | None = None
        if learnable:
            self.learned_alpha = BoundedParameter(alpha, interval, shape_of(alpha, shape), "Entmax")
        elif shape:
            raise ValueError(f"Entmax: shape={shape} is that of a learned alpha; pass learnable=True or a tensor alpha")
        else:
            hold(self, "fixed_alpha", alpha, DOMAIN)

    @property
    def alpha(self) -> float | Tensor:
        """The α in use: a float, or a tensor that carries the gradient."""
        return self.fixed_alpha if self.learned_alpha is None else self.learned_alpha()

    def settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha}

    def extra_repr(self) -> str:
        if self.learned_alpha is None:
            return super().extra_repr()
        value = self.learned_alpha().detach()
        if not readable(value):
            return f"alpha learned, shape={tuple(value.shape)}, dim={self.dim}"
        low, high = value.min().item(), value.max().item()
        shown = f"{low:g}" if f"{low:g}" == f"{high:g}" else f"{low:g}…{high:g}"
        interval = f"({self.learned_alpha.low:g}, {self.learned_alpha.high:g})"
        return f"alpha={shown} learned, shape={tuple(value.shape)}, interval={interval}, dim={self.dim}"

    def __repr__(self) -> str:  # one line: the parameter that holds α is no child worth a line of its own
        return f"{type(self).__name__}({self.extra_repr()})"
