"""How every mapping of the registry treats one row of scores."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..mappings import REGISTRY
from ..metrics import support_size

SCORES = (2.0, 1.5, 1.2, 0.4, -0.3, -1.5)
ALPHAS = (1.0, 1.25, 1.5, 2.0, 4.0, math.inf)  # a family deserves more than one row
ZERO = "·"


def rows(scores: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    """Name, parameter and result, at the example value that the registry gives."""
    for entry in REGISTRY.values():
        if entry.setting is None:
            yield entry.name, "", entry.function(scores)
            continue
        for value in ALPHAS if entry.name == "entmax" else (entry.setting.example,):
            shown = "∞" if math.isinf(value) else f"{value:g}"
            yield entry.name, f"{entry.setting.name} = {shown}", entry.function(scores, value)


def line(name: str, parameter: str, cells: list[str], support: str, total: str) -> str:
    return f"{name:<17}{parameter:<14}" + "".join(f"{cell:>7}" for cell in cells) + f"{support:>9}{total:>6}"


def text() -> str:
    """The table.

    >>> print(text().splitlines()[3])
    softmax                         0.419  0.254  0.188  0.085  0.042  0.013        6     1
    """
    scores = torch.tensor(SCORES, dtype=torch.float64)
    lines = [f"One row of scores, every mapping. {ZERO} is an exact 0.", ""]
    lines.append(line("scores", "", [f"{z:.1f}" for z in SCORES], "support", "sum"))
    for name, parameter, p in rows(scores):
        cells = [ZERO if v == 0 else f"{v:.3f}" for v in p.tolist()]
        lines.append(line(name, parameter, cells, str(support_size(p).item()), f"{p.sum().item():g}"))
    return "\n".join(lines)
