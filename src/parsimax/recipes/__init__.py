"""The papers' systems as things to run, read and change. ``parsimax list`` prints them.

A recipe is a folder: ``__init__.py`` says what it is, ``settings.py`` holds ``ABOUT``, which imports no model, and
``recipe.py`` holds ``RECIPE``. Nothing else names it.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .kit.recipe import About, Settings
from .kit.settings import SettingsError, unknown

SHARED = {"images", "kit", "text"}  # folders that recipes share


@dataclass(frozen=True)
class Entry:
    """A recipe by its name, which is that of its folder."""

    name: str

    @property
    def summary(self) -> str:
        """What it is in a line: the docstring of its folder, which is read without torch."""
        return (
            (import_module(f"{__name__}.{self.name}").__doc__ or self.name).strip().partition("\n")[0].removesuffix(".")
        )

    @property
    def about(self) -> About:
        about: About = import_module(f"{__name__}.{self.name}.settings").ABOUT
        return about

    def settings(self) -> Settings:
        """Its settings, each at its default."""
        return self.about.settings()

    def recipe(self) -> Any:
        return import_module(f"{__name__}.{self.name}.recipe").RECIPE

    def configs(self) -> dict[str, Path]:
        """The settings that are shipped with it, by name."""
        folders = (Path(one) / self.name / "configs" for one in __path__)
        return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def discover() -> dict[str, Entry]:
    """The recipes that are there: every folder beside this file that is not shared."""
    return {one.name: Entry(one.name) for one in pkgutil.iter_modules(__path__) if one.ispkg and one.name not in SHARED}


RECIPES = discover()


def find(name: str) -> Entry:
    """The recipe of that name."""
    if name not in RECIPES:
        raise SettingsError(unknown(name, [*RECIPES], "recipe"))
    return RECIPES[name]
