"""What :func:`sparsify` was told, as the JSON that the model's config keeps, and the cores that follow from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._attention.core import AttentionCore
from ..schedules import Constant, Cosine, Geometric, Linear
from .layers import Choice, count_heads, find, select, warn_of

KEY = "parsimax"  # the attribute of the config
SCHEDULES = {each.__name__: each for each in (Constant, Linear, Cosine, Geometric)}


@dataclass(frozen=True)
class Told:
    """A mapping with its settings, and where it goes. ``before`` is the attention implementation that it replaced."""

    mapping: str
    choice: Choice
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self, before: str | None, implementation: str | None) -> dict[str, Any]:
        options = {name: _encode(value) for name, value in self.options.items()}
        choice = [list(each) for each in self.choice]
        used = {"before": before, "implementation": implementation}
        return {"mapping": self.mapping, "layers": choice, **options, **used}

    @classmethod
    def from_json(cls, saved: dict[str, Any], where: str) -> Told:
        rest = {name: _decode(name, value, where) for name, value in saved.items()}
        for name in ("before", "implementation"):
            rest.pop(name, None)
        return cls(rest.pop("mapping"), [(layer, heads) for layer, heads in rest.pop("layers")], rest)

    def cores(self, model: nn.Module, where: str, quiet: bool = False) -> dict[str, AttentionCore]:
        """One for each attention module; softmax where the mapping does not go. On the CPU, in float32."""
        modules, others = find(model, where)
        chosen = select(list(modules), others, self.choice, where)
        if others and not quiet and all(layer is None for layer, _ in self.choice):
            warn_of(others, where, stacklevel=3)
        cores = {}
        for name, module in modules.items():
            count = count_heads(module, where)
            if name in chosen:
                cores[name] = AttentionCore(count, self.mapping, heads=chosen[name], **self.options)
            else:
                cores[name] = AttentionCore(count, "softmax")
        return cores


def _encode(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if type(value) in SCHEDULES.values():
        return {"schedule": type(value).__name__, **asdict(value)}
    if callable(value):
        return {"unsaved": repr(value)}
    return list(value) if isinstance(value, tuple) else value


def _decode(name: str, value: Any, where: str) -> Any:
    if name == "layers":
        return value
    if isinstance(value, list):
        return tuple(value) if name == "interval" else torch.tensor(value)
    if isinstance(value, dict) and "unsaved" in value:
        raise ValueError(
            f"{where}: the model was saved with {name}={value['unsaved']}, a function that no file can hold; call "
            f"parsimax.huggingface.sparsify(model, …, {name}=…) with it, or use one of parsimax.schedules"
        )
    if isinstance(value, dict):
        held = dict(value)
        return SCHEDULES[held.pop("schedule")](**held)
    return value
