"""Every mapping and every loss as a function of tensors, one row of the result for each row of its inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import parsimax
from cases import EXAMPLES, Case, normal
from parsimax.mappings import REGISTRY

ROWS, CLASSES = 3, 6
X = normal(ROWS, CLASSES, seed=4)
TARGET = torch.tensor([0, 3, 1])
Q = torch.softmax(normal(ROWS, CLASSES, seed=5), -1)
WEIGHTS = normal(ROWS, CLASSES, seed=6)
LAYER, BIAS = normal(CLASSES, 4, seed=11), normal(CLASSES, seed=12)
LABELS = torch.tensor([[1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0], [1, 1, 0, 0, 1, 0]])


@dataclass(frozen=True)
class Function:
    """``call(*inputs)``; every floating-point input is differentiated, and every input has a row for each result."""

    name: str
    call: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]

    @property
    def argnums(self) -> tuple[int, ...]:
        return tuple(i for i, t in enumerate(self.inputs) if t.is_floating_point())

    def leaves(self) -> tuple[Tensor, ...]:
        return tuple(t.clone().requires_grad_(t.is_floating_point()) for t in self.inputs)

    def scalar(self, *inputs: Tensor) -> Tensor:
        """A number whose gradient and Hessian are far from zero, even for functions that are piecewise linear."""
        out = self.call(*inputs)
        return (out**3).sum() + (out * (WEIGHTS if out.dim() == 2 else WEIGHTS[:, 0])).sum()

    def at(self, i: int, value: Tensor) -> tuple[Tensor, ...]:
        return tuple(value if j == i else t for j, t in enumerate(self.inputs))


def own(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(ROWS, 1)


def mapping(case: Case) -> Function:
    if case.entry.setting is None or not case.entry.setting.continuous:
        return Function(case.name, lambda x: case(x), (X,))
    return Function(case.name, case, (X, own(0.83 * case.value, case.value, 1.13 * case.value)))


MAPPINGS = [mapping(case) for case in EXAMPLES]
MAPPINGS += [
    Function("entmax around 1", parsimax.entmax, (X, own(1.0, 0.5, 1.0005))),
    Function("entmax above 2", parsimax.entmax, (X / 4, own(2.0, 2.5, 3.0))),
    Function("rsoftmax detached", lambda x: parsimax.rsoftmax(x, 0.4, detach_threshold=True), (X,)),
    Function("log_entmax", lambda x, a: parsimax.log_entmax(x, a, floor=1e-3), (X, own(1.2, 1.0, 1.6))),
]
DETACHED = {"rsoftmax detached"}  # its gradient is the paper's, which is not that of the function


def fenchel_young(entry: Any) -> Function:
    def call(x: Tensor, *rest: Tensor) -> Tensor:
        *parameter, q = rest
        settings = {entry.setting.name: parameter[0]} if parameter else {}
        return parsimax.fenchel_young_loss(x, q, entry.name, reduction="none", **settings)

    parameters = mapping(Case(entry, entry.setting and entry.setting.example)).inputs[1:]
    return Function(f"fenchel_young_loss {entry.name}", call, (X, *parameters, Q))


def with_options(x: Tensor, alpha: Tensor, target: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 2, CLASSES, dtype=x.dtype)
    return parsimax.entmax_loss(x, target, alpha, weight=weight, ignore_index=1, label_smoothing=0.2, reduction="none")


LOSSES = [
    Function(
        "entmax_loss", lambda x, a, t: parsimax.entmax_loss(x, t, a, reduction="none"), (X, own(1.3, 1, 2.5), TARGET)
    ),
    Function(
        "entmax_loss soft", lambda x, a, q: parsimax.entmax_loss(x, q, a, reduction="none"), (X, own(1.3, 1, 2.5), Q)
    ),
    Function("entmax_loss options", with_options, (X, own(1.3, 1.0005, 0.6), TARGET)),
    Function("sparsemax_loss", lambda x, t: parsimax.sparsemax_loss(x, t, reduction="none"), (X, TARGET)),
    Function("entmax15_loss", lambda x, t: parsimax.entmax15_loss(x, t, reduction="none"), (X, TARGET)),
    *(fenchel_young(entry) for entry in REGISTRY.values() if entry.regulariser),
]


def linear(hidden: Tensor, alpha: Tensor, target: Tensor) -> Tensor:
    return parsimax.linear_entmax_loss(hidden, LAYER, target, alpha, bias=BIAS, softcap=3.0, reduction="none")


def linear_by_weight(weight: Tensor, bias: Tensor) -> Tensor:
    """One loss per row of hidden states, by what all rows share; smoothed, so that a term of rank one is there."""
    return parsimax.linear_entmax_loss(X[:, :4], weight, TARGET, 1.3, bias=bias, label_smoothing=0.1, reduction="none")


def multilabel(entry: Any) -> Function:
    def call(x: Tensor, *rest: Tensor) -> Tensor:
        *parameter, labels = rest
        settings = {entry.setting.name: parameter[0]} if parameter else {}
        return parsimax.multilabel_loss(x, labels, entry.name, reduction="none", **settings)

    parameters = mapping(Case(entry, entry.setting and entry.setting.example)).inputs[1:]
    return Function(f"multilabel_loss {entry.name}", call, (X, *parameters, LABELS))


LOSSES.append(Function("linear_entmax_loss", linear, (X[:, :4].contiguous(), own(1.3, 1, 2.5), TARGET)))
SHARED = [Function("linear_entmax_loss by weight", linear_by_weight, (LAYER, BIAS))]  # inputs without rows
LOSSES += [multilabel(REGISTRY[name]) for name in ("sparsemax", "entmax", "rsoftmax", "sparsehourglass")]
