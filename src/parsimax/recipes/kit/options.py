"""Options of a command from settings classes: ``--nbest N`` for numbers and texts, ``--exact`` for switches."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, TypeVar

from .settings import SettingsError, changed, kind_text, leaves, unknown

O = TypeVar("O")  # noqa: E741
DEST = "option "  # what the names of such options begin with in a namespace


def flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def add(parser: argparse.ArgumentParser, kinds: Mapping[str, type[Any]]) -> None:
    """Add the options of all ``kinds``, by the name of their recipe; each one's help says of which recipes it is."""
    found: dict[str, tuple[Any, list[str]]] = {}
    for name, kind in kinds.items():
        for leaf in leaves(kind()):
            found.setdefault(leaf.key, (leaf, []))[1].append(name)
    for key, (leaf, names) in found.items():
        text = leaf.help + ("" if len(names) == len(kinds) else f" ({', '.join(names)})")
        words: dict[str, Any] = {"dest": DEST + key, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if leaf.kind is bool:
            parser.add_argument(flag(key), action="store_true", **words)
        else:
            parser.add_argument(flag(key), metavar=kind_text(leaf.kind).upper().replace(" ", ""), **words)


def chosen(kind: type[O], given: argparse.Namespace, name: str) -> O:
    """What was given as options of the recipe ``name``; SettingsError for one that it does not have."""
    words = {key.removeprefix(DEST): value for key, value in vars(given).items() if key.startswith(DEST)}
    default = kind()
    known = [leaf.key for leaf in leaves(default)]
    if wrong := [key for key in words if key not in known]:
        raise SettingsError(unknown(flag(wrong[0]), [flag(key) for key in known], f"option of predictions by {name}"))
    return changed(default, words)
