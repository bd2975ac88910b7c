"""The attention modules of a model: which they are, how many heads each has, and which of them a user means."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import nn
from transformers import AttentionInterface, PreTrainedModel

Layers: TypeAlias = int | str | Sequence[int | str] | None
Heads: TypeAlias = Sequence[int] | Mapping[int | str, Sequence[int]] | None
Choice: TypeAlias = list[tuple[int | str | None, list[int] | None]]  # (layers that match, their heads); None = all

HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head")  # how modules and their configs call it


def find(model: nn.Module, where: str) -> dict[str, nn.Module]:
    """The modules that call the attention interface, by name. An error if the model has none, or a part of it."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"{where}: model must be a transformers.PreTrainedModel, got {type(model).__name__}")
    found = {name: module for name, module in model.named_modules() if _on_interface(module)}
    others = _elsewhere(model, found)
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    for part in reversed(parts):  # the innermost first: it is the one to blame
        inside = set(map(id, part.modules()))
        mine = any(id(module) in inside for module in found.values())
        if not mine and (part is model or any(id(module) in inside for module in others)):
            raise ValueError(
                f"{where}: {type(part).__name__} does not use the attention interface of transformers, so its "
                "attention cannot be replaced without rewriting it; use a model that does (BERT, GPT-2, Llama, "
                "BART, T5, …), or put parsimax.MultiheadAttention into your own"
            )
    if others:
        kinds = sorted({type(module).__name__ for module in others})
        warnings.warn(f"{where}: {', '.join(kinds)} keep their own attention", stacklevel=4)
    return found


def _on_interface(module: nn.Module) -> bool:
    """Whether ``forward`` reads an :class:`AttentionInterface`, whatever it is called there."""
    forward = inspect.unwrap(type(module).forward)
    code, names = getattr(forward, "__code__", None), getattr(forward, "__globals__", {})
    return code is not None and any(isinstance(names.get(name), AttentionInterface) for name in code.co_names)


def _elsewhere(model: nn.Module, found: dict[str, nn.Module]) -> list[nn.Module]:
    """Modules that look like attention, and neither are on the interface nor hold or belong to one that is."""
    related = {id(inner) for module in found.values() for inner in module.modules()}
    around = {".".join(name.split(".")[:depth]) for name in found for depth in range(len(name.split(".")))}
    return [
        module
        for name, module in model.named_modules()
        if "attention" in type(module).__name__.lower()
        and name not in around
        and id(module) not in related
        and any(True for _ in module.parameters())
    ]


def count_heads(module: nn.Module, where: str) -> int:
    for owner in (module, getattr(module, "config", None)):
        for name in HEADS:
            count: Any = getattr(owner, name, None)
            if isinstance(count, int) and not isinstance(count, bool):
                return count
    raise ValueError(f"{where}: {type(module).__name__} does not say how many heads it has (as {', '.join(HEADS)})")


def choice(layers: Layers, heads: Heads, where: str) -> Choice:
    """What a user gives as ``layers`` and ``heads``, in one form that JSON can hold."""
    if isinstance(heads, Mapping):
        if layers is not None:
            raise ValueError(f"{where}: heads={dict(heads)!r} already names the layers; leave out layers={layers!r}")
        return [(_pattern(layer, where), _numbers(each, where)) for layer, each in heads.items()]
    numbers = None if heads is None else _numbers(heads, where)
    if layers is None:
        return [(None, numbers)]
    given = [layers] if isinstance(layers, int | str) else list(layers)
    if not given:
        raise ValueError(f"{where}: layers is empty; leave it out for all layers")
    return [(_pattern(layer, where), numbers) for layer in given]


def _pattern(layer: object, where: str) -> int | str:
    if isinstance(layer, bool) or not isinstance(layer, int | str):
        raise TypeError(f"{where}: a layer is a number or a part of its module's name, got {layer!r}")
    return layer


def _numbers(heads: Sequence[int], where: str) -> list[int]:
    if isinstance(heads, str) or not all(isinstance(head, int) and not isinstance(head, bool) for head in heads):
        raise TypeError(f"{where}: heads must be numbers, or numbers for each layer {{layer: numbers}}, got {heads!r}")
    return list(heads)


def select(names: Sequence[str], chosen: Choice, where: str) -> dict[str, list[int] | None]:
    """The layers chosen, each with its heads (None = all)."""
    result: dict[str, list[int] | None] = {}
    for pattern, heads in chosen:
        matching = [name for name in names if _matches(name, pattern)]
        if not matching:
            shown = ", ".join(names[:3]) + (f", … {names[-1]}" if len(names) > 3 else "")
            raise ValueError(f"{where}: no attention layer matches {pattern!r}; there are {len(names)}: {shown}")
        for name in matching:
            before = result.get(name, [])
            result[name] = None if heads is None or before is None else sorted({*before, *heads})
    return result


def _matches(name: str, pattern: int | str | None) -> bool:
    """A number is that of the block, the first in the name; a text is one or more whole parts of the name."""
    if pattern is None:
        return True
    if isinstance(pattern, int):
        return next((int(part) == pattern for part in name.split(".") if part.isdigit()), pattern == 0)
    return f".{pattern}." in f".{name}."
