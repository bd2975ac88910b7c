"""The attention modules of a model: which they are, how many heads each has, and which of them a user means."""

from __future__ import annotations

import dis
import inspect
import warnings
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

Layers: TypeAlias = int | str | Sequence[int | str] | None
Heads: TypeAlias = Sequence[int] | Mapping[int | str, Sequence[int]] | None
Choice: TypeAlias = list[tuple[int | str | None, list[int] | None]]  # (layers that match, their heads); None = all

HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head")  # how modules and their configs call it


def find(model: nn.Module, where: str) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """The modules that call the attention interface, and attention that is computed elsewhere, both by name.

    An error if the model has none on the interface.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"{where}: model must be a transformers.PreTrainedModel, got {type(model).__name__}")
    found = {name: module for name, module in model.named_modules() if _on_interface(type(module))}
    if not found:
        raise ValueError(
            f"{where}: {type(model).__name__} does not use the attention interface of transformers, so its attention "
            "cannot be replaced without rewriting it; use a model that does (BERT, GPT-2, Llama, BART, T5, …), or put "
            "parsimax.MultiheadAttention into your own"
        )
    return found, _elsewhere(model, found)


def warn_of(others: Mapping[str, nn.Module], where: str, stacklevel: int) -> None:
    """Name the kinds of attention that keep softmax, each with its first module."""
    kinds = {type(module).__name__: name for name, module in reversed(list(others.items()))}
    shown = ", ".join(f"{kind} ({name})" for kind, name in sorted(kinds.items()))
    warnings.warn(
        f"{where}: {shown} keep their own attention: they do not use the attention interface of transformers; "
        "layers=… says which layers you mean, without this warning",
        stacklevel=stacklevel + 1,
    )


def _code(function: Any) -> tuple[CodeType | None, dict[str, Any]]:
    plain = inspect.unwrap(function)
    return getattr(plain, "__code__", None), getattr(plain, "__globals__", {})


def _on_interface(cls: type[nn.Module]) -> bool:
    """Whether ``forward`` asks an :class:`AttentionInterface` for its function, whatever that is called there.

    ``getattr(ALL_ATTENTION_FUNCTIONS, name, eager)``, as Kosmos-2.5 writes, finds no name and always runs eager.
    """
    code, names = _code(cls.forward)
    if code is None or not any(isinstance(names.get(name), AttentionInterface) for name in code.co_names):
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"]
    before = [None, *(step.argval for step in steps)]
    return any(
        isinstance(names.get(step.argval), AttentionInterface) and last != "getattr"
        for step, last in zip(steps, before, strict=False)
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def named_by_its_code(cls: type[nn.Module]) -> set[str]:
    """The keywords that the module's ``forward``, or its own eager function, says by name.

    What else arrives at attention was handed through from the call of the model, and nobody reads it there.
    """
    code, names = _code(cls.forward)
    found: set[Any] = set()
    for each in code.co_consts if code else ():  # keywords are constants, one by one or as a tuple
        found |= set(each) if isinstance(each, tuple) else {each} if isinstance(each, str) else set()
    for name in code.co_names if code else ():
        if "attention" in name and inspect.isfunction(names.get(name)):
            found |= set(inspect.signature(names[name]).parameters)
    return {word for word in found if isinstance(word, str)}


def _elsewhere(model: nn.Module, found: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Modules that look like attention, and neither are on the interface nor hold or belong to one that is."""
    related = {id(inner) for module in found.values() for inner in module.modules()}
    around = {".".join(name.split(".")[:depth]) for name in found for depth in range(len(name.split(".")))}
    taken = [
        (name, module)
        for name, module in model.named_modules()
        if any(word in type(module).__name__.lower() for word in ("attention", "attn"))
        and name not in around
        and id(module) not in related
        and any(True for _ in module.parameters())
    ]
    outer = {name for name, _ in taken}
    return {
        name: module
        for name, module in taken
        if not any(name.startswith(f"{other}.") for other in outer) and not isinstance(module, nn.ModuleList)
    }


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


def select(
    names: Sequence[str], others: Mapping[str, nn.Module], chosen: Choice, where: str
) -> dict[str, list[int] | None]:
    """The layers chosen, each with its heads (None = all)."""
    result: dict[str, list[int] | None] = {}
    for pattern, heads in chosen:
        matching = [name for name in names if _matches(name, pattern)]
        if not matching and (away := [name for name in others if _matches(name, pattern)]):
            raise ValueError(
                f"{where}: {pattern!r} matches {away[0]}, whose {type(others[away[0]]).__name__} does not use the "
                "attention interface of transformers, so that it cannot be replaced without rewriting it"
            )
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
