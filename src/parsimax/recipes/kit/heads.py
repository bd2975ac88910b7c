"""The output heads that recipes offer, and the settings that each of them reads."""

from __future__ import annotations

from typing import Any, Literal

from .settings import SettingsError, refuse_unread

Kind = Literal["linear", "sigsoftmax", "monotonic", "plif", "mixture", "mixture-plif"]
OWN = {"monotonic": ("units",), "plif": ("knots",), "mixture": ("components", "tanh")}
OWN["mixture-plif"] = (*OWN["mixture"], "knots")


def own_settings(model: Any) -> dict[str, Any]:
    """Those of the head chosen, by name."""
    return {name: getattr(model, name) for name in OWN.get(model.head, ())}


def check_head(settings: Any) -> None:
    """Raise SettingsError for what the head chosen cannot be, or does not read."""
    head, own = settings.model.head, own_settings(settings.model)
    if own.get("knots", 0) % 2:
        raise SettingsError(f"model.knots must be even, got {own['knots']}")
    others = {name for names in OWN.values() for name in names} - own.keys()
    refuse_unread(settings, sorted(f"model.{name}" for name in others), f"model.head={head}")
