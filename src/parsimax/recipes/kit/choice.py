"""Which mapping a model uses somewhere, as settings: every mapping of the registry whose rows sum to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from ...mappings import REGISTRY
from ...mappings.declaration import Entry
from ...parameters import LEARNED
from .settings import SettingsError, refuse_unread, setting, shown

FITTING = {name: entry for name, entry in REGISTRY.items() if entry.total == 1}
NUMBERS = sorted({entry.setting.name for entry in FITTING.values() if entry.setting is not None})
HERE = {"rate": 0.8}  # better than the function's example where there are many classes or keys


class Choice:
    """Which mapping turns scores into probabilities, and its setting; those of other mappings are not looked at."""

    mapping: str = setting("entmax", "how scores become probabilities: see docs/mappings.md")

    @property
    def entry(self) -> Entry:
        return FITTING[self.mapping]

    def own(self) -> dict[str, Any]:
        """The setting of the mapping chosen, by its name."""
        setting = self.entry.setting
        return {} if setting is None else {setting.name: getattr(self, setting.name)}


def _add_fields(kind: type) -> None:
    """A field for each setting that a mapping has. Mappings may share one, as entmax and normmax share alpha."""
    kind.__annotations__["mapping"] = Literal[tuple(FITTING)]
    owners: dict[str, list[Entry]] = {}
    for entry in FITTING.values():
        if entry.setting is not None:
            owners.setdefault(entry.setting.name, []).append(entry)
    for name, entries in owners.items():
        first, domains = entries[0].setting, [entry.setting.domain for entry in entries if entry.setting]
        assert first is not None
        text = "; ".join(f"of {entry.name}: {entry.setting.about}" for entry in entries if entry.setting)
        low, high = min(domain.low for domain in domains), max(domain.high for domain in domains)
        ends: dict[str, Any] = {"low": None if math.isinf(low) else low, "high": None if math.isinf(high) else high}
        default = HERE.get(name, first.example if first.default is None else first.default)
        kind.__annotations__[name] = float | Literal[LEARNED] if first.continuous else int
        learned = "; learned: from a random start, one per head" if first.continuous else ""
        setattr(kind, name, setting(default, text + learned, **ends))


_add_fields(Choice)
dataclass(frozen=True)(Choice)


def check_choice(settings: Any, key: str, *, loss: bool = False) -> None:
    """SettingsError for a number that the mapping chosen at ``key`` does not read, or that it does not take.

    ``loss`` says that it is trained by its own loss, which may take less.
    """
    choice: Choice = attrgetter(key)(settings)
    own = choice.own()
    others = [f"{key}.{name}" for name in NUMBERS if name not in own]
    refuse_unread(settings, others, f"{key}.mapping={choice.mapping}")
    setting = choice.entry.loss_setting if loss else choice.entry.setting
    if setting is not None and own[setting.name] != LEARNED and own[setting.name] not in setting.domain:
        whose = f"the loss of {choice.mapping}" if loss else choice.mapping
        given = shown(own[setting.name])
        raise SettingsError(f"{key}.{setting.name} of {whose} must be in {setting.domain}, got {given}")
