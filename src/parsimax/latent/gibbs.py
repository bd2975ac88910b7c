"""The softmax over structures, for methods that sample: p(z) ∝ exp(score of z), with its normaliser."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..structured import Assignment, Bits, Chain, Custom, Dense, OneOf, OneOfEach, Structure, Tree
from ..structured.structure import Problem, Scores
from ..structured.topk import best_codes, score_matrix
from .items import Items

MOST = 4096  # structures that are listed where nothing quicker is known


class Gibbs:
    """Structures are *codes*, which are drawn unit by unit: ``conditional`` is all that a kind has to know for that."""

    def __init__(self, items: Items, scores: Scores) -> None:
        self.items, self.structure, self.part, self.scores = items, items.structure, items.part, scores
        self.log_z = self.normaliser(*self.parts())

    def parts(self) -> tuple[Tensor, ...]:
        return (self.part.unary,)

    def normaliser(self, *parts: Tensor) -> Tensor:
        """(rows,): log Σ exp(score), differentiable."""
        raise NotImplementedError

    def conditional(self, unit: int, row: Tensor, codes: Tensor) -> Tensor:
        """(pairs, choices): the probabilities of a unit of the code after those before it."""
        raise NotImplementedError

    def score(self, codes: Tensor, row: Tensor) -> Tensor:
        return self.structure.score(codes, row, self.part, self.part.unary)

    def log_prob(self, codes: Tensor, row: Tensor) -> Tensor:
        """(pairs,), exact and differentiable; ``row`` is the item of each code."""
        return self.score(codes, row) - self.log_z[row]

    def decode(self, codes: Tensor, row: Tensor) -> Tensor:
        return self.structure.decode(codes, self.part)

    def best(self, k: int) -> tuple[Tensor, Tensor]:
        """(rows, k, …) codes, the most probable first, and whether there are so many."""
        return best_codes(self.structure, self.part, k, self.scores)

    def entropy(self) -> Tensor:
        """(rows,): log Z less the expected score; the derivatives of log Z are the probabilities of the parts."""
        parts = self.parts()
        with torch.inference_mode(False), torch.enable_grad():
            given = [part if part.requires_grad else _leaf(part) for part in parts]
            found = self.normaliser(*given)
            shares = torch.autograd.grad(found.sum(), given, create_graph=True, allow_unused=True)
            for share, part in zip(shares, given, strict=True):
                if share is not None:
                    found = found - (share * torch.where(part > -math.inf, part, 0.0)).flatten(1).sum(1)
        return found if torch.is_grad_enabled() and any(part.requires_grad for part in parts) else found.detach()

    @torch.no_grad()
    def sample(self, times: int, without: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """(rows · times, …) codes; none of those that ``without`` has, as :meth:`best` gives them, if others are left.

        These are left out by their share of what a choice leads to, so that nothing has to be drawn twice.
        """
        row = self.items.local(times)
        units = self.part.unary.shape[1]
        codes = torch.zeros(len(row), units, dtype=torch.int32, device=row.device)
        if without is not None:
            others, there = without[0][row].long(), without[1][row]
            item, rank = there.nonzero(as_tuple=True)
            share = torch.zeros(there.shape, dtype=torch.float64, device=row.device)
            share[item, rank] = self.log_prob(without[0][row][item, rank], row[item]).exp()
        for unit in range(units):
            p = self.conditional(unit, row, codes)
            if without is not None:
                rest = p.scatter_add(1, others[:, :, unit], -share).clamp(min=0)
                rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, p)
            choice = torch.multinomial(p if without is None else rest, 1)
            codes[:, unit] = choice[:, 0].int()
            if without is not None:
                share = torch.where(others[:, :, unit] == choice, share / p.gather(1, choice), 0.0)
        return codes


class Listed(Gibbs):
    """All structures of each item in a list; a code is a place in it."""

    def __init__(self, items: Items, scores: Scores) -> None:
        structure, part = items.structure, items.part
        if isinstance(structure, OneOf):
            self.theta, self.codes = part.unary, None
        else:
            codes, there = best_codes(structure, part, MOST + 1, scores)
            count = max(1, int(there.sum(1).max())) if len(there) else 1
            if count > MOST:
                raise ValueError(f"{refusal(structure)}; SparseMAP, TopK and Gumbel take it")
            self.codes = codes[:, :count]
            self.theta = score_matrix(structure, part, self.codes, there[:, :count])
        super().__init__(items, scores)

    def normaliser(self, *parts: Tensor) -> Tensor:
        return logsumexp(self.theta)

    def score(self, codes: Tensor, row: Tensor) -> Tensor:
        return self.theta[row, codes]

    def decode(self, codes: Tensor, row: Tensor) -> Tensor:
        return codes if self.codes is None else self.structure.decode(self.codes[row, codes], self.part)

    def best(self, k: int) -> tuple[Tensor, Tensor]:
        value, place = self.theta.detach().topk(min(k, self.theta.shape[1]), dim=-1)
        return place, value > -math.inf

    def entropy(self) -> Tensor:
        return entropy(self.theta)

    @torch.no_grad()
    def sample(self, times: int, without: tuple[Tensor, Tensor] | None = None) -> Tensor:
        p = F.softmax(self.theta, -1)
        if without is not None:
            rest = p.scatter(1, without[0], 0.0)
            p = torch.where(rest.sum(1, keepdim=True) > 0, rest, p)
        return torch.multinomial(p, times, replacement=True).flatten() if len(p) else p.new_zeros(0, dtype=torch.long)


class Independent(Gibbs):
    """Bits without limits, and labels of independent variables."""

    def parts(self) -> tuple[Tensor, ...]:
        unary = self.part.unary
        return (torch.stack([torch.zeros_like(unary), unary], -1) if isinstance(self.structure, Bits) else unary,)

    def normaliser(self, *parts: Tensor) -> Tensor:
        return logsumexp(parts[0]).sum(-1)

    def conditional(self, unit: int, row: Tensor, codes: Tensor) -> Tensor:
        return F.softmax(self.parts()[0][:, unit], -1)[row]

    def entropy(self) -> Tensor:
        return entropy(self.parts()[0]).sum(-1)

    @torch.no_grad()
    def sample(self, times: int, without: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if without is not None or not self.part.unary.numel():
            return super().sample(times, without)
        p = F.softmax(self.parts()[0], -1)
        drawn = torch.multinomial(p.flatten(0, 1), times, replacement=True).view(*p.shape[:2], times)
        return drawn.transpose(1, 2).flatten(0, 1).int()


class Chains(Gibbs):
    """Filtering from the end, then drawing from the start."""

    def parts(self) -> tuple[Tensor, ...]:
        extra = self.part.extra
        assert extra is not None
        return self.part.unary, extra.expand(len(self.part.unary), *extra.shape[1:])

    def normaliser(self, *parts: Tensor) -> Tensor:
        unary, moves = parts
        after = [torch.zeros_like(unary[:, 0])]
        for position in range(unary.shape[1] - 1, 0, -1):
            following = (unary[:, position] + after[-1]).unsqueeze(1)
            after.append(logsumexp(moves[:, min(position, moves.shape[1]) - 1] + following))
        self.after = [one.detach() for one in after[::-1]]
        return logsumexp(unary[:, 0] + after[-1])

    def conditional(self, unit: int, row: Tensor, codes: Tensor) -> Tensor:
        unary, moves = self.parts()
        scores = (unary[:, unit] + self.after[unit])[row]
        if unit:
            scores = scores + moves[row, min(unit, moves.shape[1]) - 1, codes[:, unit - 1].long()]
        return F.softmax(scores, -1)


class LimitedBits(Gibbs):
    """A chain whose state is how many bits are on."""

    def normaliser(self, *parts: Tensor) -> Tensor:
        (unary,) = parts
        low, high = self.structure.limits
        count = torch.arange(min(high, unary.shape[1]) + 1, device=unary.device)
        last = torch.where(count >= low, 0.0, -math.inf).to(unary)
        after = [last.expand(len(unary), -1)]
        for bit in range(unary.shape[1] - 1, -1, -1):
            off, on = after[-1], F.pad(after[-1][:, 1:], (0, 1), value=-math.inf)
            after.append(logsumexp(torch.stack([off, unary[:, bit, None] + on], -1)))
        self.after = [one.detach() for one in after[::-1]]
        return after[-1][:, 0]

    def conditional(self, unit: int, row: Tensor, codes: Tensor) -> Tensor:
        after = F.pad(self.after[unit + 1], (0, 1), value=-math.inf)
        on = codes[:, :unit].sum(1)
        return F.softmax(torch.stack([after[row, on], self.part.unary[row, unit] + after[row, on + 1]], -1), -1)


class Trees(Gibbs):
    """The matrix-tree theorem: a determinant, by elimination of one word after the other in logarithms.

    Nothing is subtracted, so that cycles that win by much cost no digits, as they do in a determinant.
    """

    def normaliser(self, *parts: Tensor) -> Tensor:
        (unary,) = parts
        words = unary.shape[1]
        own = torch.eye(words, dtype=torch.bool, device=unary.device)
        root, heads = unary[:, :, 0], unary[:, :, 1:].masked_fill(own, -math.inf)
        log_z: Tensor = unary.new_zeros(len(unary))
        assert isinstance(self.structure, Tree)
        if self.structure.single_root:  # a second word under the root costs more than any tree can win
            cost = 50 + 2 * words * torch.where(unary > -math.inf, unary.detach().abs(), 0.0).amax((1, 2))
            root, log_z = root - cost[:, None], log_z + cost
        for word in range(words - 1, 0, -1):
            total = logsumexp(torch.cat([root[:, word, None], heads[:, word, :word]], 1))
            log_z = log_z + total
            through = heads[:, :word, word] - total[:, None]
            root = torch.stack([root[:, :word], through + root[:, word, None]], -1)
            heads = torch.stack([heads[:, :word, :word], through[:, :, None] + heads[:, None, word, :word]], -1)
            root, heads = logsumexp(root), logsumexp(heads).masked_fill(own[:word, :word], -math.inf)
        return log_z + root[:, 0]

    def conditional(self, unit: int, row: Tensor, codes: Tensor) -> Tensor:
        scores = self.part.unary.detach()[row]
        chosen = F.one_hot(codes[:, :unit].long(), scores.shape[-1]).bool()
        scores[:, :unit] = scores[:, :unit].masked_fill(~chosen, -math.inf)
        with torch.inference_mode(False), torch.enable_grad():
            scores = _leaf(scores)
            (shares,) = torch.autograd.grad(self.normaliser(scores).sum(), scores)
        return shares[:, unit].clamp(min=0)


def _leaf(x: Tensor) -> Tensor:
    """To differentiate by, whatever mode the caller is in; tensors of inference mode are copied."""
    return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


def of(structure: Structure, scores: Scores) -> Gibbs:
    kind = _kind(structure)
    if kind is Listed and isinstance(structure, Custom) and structure.find_kbest is None:
        raise ValueError(f"{refusal(structure)}; SparseMAP and Gumbel take it, or give Custom a kbest that lists them")
    problem = structure.problem(scores, "expected_loss")
    return kind(Items(structure, problem, allowed(structure, problem, scores)), scores)


def _kind(structure: Structure) -> type[Gibbs]:
    if isinstance(structure, Bits) and not isinstance(structure, Dense):  # which has a table of them anyway
        return Independent if structure.rules[0] == "staircase" else LimitedBits
    by_class: dict[type[Structure], type[Gibbs]] = {OneOfEach: Independent, Chain: Chains, Tree: Trees}
    return next((kind for known, kind in by_class.items() if isinstance(structure, known)), Listed)


def has_normaliser(structure: Structure, problem: Problem) -> bool:
    """As far as that is known before anything is listed."""
    return _kind(structure) is not Listed or isinstance(structure, OneOf) or structure.bound(problem) <= MOST


def refusal(structure: Structure) -> str:
    why = "is a permanent, which is #P-hard" if isinstance(structure, Assignment) else "needs a list of all of them"
    return (
        f"expected_loss: this method samples from the softmax over structures, whose normaliser for {structure} {why}: "
        f"it takes those that have at most {MOST} structures"
    )


def allowed(structure: Structure, problem: Problem, scores: Scores) -> Tensor:
    """(items,): whether anything is; items with NaN or +inf count, they will be NaN."""
    forbidden = bool((problem.unary == -math.inf).any())
    if problem.extra is not None:
        forbidden = forbidden or bool((problem.extra == -math.inf).any())
    if not forbidden:
        return torch.ones_like(problem.broken)
    clean = replace(problem, broken=torch.zeros_like(problem.broken))
    return best_codes(structure, clean, 1, scores)[1][:, 0]


def logsumexp(x: Tensor) -> Tensor:
    """Over the last dimension; of −inf alone it is −inf with the gradient 0, where torch's is NaN."""
    top = x.detach().amax(-1, keepdim=True)
    top = torch.where(top > -math.inf, top, 0.0)
    total = (x - top).exp().sum(-1)
    some = total > 0
    return torch.where(some, torch.where(some, total, 1.0).log() + top.squeeze(-1), -math.inf)


def entropy(scores: Tensor) -> Tensor:
    """Of the softmax over the last dimension."""
    log_p = F.log_softmax(scores, -1)
    # What is forbidden has no share; masked before the product, whose derivative would be 0·∞.
    return -(log_p.exp() * torch.where(log_p > -math.inf, log_p, 0.0)).sum(-1)
