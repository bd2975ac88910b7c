"""One entry per mapping. Contract tests, losses, attention options, docs rows and command-line names follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..engine.arguments import Interval
from ..engine.chunked import Formula
from . import modules
from .budget_sparsemax import DOMAIN as BUDGET
from .budget_sparsemax import budget_sparsemax
from .entmax import DOMAIN as ALPHA
from .entmax import entmax, entmax_conjugate, tsallis
from .entmax15 import entmax15, entmax15_conjugate, tsallis15
from .learned import Entmax
from .normmax import DOMAIN as NORM
from .normmax import norm_entropy, normmax, normmax_conjugate
from .rsoftmax import DOMAIN as RATE
from .rsoftmax import rsoftmax
from .sigsoftmax import sigsoftmax
from .softmax import shannon, softmax, softmax_conjugate
from .sparsegen import DOMAIN as LAM
from .sparsegen import sparsegen, sparsegen_conjugate, sparsegen_entropy
from .sparsehourglass import DOMAIN as Q
from .sparsehourglass import sparsehourglass
from .sparsemax import gini, sparsemax, sparsemax_conjugate
from .topk_sparsemax import topk_sparsemax
from .tsoftmax import DOMAIN as T
from .tsoftmax import tsoftmax


@dataclass(frozen=True)
class Setting:
    """The parameter of a mapping: its name, where it may lie, a value to show it with, whether it has a gradient."""

    name: str
    domain: Interval
    example: float
    continuous: bool = True


@dataclass(frozen=True)
class Regulariser:
    """What makes a mapping the gradient of a convex function, and so gives it a loss.

    ``entropy(p, [parameter])`` is H, and ``conjugate(z, live, [parameter], solve=…)`` the maximum of p.z + H(p); both
    along the last dimension, in the working precision. ``domain`` is where the loss needs the parameter to be.
    """

    entropy: Callable[..., Tensor]
    conjugate: Formula
    domain: Interval | None = None


@dataclass(frozen=True)
class Entry:
    """A mapping and what the rest of the library needs to know of it."""

    name: str
    function: Callable[..., Any]
    module: type[modules.MappingModule]
    setting: Setting | None = None
    regulariser: Regulariser | None = None
    sparse: bool = True
    shift_invariant: bool = True
    total: float | str = 1  # what a row sums to: a number, or the name of a parameter


MARGIN = Interval(0, float("inf"), closed_low=False)

REGISTRY: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("softmax", softmax, modules.Softmax, None, Regulariser(shannon, softmax_conjugate), sparse=False),
        Entry("sparsemax", sparsemax, modules.Sparsemax, None, Regulariser(gini, sparsemax_conjugate)),
        Entry("entmax15", entmax15, modules.Entmax15, None, Regulariser(tsallis15, entmax15_conjugate)),
        Entry("entmax", entmax, Entmax, Setting("alpha", ALPHA, 1.5), Regulariser(tsallis, entmax_conjugate, MARGIN)),
        Entry("tsoftmax", tsoftmax, modules.TSoftmax, Setting("t", T, 1.5)),
        Entry("rsoftmax", rsoftmax, modules.RSoftmax, Setting("rate", RATE, 0.5)),
        Entry("sigsoftmax", sigsoftmax, modules.SigSoftmax, sparse=False, shift_invariant=False),
        Entry(
            "topk_sparsemax",
            topk_sparsemax,
            modules.TopKSparsemax,
            Setting("k", Interval(1, float("inf"), closed_high=False), 2, continuous=False),
        ),
        Entry(
            "normmax",
            normmax,
            modules.Normmax,
            Setting("alpha", NORM, 2.0),
            Regulariser(norm_entropy, normmax_conjugate),
        ),
        Entry(
            "budget_sparsemax",
            budget_sparsemax,
            modules.BudgetSparsemax,
            Setting("budget", BUDGET, 2.0),
            total="budget",
        ),
        Entry(
            "sparsegen",
            sparsegen,
            modules.Sparsegen,
            Setting("lam", LAM, 0.25),
            Regulariser(sparsegen_entropy, sparsegen_conjugate),
        ),
        Entry(
            "sparsehourglass",
            sparsehourglass,
            modules.SparseHourglass,
            Setting("q", Q, 1.0),
            shift_invariant=False,
        ),
    )
}


def find(name: str, where: str) -> Entry:
    """The entry of that name, or an error that lists the names there are."""
    if name not in REGISTRY:
        raise ValueError(f"{where}: no mapping is called {name!r}; there are {', '.join(REGISTRY)}")
    return REGISTRY[name]


MappingLike = str | Callable[..., Tensor] | modules.MappingModule


def resolve(mapping: MappingLike, settings: dict[str, Any], where: str) -> tuple[Entry, dict[str, Any]]:
    """The registry entry of a mapping given by name, function or module, and its settings."""
    if isinstance(mapping, str):
        entry = find(mapping, where)
    elif isinstance(mapping, modules.MappingModule):
        entry = _known(lambda e: isinstance(mapping, e.module), mapping, where)
        settings = {**mapping.settings(), **settings}
    else:
        entry = _known(lambda e: e.function is mapping, mapping, where)
    allowed = {entry.setting.name} if entry.setting else set()
    extra = {"detach_threshold"} if entry.name == "rsoftmax" else set()
    if unknown := set(settings) - allowed - extra:
        raise TypeError(
            f"{where}: {entry.name} has no setting {', '.join(sorted(unknown))}; it has {allowed or 'none'}"
        )
    return entry, settings


def _known(is_it: Callable[[Entry], bool], mapping: object, where: str) -> Entry:
    for entry in REGISTRY.values():
        if is_it(entry):
            return entry
    raise TypeError(
        f"{where}: mapping must be a name ({', '.join(REGISTRY)}), a mapping or its module, got {mapping!r}"
    )
