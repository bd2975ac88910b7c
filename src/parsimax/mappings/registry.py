"""The mappings by name, function or module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .declaration import REGISTRY, Entry, MappingModule

MappingLike = str | Callable[..., Tensor] | MappingModule


def find(name: str, where: str) -> Entry:
    """The entry of that name, or an error that lists the names there are."""
    if name not in REGISTRY:
        raise ValueError(f"{where}: no mapping is called {name!r}; there are {', '.join(REGISTRY)}")
    return REGISTRY[name]


def resolve(mapping: MappingLike, settings: dict[str, Any], where: str) -> tuple[Entry, dict[str, Any]]:
    """The registry entry of a mapping given by name, function or module, and its settings."""
    if isinstance(mapping, str):
        entry = find(mapping, where)
    elif isinstance(mapping, MappingModule):
        entry = mapping.entry
        settings = {**mapping.settings(), **settings}
    else:
        entry = _known(mapping, where)
    own = {entry.setting.name} if entry.setting else set()
    if unknown := set(settings) - own - entry.switches:
        raise TypeError(f"{where}: {entry.name} has no setting {', '.join(sorted(unknown))}; it has {own or 'none'}")
    return entry, settings


def _known(mapping: object, where: str) -> Entry:
    for entry in REGISTRY.values():
        if entry.function is mapping:
            return entry
    raise TypeError(
        f"{where}: mapping must be a name ({', '.join(REGISTRY)}), a mapping or its module, got {mapping!r}"
    )
