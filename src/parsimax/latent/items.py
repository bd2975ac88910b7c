"""Which items of a batch a method samples for, and how its answers go back to all."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..structured import Structure
from ..structured.structure import Problem


class Items:
    """The items that allow something. Those that do not have loss 0 and no call; those with NaN or +inf are NaN."""

    def __init__(self, structure: Structure, problem: Problem, allowed: Tensor) -> None:
        self.structure, self.whole = structure, problem
        self.rows = allowed.nonzero()[:, 0]
        self.every = len(self.rows) == problem.items  # the common case, which needs no copies
        self.clean = ~problem.broken[self.rows]
        self.spoiled = bool(problem.broken.any())
        unary, extra = problem.unary, problem.extra
        if not self.every:
            unary = unary[self.rows]
            extra = extra if extra is None or len(extra) != problem.items else extra[self.rows]
        none = torch.zeros_like(self.clean)  # the scores of broken items are zeros, which any solver takes
        self.part = replace(problem, unary=unary, extra=extra, batch=(len(self.rows),), broken=none)

    def local(self, times: int) -> Tensor:
        """(rows · times,): the place of each pair's item among the rows."""
        return torch.arange(len(self.rows), device=self.rows.device).repeat_interleave(times)

    def back(self, values: Tensor) -> Tensor:
        """(rows,) → (batch,), zeros for items without an allowed structure and NaN for broken ones."""
        out = values if self.every else values.new_zeros(self.whole.items).index_put((self.rows,), values)
        if self.spoiled and values.is_floating_point():
            out = out + self.whole.spoil.to(out)
        return out

    def summed(self, values: Tensor, row: Tensor) -> Tensor:
        """(pairs,) → (batch,) sums."""
        return self.back(values.new_zeros(len(self.rows)).index_add(0, row, values))
