"""What the tests know of every mapping, all of it read from the registry: a new entry is tested without a new line."""

import itertools
import math
import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from parsimax.mappings import REGISTRY

INF, NAN = math.inf, math.nan
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
WHOLE = int(os.environ.get("PARSIMAX_KERNEL_CASES", "500")) >= 10_000  # make test-kernels


@dataclass(frozen=True)
class Case:
    """A mapping at one value of its parameter."""

    entry: Any
    value: float | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def parameter(self) -> str | None:
        return self.entry.setting and self.entry.setting.name

    def __call__(self, scores: Tensor, *parameter: Any, **options: Any) -> Any:
        """The mapping at ``parameter``, or at the value of the case if none is given."""
        if self.entry.setting is None:
            return self.entry.function(scores, **options)
        return self.entry.function(scores, *(parameter or (self.value,)), **options)

    def module(self, **options: Any) -> torch.nn.Module:
        return self.entry.module(**({} if self.parameter is None else {self.parameter: self.value}), **options)

    def total(self, allowed: Tensor) -> Tensor:
        """What rows with so many allowed entries sum to."""
        whole = self.value if self.entry.total == self.parameter else self.entry.total
        return torch.minimum(torch.full_like(allowed, whole, dtype=torch.float64), allowed.double())


def values(setting: Any) -> list[float]:
    """The example, and the ends of the domain that belong to it; counts stay counts."""
    domain = setting.domain
    ends = [domain.low] * domain.closed_low + [domain.high] * domain.closed_high
    return sorted({setting.example, *(type(setting.example)(end) for end in ends)})


EXAMPLES = [Case(e, e.setting and e.setting.example) for e in REGISTRY.values()]
CASES = [Case(e, v) for e in REGISTRY.values() for v in (values(e.setting) if e.setting else [None])]
CONTINUOUS = [case for case in EXAMPLES if case.entry.setting and case.entry.setting.continuous]


def each(cases: list[Any]) -> Any:
    """Parametrise a test by ``case``."""
    labels = [case.name if getattr(case, "value", None) is None else f"{case.name}-{case.value:g}" for case in cases]
    return pytest.mark.parametrize("case", cases, ids=labels)


def pairs(*options: Any) -> list[tuple[Any, ...]]:
    """So many of the product that any two options of different lists meet in one of them; all of it if ``WHOLE``."""
    lists = [list(one) for one in options]
    product = list(itertools.product(*(range(len(one)) for one in lists)))
    if not WHOLE:
        kept, left = [], {pair for choice in product for pair in itertools.combinations(enumerate(choice), 2)}
        while left:
            kept.append(max(product, key=lambda choice: len(left & {*itertools.combinations(enumerate(choice), 2)})))
            left -= {*itertools.combinations(enumerate(kept[-1]), 2)}
        product = sorted(kept)
    return [tuple(one[i] for one, i in zip(lists, choice, strict=True)) for choice in product]


def turned(options: list[Any], *rest: Any) -> list[tuple[Any, ...]]:
    """The product of the rest, which decide together what runs, with one option each, in turn; all if ``WHOLE``."""
    product = list(itertools.product(*rest))
    if WHOLE:
        return [(option, *others) for others in product for option in options]
    return [(options[i % len(options)], *others) for i, others in enumerate(product)]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gradient(function: Any, *inputs: Tensor, weights: Tensor | None = None) -> list[Tensor]:
    """The gradients of the weighted sum of ``function(*inputs)``, with weights that no mapping is blind to."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    return list(torch.autograd.grad(out, leaves, normal(*out.shape, seed=7).to(out) if weights is None else weights))
