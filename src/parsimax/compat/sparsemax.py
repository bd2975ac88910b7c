"""The package ``sparsemax`` 0.1.9, which is one module.

Example:
    >>> import torch
    >>> from parsimax.compat.sparsemax import Sparsemax
    >>> Sparsemax(dim=-1)(torch.tensor([[1.0, 0.5, -1.0]]))
    tensor([[0.7500, 0.2500, 0.0000]])
"""

from __future__ import annotations

from torch import Tensor, nn

from ..mappings import sparsemax

__all__ = ["Sparsemax"]


class Sparsemax(nn.Module):
    """:func:`parsimax.sparsemax` as a module."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return sparsemax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
