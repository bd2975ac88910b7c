"""Bit vectors, with or without limits on the number of bits that are on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .structure import MANY, Problem, Structure, split_at_the_best

WORD = 64


class Bits(Structure):
    r"""Vectors of bits, of which at least and at most so many may be on.

    Scores are (…, bits), and a structure is a vector of 0 and 1 in their dtype. As in the papers a bit has two parts,
    on with its score t and off with 0, so that without limits SparseMAP turns a bit on with probability
    :math:`\operatorname{clip}((1 + t)/2, 0, 1)`.

    Args:
        at_least: how many bits must be on.
        at_most: how many may be on, a budget; None for all of them. Equal to ``at_least``: exactly so many.

    Example:
        >>> import torch, parsimax
        >>> found = parsimax.sparsemap(torch.tensor([0.5, -0.2, 2.0]), parsimax.structured.Bits())
        >>> found.structures, found.probabilities, found.marginals
        (tensor([[0., 0., 1.], [1., 0., 1.], [1., 1., 1.]]),
         tensor([0.2500, 0.3500, 0.4000]), tensor([0.7500, 0.4000, 1.0000]))

    Reference: Correia, Niculae, Aziz and Martins, Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, NeurIPS 2020.
    """

    form = "(…, bits)"
    kind = 0
    gap_scale = 2.0
    separable = True

    def __init__(self, at_least: int = 0, at_most: int | None = None) -> None:
        for name, value in (("at_least", at_least), ("at_most", at_most)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ValueError(f"Bits: {name} is a whole number of bits, 0 or more, got {value!r}")
        if at_most is not None and at_most < at_least:
            raise ValueError(f"Bits: at_most={at_most} is below at_least={at_least}")
        self.at_least, self.at_most = at_least, at_most

    @property
    def limits(self) -> tuple[int, int]:  # type: ignore[override]
        return self.at_least, MANY if self.at_most is None else min(self.at_most, MANY)

    @property
    def rules(self) -> tuple[str, ...]:  # type: ignore[override]
        free = self.at_least == 0 and self.at_most is None
        return ("staircase", "systematic", "active-set") if free else ("systematic", "active-set")

    def check(self, unary: Tensor, where: str) -> None:
        if self.at_least > unary.shape[-1]:
            raise ValueError(f"{where}: {self} asks for more bits than the scores have: {tuple(unary.shape)}")

    def bound(self, problem: Problem) -> int:
        (low, high), n, total = self.limits, problem.unary.shape[1], 0
        for on in range(low, min(high, n) + 1):
            total += math.comb(n, min(on, n - on, WORD))  # 64 of 128 bits are more than MANY already
            if total >= MANY:
                return MANY
        return total

    def penalised(self, unary: Tensor) -> Tensor:
        return (1 + unary) / 2

    def unpenalised(self, unary: Tensor) -> Tensor:
        return 2 * unary - 1

    def best(self, unary: Tensor, extra: Tensor | None) -> Tensor | None:
        low, high = self.limits
        on = unary > 0
        count = int(on.sum())
        if low <= count <= high:
            return on.int()
        order = unary.sort(descending=True, stable=True).indices[: high if count > high else low]
        if bool((unary[order] == -math.inf).any()):
            return None
        return torch.zeros_like(on).index_fill(0, order, True).int()

    def incidence(self, codes: Tensor, problem: Problem) -> Tensor:
        return self.opened(codes, problem).double()

    def opened(self, codes: Tensor, problem: Problem) -> Tensor:
        """The kernels have 64 bits in a word; the reference has them one by one."""
        if codes.dtype != torch.int64:
            return codes
        bytes_ = codes.contiguous().view(torch.uint8)  # the lowest first, as on every machine that torch runs on
        places = torch.arange(8, dtype=torch.uint8, device=codes.device)
        return ((bytes_.unsqueeze(-1) >> places) & 1).flatten(-2)[..., : problem.unary.shape[1]]

    def score(self, codes: Tensor, example: Tensor, problem: Problem, unary: Tensor) -> Tensor:
        allowed = torch.where(unary > -math.inf, unary, 0.0)  # what is forbidden is in no code
        score: Tensor = torch.linalg.vecdot(self.incidence(codes, problem), allowed.index_select(0, example))
        return score

    def decode(self, codes: Tensor, problem: Problem) -> Tensor:
        return self.opened(codes, problem).to(problem.dtype)

    def encode(self, structures: Tensor) -> Tensor:
        return structures.int()

    def holds(self, codes: Tensor) -> Tensor:
        low, high = self.limits
        on = codes.sum(-1)
        return (on >= low) & (on <= high)

    @staticmethod
    def pack(codes: Tensor) -> Tensor:
        """Words of 64 bits from bits one by one."""
        padded = torch.nn.functional.pad(codes.long(), (0, -codes.shape[1] % WORD)).unflatten(1, (-1, WORD))
        words: Tensor = (padded << torch.arange(WORD, device=codes.device)).sum(-1)
        return words

    def kbest(self, unary: Tensor, extra: Tensor | None, k: int) -> list[Tensor]:
        low, high = self.limits

        def best(fixed: int, code: Tensor, forbidden: list[int]) -> tuple[float, Tensor] | None:
            choices = [bit for bit in (0, 1) if bit not in forbidden]
            start = code[:fixed]
            if forbidden:
                if not choices:
                    return None
                start = torch.cat([start, torch.tensor(choices, dtype=torch.int32)])
            on = int(start.sum())
            if on > high or bool((unary[: len(start)][start > 0] == -math.inf).any()):
                return None
            rest = unary[len(start) :]
            if max(0, low - on) > len(rest):
                return None
            tail = Bits(max(0, low - on), high - on).best(rest, None)
            if tail is None:
                return None
            whole = torch.cat([start, tail])
            return float(unary[whole > 0].sum()), whole

        return split_at_the_best(unary.shape[0], k, best)

    def __repr__(self) -> str:
        given: dict[str, Any] = {"at_least": self.at_least or None, "at_most": self.at_most}
        return f"Bits({', '.join(f'{name}={value}' for name, value in given.items() if value is not None)})"
