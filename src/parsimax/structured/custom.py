"""Structures of the user, given as an oracle in Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .structure import Problem, Scores, Structure, _kind_of, _problem, _tensors

Vertex = Tensor | tuple[Tensor, Tensor]
TIED = 1e-9  # sums of the same scores in another order


def _copies(unary: Tensor, extra: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
    """What an oracle gets: it may write there."""
    return unary.clone() if extra is None else (unary.clone(), extra.clone())


class Custom(Structure):
    """Any structures whose best one you can find.

    A structure is the vector of its parts: 1 where a part is in it and 0 where not, in the shape of the scores of one
    item. SparseMAP needs nothing but the best structure under any scores. The ``gap`` is relative to the oracle: it
    proves that no structure that the oracle would return is better, so that one that misses the best can end with a gap
    of 0 and a wrong answer.

    Args:
        oracle: ``oracle(scores)`` → the best structure of one item under these float64 scores, in their shape. If the
            scores are a tuple (parts, extra parts), it gets one and returns one; the penalty is on the first alone. A
            part of score −inf is forbidden; None says that nothing is allowed.
        dims: how many dimensions the scores of one item have.
        extra_dims: how many the extra parts have, if there are any; only a :class:`FactorGraph` has to know.
        kbest: ``kbest(scores, k)`` → the k best structures, best first, or fewer if there are not so many. Only
            :func:`topk` needs it.

    Example:
        >>> import torch, parsimax
        >>> def run_of_ones(scores):  # the best interval
        ...     n = len(scores)
        ...     spans = [(i, j) for i in range(n) for j in range(i + 1, n + 1)]
        ...     first, last = max(spans, key=lambda span: float(scores[span[0] : span[1]].sum()))
        ...     return torch.zeros(n).index_fill(0, torch.arange(first, last), 1)
        >>> found = parsimax.sparsemap(torch.tensor([0.9, -0.6, 0.8]), parsimax.structured.Custom(run_of_ones))
        >>> found.structures, found.probabilities
        (tensor([[1., 0., 0.], [0., 0., 1.]]), tensor([0.5500, 0.4500]))
    """

    form = "of your own shape"

    def __init__(
        self,
        oracle: Callable[[Any], Vertex | None],
        *,
        dims: int = 1,
        extra_dims: int | None = None,
        kbest: Callable[[Any, int], Sequence[Vertex]] | None = None,
    ) -> None:
        if not callable(oracle) or not (kbest is None or callable(kbest)):
            raise TypeError("Custom: oracle, and kbest if there is one, must be functions of the scores of one item")
        if not isinstance(dims, int) or dims < 1:
            raise ValueError(f"Custom: the scores of one item have 1 or more dimensions, got dims={dims!r}")
        if extra_dims is not None and (not isinstance(extra_dims, int) or extra_dims < 1):
            raise ValueError(
                f"Custom: extra parts have 1 or more dimensions, None if there are none, got {extra_dims!r}"
            )
        self.oracle, self.find_kbest, self.extra_dims = oracle, kbest, extra_dims
        self.dims = dims  # type: ignore[misc]

    def problem(self, scores: Scores, where: str) -> Problem:
        if isinstance(scores, Tensor):
            return super().problem(scores, where)
        if not isinstance(scores, tuple | list) or len(scores) != 2:
            raise TypeError(f"{where}: scores are a tensor or a tuple of two, got {_kind_of(scores)}")
        unary, extra = _tensors(scores, where)
        batch = unary.shape[: unary.dim() - self.dims]
        if tuple(extra.shape[: len(batch)]) != tuple(batch):
            raise ValueError(
                f"{where}: the extra scores must begin with the dimensions {tuple(batch)} of the items, got "
                f"{tuple(extra.shape)}"
            )
        return _problem(self, unary, extra.reshape(math.prod(batch), *extra.shape[len(batch) :]), where)

    def best(self, unary: Tensor, extra: Tensor | None) -> Tensor | None:
        found = self.oracle(_copies(unary, extra))
        return None if found is None else self.code_of(found, unary, extra)

    def kbest(self, unary: Tensor, extra: Tensor | None, k: int) -> list[Tensor]:
        assert self.find_kbest is not None
        given = self.find_kbest(_copies(unary, extra), k)
        if not isinstance(given, Iterable):
            raise ValueError(f"kbest returned {given!r}; it must return a list of structures, empty if there is none")
        found = list(given)
        if len(found) > k:
            raise ValueError(f"kbest returned {len(found)} structures where {k} were asked for; it may return fewer")
        codes = [self.code_of(vertex, unary, extra) for vertex in found]
        seen: dict[tuple[int, ...], int] = {}
        for at, code in enumerate(codes):
            if (first := seen.setdefault(tuple(code.tolist()), at)) != at:
                raise ValueError(
                    f"kbest returned {code.tolist()} twice, as numbers {first} and {at}; each may come once"
                )
        flat = torch.cat([each.flatten() for each in (unary, extra) if each is not None])
        values = [float(flat[code > 0].sum()) for code in codes]
        for at, (value, following) in enumerate(itertools.pairwise(values)):
            if following > value + TIED * max(1.0, abs(value)):
                raise ValueError(
                    f"kbest returned scores of {value:g} and then {following:g}, as number {at + 1}; the "
                    "best come first"
                )
        return codes

    def code_of_target(self, target: Tensor, extra: Tensor | None) -> Tensor:
        """The structure with these parts, the best if it has extra ones: what wins when nothing but they count."""
        lead = 1.0 if extra is None else 1 + 2 * float(torch.where(extra.isfinite(), extra.abs(), 0.0).sum())
        code = self.best(lead * (2 * target.double() - 1), extra)
        if code is None or not torch.equal(code[: target.numel()], target.flatten().to(torch.uint8)):
            best = "nothing" if code is None else code[: target.numel()].tolist()
            raise ValueError(
                f"a target is one of the structures of {self}, got {target.flatten().tolist()}; under scores of "
                f"{lead:g} for its parts and {-lead:g} for all others the oracle returned {best}"
            )
        return code

    @staticmethod
    def code_of(vertex: Vertex, unary: Tensor, extra: Tensor | None) -> Tensor:
        """One row of 0 and 1; raises if the oracle's answer is none."""
        given = tuple(vertex) if isinstance(vertex, tuple | list) else (vertex,)
        if not all(isinstance(each, Tensor) for each in given):
            raise ValueError(
                f"the oracle returned {vertex!r}; a structure is a tensor, or a tuple of two with extra parts"
            )
        wanted = (unary,) if extra is None else (unary, extra)
        shapes, expected = [tuple(each.shape) for each in given], [tuple(each.shape) for each in wanted]
        if shapes != expected:
            raise ValueError(f"the oracle returned a structure of shape {shapes}, the scores have {expected}")
        code = torch.cat([each.detach().flatten().double() for each in given])
        if not bool(((code == 0) | (code == 1)).all()):
            raise ValueError(f"the oracle returned {code.tolist()}; a structure has 1 for the parts in it, else 0")
        chosen = torch.cat([each.flatten() for each in wanted])[code > 0]
        if bool((chosen == -math.inf).any()):
            raise ValueError("the oracle returned a structure with a forbidden part, one of score -inf; None says none")
        return code.to(torch.uint8)

    def incidence(self, codes: Tensor, problem: Problem) -> Tensor:
        return codes[:, : math.prod(problem.unary.shape[1:])].double()

    def score(self, codes: Tensor, example: Tensor, problem: Problem, unary: Tensor) -> Tensor:
        flat = unary.flatten(1) if problem.extra is None else torch.cat([unary.flatten(1), problem.extra.flatten(1)], 1)
        return torch.where(codes > 0, flat[example], 0.0).sum(-1)

    def score_of_parts(self, codes: Tensor, example: Tensor, problem: Problem) -> Tensor:
        return torch.where(self.incidence(codes, problem) > 0, problem.unary.flatten(1)[example], 0.0).sum(-1)

    def decode(self, codes: Tensor, problem: Problem) -> Tensor:
        parts = codes[:, : math.prod(problem.unary.shape[1:])]
        return parts.reshape(len(codes), *problem.unary.shape[1:]).to(problem.dtype)

    def encode(self, structures: Tensor) -> Tensor:
        return structures.flatten(1).to(torch.uint8)

    def __repr__(self) -> str:
        return f"Custom({getattr(self.oracle, '__name__', self.oracle)})"
