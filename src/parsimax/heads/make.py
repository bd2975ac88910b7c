"""Heads by name, for settings and saved models."""

from __future__ import annotations

from typing import Any

from .head import Head, Tied
from .linear import LinearHead, MonotonicHead, PLIFHead, SigSoftmaxHead
from .mixture import MixtureOfSoftmaxes
from .plif import PLIF

KINDS = ("linear", "sigsoftmax", "monotonic", "plif", "mixture", "mixture-plif")


def make_head(kind: str, features: int, classes: int, *, bias: bool = True, tied: Tied = None, **settings: Any) -> Head:
    """A head by its name.

    Args:
        kind: "linear", "sigsoftmax", "monotonic", "plif", "mixture" or "mixture-plif".
        features: of the hidden states.
        classes: how many.
        bias: whether a number per class is added to its score.
        tied: an embedding whose weight scores the classes.
        settings: those of the class, such as ``mapping="entmax15"``, ``knots=1000`` or ``components=5``.

    Returns:
        A :class:`LinearHead`, :class:`SigSoftmaxHead`, :class:`MonotonicHead`, :class:`PLIFHead` or
        :class:`MixtureOfSoftmaxes`, the last for "mixture-plif" with a :class:`PLIF`, which takes ``knots`` and
        ``bound``.

    Example:
        >>> import parsimax
        >>> parsimax.make_head("mixture", 8, 100, components=3)
        MixtureOfSoftmaxes(
          features=8, classes=100, components=3, width=8, tanh=True, bias=True
          (mapping): Softmax(dim=-1)
          (contexts): Linear(in_features=8, out_features=24, bias=True)
          (prior): Linear(in_features=8, out_features=3, bias=False)
        )
    """
    classes_of: dict[str, Any] = {"linear": LinearHead, "sigsoftmax": SigSoftmaxHead, "monotonic": MonotonicHead}
    classes_of |= {"plif": PLIFHead, "mixture": MixtureOfSoftmaxes, "mixture-plif": MixtureOfSoftmaxes}
    if kind not in classes_of:
        raise ValueError(f"make_head: no head is called {kind!r}; there are {', '.join(KINDS)}")
    if kind == "mixture-plif":
        if "function" in settings:
            raise TypeError('make_head: mixture-plif has a PLIF as its function; for another take "mixture"')
        own = {name: settings.pop(name) for name in ("knots", "bound") if name in settings}
        settings["function"] = PLIF(**own)
    try:
        head: Head = classes_of[kind](features, classes, bias=bias, tied=tied, **settings)
    except TypeError as error:
        raise TypeError(f"make_head: {kind}: {error}") from None
    return head
