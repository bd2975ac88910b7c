"""The papers' systems as things to run, read and change. ``parsimax list`` prints them.

A recipe is a folder: ``settings.py`` with its settings, which imports nothing heavy, and ``recipe.py`` with ``RECIPE``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .kit.settings import SettingsError, unknown


@dataclass(frozen=True)
class Entry:
    """A recipe's name, what it does, and its folder."""

    name: str
    summary: str
    folder: str

    def settings(self) -> Any:
        """Its settings, each at its default."""
        return import_module(f"{__name__}.{self.folder}.settings").Settings()

    def recipe(self) -> Any:
        return import_module(f"{__name__}.{self.folder}.recipe").RECIPE


RECIPES = {
    entry.name: entry
    for entry in (
        Entry(
            "inflection",
            "character LSTM that inflects words with sparse attention and output (Peters 2019)",
            "inflection",
        ),
        Entry("translation", "adaptively sparse Transformer, one learned α per head (Correia 2019)", "translation"),
    )
}


def find(name: str) -> Entry:
    """The recipe of that name."""
    if name not in RECIPES:
        raise SettingsError(unknown(name, [*RECIPES], "recipe"))
    return RECIPES[name]
