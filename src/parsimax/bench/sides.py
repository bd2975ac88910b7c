"""What is timed: each side is a function of the inputs of a case."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import parsimax
from parsimax import structured

from . import heads
from .cases import DROPOUT, LOOPED, MAPPED, TOPK
from .inputs import Inputs, padded

Call = Callable[[Inputs], Tensor]


@dataclass(frozen=True)
class Side:
    """A function to time; ``truth`` is another way to the same answer, ``learned`` asks for the gradient by α."""

    call: Call
    truth: Call | None = None
    learned: bool = False
    head: bool = False  # asks for the gradients by the head's own parameters
    prepare: Callable[[Inputs], Inputs] | None = None  # what it is given instead of the inputs, once
    needs: str | None = None

    @property
    def missing(self) -> str | None:
        """The package that is not installed."""
        return self.needs if self.needs and find_spec(self.needs) is None else None


def evaluate(side: Side, inputs: Inputs, gradient: bool = True, *, truth: bool = False) -> tuple[Tensor, list[Tensor]]:
    """The result and the gradients: by each of the leaves, and by α if it is learned."""
    call = side.truth if truth and side.truth else side.call
    if not gradient:
        return call(inputs), []
    out = call(inputs)
    leaves = [*inputs.leaves.values(), *([inputs.alpha] if side.learned else [])]
    leaves += inputs.own.values() if side.head else []
    return out.detach(), list(torch.autograd.grad(out, leaves, inputs.upstream))


def _peer(name: str, call: Callable[[Any, Inputs], Tensor], learned: bool = False) -> tuple[str, Side]:
    return f"peer_{name}", Side(lambda i: call(importlib.import_module("entmax"), i), learned=learned, needs="entmax")


def _in_plain_torch(function: Callable[[Tensor], Tensor], i: Inputs) -> Tensor:
    with parsimax.use_kernels("torch"):
        return function(i["scores"])


def _linear(i: Inputs) -> Tensor:
    return F.linear(i["hidden"], i["weight"])


def _soft(i: Inputs) -> Tensor:
    assert i.soft is not None, "this side needs a case with target probabilities"
    return i.soft


def _attention(i: Inputs, alpha: float | Tensor, p: float = 0.0) -> Tensor:
    return parsimax.entmax_attention(i["query"], i["key"], i["value"], None, p, i.causal, alpha=alpha)


def _dropped(i: Inputs, alpha: float | Tensor) -> Tensor:
    assert i.kept is not None
    given = (i["query"], i["key"], i["value"])
    weights = parsimax.entmax_attention(*given, is_causal=i.causal, alpha=alpha, return_weights=True)[1]
    return (weights * i.kept / (1 - DROPOUT)) @ i["value"]


def _mapped(name: str) -> Side:
    def call(i: Inputs) -> Tensor:
        settings: dict[str, Any] = MAPPED[name]
        given = (i["query"], i["key"], i["value"], i.mask, 0.0, i.causal)
        out: Tensor = parsimax.attention(*given, mapping=name, **settings)
        return out

    return Side(call)


def _sdpa(i: Inputs, p: float = 0.0) -> Tensor:
    return F.scaled_dot_product_attention(i["query"], i["key"], i["value"], i.mask, p, i.causal)


def _exact_linear_loss(i: Inputs) -> Tensor:
    return parsimax.entmax15_loss(_linear(i), i.target)


def _structure(kind: str) -> tuple[structured.Structure, dict[str, Any]]:
    """A structure by its name in the cases, and how it is asked for."""
    if kind.startswith("bits"):
        return structured.Bits(), {} if kind == "bits_closed" else {"rule": "active-set"}
    return {"chain": structured.Chain, "assignment": structured.Assignment, "tree": structured.Tree}[kind](), {}


def _structured(kind: str, *, k: int | None = None, loop: bool = False) -> Side:
    """The marginals of SparseMAP, or of the k best; ``loop``: of a few items, by the reference in plain torch."""
    structure, options = _structure(kind)

    def call(i: Inputs) -> Tensor:
        items = slice(LOOPED if loop else None)
        scores: Any = i["scores"][items]
        if "transitions" in i.leaves:
            scores = (scores, i["transitions"][items])
        if k is not None:
            found = structured.topk(scores, structure, k).marginals
        else:
            found = structured.sparsemap(scores, structure, **options).marginals
        return torch.cat([found, found.new_zeros(len(i["scores"]) - len(found), *found.shape[1:])]) if loop else found

    return Side(parsimax.use_kernels("torch")(call) if loop else call)


BEST = 10  # structures that are looked for


def _kbest(kind: str) -> tuple[Side, Side]:
    """The scores of the best structures by the kernel alone; and of a few items, by the oracle in plain torch."""
    structure = _structure(kind)[0]

    def by_kernel(i: Inputs) -> Tensor:
        scores = [each.detach().double() for each in i.leaves.values()]
        transitions = scores[1] if len(scores) > 1 else None
        values: Tensor = torch.ops.parsimax._kbest_structures(
            scores[0], transitions, structure.kind, *structure.limits, BEST
        )[1]
        return values

    def by_oracle(i: Inputs) -> Tensor:
        scores = [each.detach()[:LOOPED].double() for each in i.leaves.values()]
        problem = structure.problem(scores[0] if len(scores) == 1 else (scores[0], scores[1]), "bench")
        found = []
        for item in range(problem.items):
            codes = torch.stack(structure.kbest(*problem.of(item), BEST))
            found.append(structure.score(codes, torch.full((len(codes),), item), problem, problem.unary))
        return torch.stack(found)

    return Side(by_kernel, truth=by_oracle), Side(by_oracle)


ISING_TOLERANCE = 1e-7  # on how far two steps of ADMM differ; marginals are then right to 1e-6


def _ising(*, loop: bool = False) -> Side:
    """The marginals of a square grid by LP-SparseMAP; ``loop``: of a few items, one after the other."""

    def call(i: Inputs) -> Tensor:
        at = torch.arange(i["scores"].shape[1]).view(math.isqrt(i["scores"].shape[1]), -1)
        ends = ((at[:, :-1], at[:, 1:]), (at[:-1], at[1:]))
        edges = torch.cat([torch.stack([a.flatten(), b.flatten()], 1) for a, b in ends])
        graph = structured.FactorGraph(at.numel()).add(structured.Pair(), edges)
        if not loop:
            return graph.solve(i["scores"], i["couplings"], tolerance=ISING_TOLERANCE).marginals
        few = zip(i["scores"][:LOOPED], i["couplings"][:LOOPED], strict=True)
        found = torch.stack([graph.solve(field, pairs, tolerance=ISING_TOLERANCE).marginals for field, pairs in few])
        return torch.cat([found, found.new_zeros(len(i["scores"]) - LOOPED, at.numel())])

    return Side(call)


KINDS = ("bits", "bits_closed", "chain", "assignment", "tree")
STRUCTURED = {f"sparsemap_{kind}": _structured(kind) for kind in KINDS}
STRUCTURED |= {f"loop_{kind}": _structured(kind, loop=True) for kind in KINDS if kind != "bits_closed"}
STRUCTURED |= {f"topk_{kind}": _structured(kind, k=BEST) for kind in ("bits", "chain")}
STRUCTURED |= {f"loop_topk_{kind}": _structured(kind, k=BEST, loop=True) for kind in ("bits", "chain")}
for _kind in ("bits", "chain"):
    STRUCTURED[f"kbest_{_kind}"], STRUCTURED[f"loop_kbest_{_kind}"] = _kbest(_kind)
STRUCTURED |= {"ising": _ising(), "loop_ising": _ising(loop=True)}
OURS = {
    "sparsemax": Side(lambda i: parsimax.sparsemax(i["scores"], i.dim)),
    "entmax15": Side(lambda i: parsimax.entmax15(i["scores"], i.dim)),
    "entmax": Side(lambda i: parsimax.entmax(i["scores"], 1.5)),
    "entmax_learned": Side(lambda i: parsimax.entmax(i["scores"], i.alpha), learned=True),
    "entmax_3": Side(lambda i: parsimax.entmax(i["scores"], 3.0)),
    "entmax_steep_learned": Side(lambda i: parsimax.entmax(i["scores"], i.alpha), learned=True),
    "rsoftmax_0.1": Side(lambda i: parsimax.rsoftmax(i["scores"], 0.1)),
    "rsoftmax_0.5": Side(lambda i: parsimax.rsoftmax(i["scores"], 0.5)),
    "rsoftmax_0.9": Side(lambda i: parsimax.rsoftmax(i["scores"], 0.9)),
    "tsoftmax": Side(lambda i: parsimax.tsoftmax(i["scores"], 1.5)),
    "sigsoftmax": Side(lambda i: parsimax.sigsoftmax(i["scores"])),
    "sparsehourglass": Side(lambda i: parsimax.sparsehourglass(i["scores"])),
    "topk_sparsemax": Side(lambda i: parsimax.topk_sparsemax(i["scores"], 10)),
    "sparsegen": Side(lambda i: parsimax.sparsegen(i["scores"], 0.25)),
    "budget_sparsemax": Side(lambda i: parsimax.budget_sparsemax(i["scores"], 2.0)),
    "normmax": Side(lambda i: parsimax.normmax(i["scores"], 2.0)),
    "entmax15_soft_loss": Side(lambda i: parsimax.entmax15_loss(i["scores"], _soft(i))),
    "entmax_soft_loss": Side(lambda i: parsimax.entmax_loss(i["scores"], _soft(i), 1.4)),
    "entmax15_loss": Side(lambda i: parsimax.entmax15_loss(i["scores"], i.target)),
    "linear_entmax_loss": Side(
        lambda i: parsimax.linear_entmax_loss(i["hidden"], i["weight"], i.target), truth=_exact_linear_loss
    ),
    **{
        f"head_{kind}_loss": Side(partial(heads.loss, kind), truth=partial(heads.formula, kind), head=True)
        for kind in heads.KINDS
    },
    "entmax_attention": Side(lambda i: _attention(i, 1.5)),
    "entmax_attention_learned": Side(lambda i: _attention(i, i.alpha), learned=True),
    "entmax_attention_dropout": Side(lambda i: _attention(i, 1.5, DROPOUT), lambda i: _dropped(i, 1.5)),
    "entmax_attention_dropout_learned": Side(
        lambda i: _attention(i, i.alpha, DROPOUT), lambda i: _dropped(i, i.alpha), learned=True
    ),
}
OURS["plain_sparsemax"] = Side(lambda i: _in_plain_torch(parsimax.sparsemax, i))
OURS["plain_entmax15"] = Side(lambda i: _in_plain_torch(parsimax.entmax15, i))
OURS["segment_softmax"] = Side(lambda i: parsimax.segment_softmax(i["scores"], ptr=i.ptr))
OURS["segment_sparsemax"] = Side(lambda i: parsimax.segment_sparsemax(i["scores"], ptr=i.ptr))
OURS["segment_entmax15"] = Side(lambda i: parsimax.segment_entmax15(i["scores"], ptr=i.ptr))
OURS["segment_entmax"] = Side(lambda i: parsimax.segment_entmax(i["scores"], alpha=1.4, ptr=i.ptr))
OURS |= {f"attention_{name}": _mapped(name) for name in MAPPED}
TORCH = {
    "softmax": Side(lambda i: torch.softmax(i["scores"], i.dim)),
    "padded_softmax": Side(lambda i: torch.softmax(i["scores"], -1), prepare=padded),
    "soft_cross_entropy": Side(lambda i: F.cross_entropy(i["scores"], _soft(i))),
    "cross_entropy": Side(lambda i: F.cross_entropy(i["scores"], i.target)),
    "linear_cross_entropy": Side(lambda i: F.cross_entropy(_linear(i), i.target)),
    "sdpa": Side(_sdpa),
    "sdpa_dropout": Side(lambda i: _sdpa(i, DROPOUT)),
}
PEERS = dict(
    (
        _peer("sparsemax_topk", lambda e, i: e.sparsemax(i["scores"], dim=-1, k=TOPK)),
        _peer("sparsemax_sort", lambda e, i: e.sparsemax(i["scores"], dim=-1)),
        _peer("sparsemax_bisect", lambda e, i: e.sparsemax_bisect(i["scores"], dim=-1)),
        _peer("entmax15_topk", lambda e, i: e.entmax15(i["scores"], dim=-1, k=TOPK)),
        _peer("entmax15_sort", lambda e, i: e.entmax15(i["scores"], dim=-1)),
        _peer("entmax15_bisect", lambda e, i: e.entmax_bisect(i["scores"], 1.5, dim=-1)),
        _peer(
            "entmax_learned_bisect",
            lambda e, i: e.entmax_bisect(i["scores"], i.alpha.to(i["scores"].dtype), dim=-1),
            learned=True,
        ),
        _peer("entmax15_loss_topk", lambda e, i: e.entmax15_loss(i["scores"], i.target, k=TOPK).mean()),
        _peer("entmax15_loss_sort", lambda e, i: e.entmax15_loss(i["scores"], i.target).mean()),
        _peer("entmax15_loss_bisect", lambda e, i: e.entmax_bisect_loss(i["scores"], i.target, 1.5).mean()),
        _peer("linear_entmax_loss_topk", lambda e, i: e.entmax15_loss(_linear(i), i.target, k=TOPK).mean()),
        _peer("linear_entmax_loss_sort", lambda e, i: e.entmax15_loss(_linear(i), i.target).mean()),
        _peer("linear_entmax_loss_bisect", lambda e, i: e.entmax_bisect_loss(_linear(i), i.target, 1.5).mean()),
    )
)
SIDES: dict[str, Side] = {**OURS, **TORCH, **PEERS, **STRUCTURED}
