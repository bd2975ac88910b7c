"""Assignments and dependency trees, with their oracles in plain Python."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .structure import LabelStructure, Problem, Scores


class Assignment(LabelStructure):
    """A column of its own for each row: permutations if there are as many rows as columns.

    Scores are (…, rows, columns) with rows ≤ columns; a structure has the column of each row.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[1.0, 0.5], [0.2, 0.0]])
        >>> found = parsimax.sparsemap(scores, parsimax.structured.Assignment())
        >>> found.structures, found.probabilities
        (tensor([[0, 1], [1, 0]]), tensor([0.5750, 0.4250]))
    """

    form = "(…, rows, columns)"
    kind = 3

    def check(self, unary: Tensor, where: str) -> None:
        if not 0 < unary.shape[-2] <= unary.shape[-1]:
            raise ValueError(
                f"{where}: {self} takes scores (…, rows, columns) with at least one row and no more rows than columns, "
                f"got {tuple(unary.shape)}"
            )

    def bound(self, problem: Problem) -> int:
        return math.perm(*reversed(problem.unary.shape[1:]))

    def best(self, unary: Tensor, extra: Tensor | None) -> Tensor | None:
        found = assign(unary.tolist())
        return None if found is None else torch.tensor(found, dtype=torch.int32)

    def holds(self, codes: Tensor) -> Tensor:
        return (codes.sort(-1).values.diff(dim=-1) > 0).all(-1)


def assign(scores: list[list[float]]) -> list[int] | None:
    """The best assignment by shortest augmenting paths; columns count from 1, and 0 is the row that looks for one."""
    columns = len(scores[0])
    potential, column_potential = [0.0] * len(scores), [0.0] * (columns + 1)
    row_of = [-1] * (columns + 1)
    for row in range(len(scores)):
        row_of[0], at = row, 0
        distance, way, used = [math.inf] * (columns + 1), [0] * (columns + 1), [False] * (columns + 1)
        while row_of[at] >= 0:
            used[at] = True
            i = row_of[at]
            for j in range(1, columns + 1):
                cost = -scores[i][j - 1] - potential[i] - column_potential[j]
                if not used[j] and cost < distance[j]:
                    distance[j], way[j] = cost, at
            free = [j for j in range(1, columns + 1) if not used[j] and distance[j] < math.inf]
            if not free:
                return None
            following = min(free, key=distance.__getitem__)
            least = distance[following]
            for j in range(columns + 1):
                if used[j]:
                    potential[row_of[j]] += least
                    column_potential[j] -= least
                else:
                    distance[j] -= least
            at = following
        while at:
            row_of[at] = row_of[way[at]]
            at = way[at]
    found = [0] * len(scores)
    for j in range(1, columns + 1):
        if row_of[j] >= 0:
            found[row_of[j]] = j - 1
    return found


class Tree(LabelStructure):
    """Dependency trees: a head for each word such that all hang from the root.

    Scores are (…, words, words + 1): row i scores the heads of word i, where column 0 is the root and column j + 1 is
    word j. The score of a word as its own head is never read. A structure has the head of each word, 0 for the root.

    Args:
        single_root: whether exactly one word hangs from the root itself.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[1.0, 0.0, 0.6], [0.9, 0.8, 0.0]])
        >>> found = parsimax.sparsemap(scores, parsimax.structured.Tree(single_root=True))
        >>> found.structures, found.probabilities
        (tensor([[0, 1], [2, 0]]), tensor([0.5750, 0.4250]))
    """

    form = "(…, words, words + 1)"
    kind = 4

    def __init__(self, single_root: bool = False) -> None:
        if not isinstance(single_root, bool):
            raise TypeError(f"Tree: single_root is True or False, got {single_root!r}")
        self.single_root = single_root
        self.limits = (int(single_root), 0)

    def problem(self, scores: Scores, where: str) -> Problem:
        if isinstance(scores, Tensor) and scores.dim() >= 2 and scores.shape[-1] == scores.shape[-2] + 1:
            own = torch.eye(scores.shape[-2], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(torch.nn.functional.pad(own, (1, 0)), -math.inf)
        return super().problem(scores, where)

    def check(self, unary: Tensor, where: str) -> None:
        words, heads = unary.shape[-2:]
        if not words or heads != words + 1:
            raise ValueError(
                f"{where}: {self} takes scores (…, words, words + 1), the root first, got {tuple(unary.shape)}"
            )

    def bound(self, problem: Problem) -> int:
        words = problem.unary.shape[1]
        count: int = (words if self.single_root else words + 1) ** (words - 1)
        return count

    def best(self, unary: Tensor, extra: Tensor | None) -> Tensor | None:
        scores = unary.clone()
        if self.single_root:  # more than any tree can win by a second word under the root
            scores[:, 0] -= 1 + 2 * len(scores) * float(torch.where(scores.isfinite(), scores.abs(), 0).max())
        heads = arborescence([[-math.inf] * scores.shape[1], *scores.tolist()])
        if heads is None or (self.single_root and heads.count(0) > 2):  # the root's own entry is 0 too
            return None
        return torch.tensor(heads[1:], dtype=torch.int32)

    def holds(self, codes: Tensor) -> Tensor:
        heads = torch.nn.functional.pad(codes.long(), (1, 0))  # the root is its own head
        at = heads
        for _ in range(codes.shape[1]):
            at = heads.gather(1, at)
        rooted = (at == 0).all(-1)
        return rooted & ((codes == 0).sum(-1) == 1) if self.single_root else rooted

    def __repr__(self) -> str:
        return f"Tree(single_root={self.single_root})"


def arborescence(scores: list[list[float]]) -> list[int] | None:
    """The head of every node in the best tree from node 0, by Chu–Liu/Edmonds; ``scores[node][head]``."""
    head = [0] + [max(range(len(row)), key=row.__getitem__) for row in scores[1:]]
    if any(scores[node][head[node]] == -math.inf for node in range(1, len(head))):
        return None
    cycle = find_cycle(head)
    if not cycle:
        return head
    kept = [node for node in range(len(head)) if node not in cycle]
    # The cycle becomes the last node; entering it at a node costs the edge of the cycle into that node.
    enter = [max(cycle, key=lambda v, a=a: scores[v][a] - scores[v][head[v]]) for a in kept]  # type: ignore[misc]
    leave = [max(cycle, key=lambda v, a=a: scores[a][v]) for a in kept]  # type: ignore[misc]
    smaller = [[scores[a][b] for b in kept] + [scores[a][v]] for a, v in zip(kept, leave, strict=True)]
    smaller.append([scores[v][a] - scores[v][head[v]] for a, v in zip(kept, enter, strict=True)] + [-math.inf])
    outer = arborescence(smaller)
    if outer is None:
        return None
    for at, node in enumerate(kept[1:], 1):
        head[node] = leave[at] if outer[at] == len(kept) else kept[outer[at]]
    head[enter[outer[-1]]] = kept[outer[-1]]
    return head


def find_cycle(head: list[int]) -> list[int]:
    for start in range(1, len(head)):
        at, path = start, []
        while at and at not in path:
            path.append(at)
            at = head[at]
        if at:
            return path[path.index(at) :]
    return []
