"""What an observer of attention gets to see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..engine.modes import in_backward
from .heads import rows_of
from .scaling import count_keys

if TYPE_CHECKING:
    from .core import AttentionCore

BLOCK = 1 << 20  # bytes of weights at a time


@dataclass
class Observation:
    """One forward pass of a core, from which the weights can be computed again, a block of queries at a time.

    Example:
        >>> import torch, parsimax
        >>> core = parsimax.AttentionCore(8, "sparsemax")
        >>> core.observers.append(lambda seen: print(seen.queries, [weights.shape for _, weights in seen.blocks()]))
        >>> out = core(*torch.randn(3, 2, 8, 5, 16))
        5 [torch.Size([2, 8, 5, 5])]
    """

    core: AttentionCore
    _query: Tensor = field(repr=False)
    _key: Tensor = field(repr=False)
    _options: dict[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        lead = torch.broadcast_shapes(self._query.shape[:-3], self._key.shape[:-3])
        self.batch, self.heads, self.queries = int(lead.numel()), self._query.shape[-3], self._query.shape[-2]
        self.keys = self._key.shape[-2]
        alpha = self.core.alpha
        self.alpha = None if alpha is None else alpha.detach().cpu()
        self.again = in_backward()  # activation checkpointing runs the forward a second time

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """(The first query, the weights (batch, heads, rows, keys) before dropout), block after block of queries."""
        size = max(1, BLOCK // max(1, 4 * self.batch * self.heads * self.keys))
        nothing = self._key[..., :0]
        for start in range(0, self.queries, size):
            rows = slice(start, min(start + size, self.queries))
            with torch.no_grad():
                options = {**self._options, **self._mask(rows), "return_weights": True}
                weights = self.core._attend(self._query[..., rows, :], self._key, nothing, options)[1]
            yield start, weights

    def visible(self) -> Tensor:
        """How many keys each query may attend to, (batch, heads or 1, queries), int32, on the CPU."""
        mask, causal = self._options["attn_mask"], self._options["is_causal"]
        counts = count_keys(self._query, self.keys, mask, causal).squeeze(-1).int().cpu()
        counts = counts.view(*[1] * (3 - counts.dim()), *counts.shape)
        return counts.expand(self.batch, counts.shape[-2], self.queries)

    def padding(self) -> Tensor | None:
        """(batch, keys), on the CPU: False for keys that a mask of the shape (batch, 1, 1, keys) hides from queries.

        None for any other mask, and for a single query, where such a mask may be of other use.
        """
        mask = self._options["attn_mask"]
        if mask is None or tuple(mask.shape) != (self.batch, 1, 1, self.keys) or self.queries == 1:
            return None
        return count_keys(self._query, 1, mask.transpose(-1, -3), False).view(self.batch, self.keys).cpu() > 0

    def _mask(self, rows: slice) -> dict[str, Any]:
        if self._options["is_causal"]:
            query = torch.arange(rows.start, rows.stop, device=self._key.device).view(-1, 1)
            return {"attn_mask": torch.arange(self.keys, device=self._key.device) <= query, "is_causal": False}
        mask = self._options["attn_mask"]
        return {"attn_mask": mask if mask is None else rows_of(mask, rows)}
