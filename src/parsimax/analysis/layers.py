"""Which attention layer is which: what its name and its shapes tell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

CROSS = re.compile(r"cross|enc_?dec|encoder_attn|multihead_attn|context|src_attn|memory", re.IGNORECASE)
OWN_PARTS = {"core", "parsimax"}  # what parsimax calls the part inside an attention module that is observed


@dataclass
class Layer:
    """One attention layer of a model.

    Args:
        name: where it is in the model, such as ``encoder.layer.0.attention.self``.
        kind: "self"; in a model with encoder and decoder, "decoder" for its self-attention there and "cross" for the
            attention from decoder to encoder.
        mapping: the name of its mapping, such as "entmax"; "" where it is not known.
        heads: how many.
        alpha: of each head when it was last seen; None for a mapping without α.
        causal: whether its queries may not see later keys; None where nobody said so.
    """

    name: str
    kind: str
    mapping: str
    heads: int
    alpha: list[float] | None = None
    causal: bool | None = None


def attention_name(core: str) -> str:
    """The name of the attention module that holds a core of this name."""
    parts = [part for part in core.split(".") if part != "_orig_mod"]  # what torch.compile adds
    if parts and parts[-1] in OWN_PARTS:
        parts.pop()
    return ".".join(parts) or "attention"


def in_decoder(name: str) -> bool:
    return any(part.lower().startswith("decoder") for part in name.split("."))


def guess_kinds(names: Iterable[str]) -> dict[str, str]:
    """The kind of each layer of one model, from the names of them all.

    >>> guess_kinds(["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"])
    {'encoder.layers.0.self_attn': 'self', 'decoder.layers.0.self_attn': 'decoder',
     'decoder.layers.0.multihead_attn': 'cross'}
    """
    names = list(names)
    cross = {name for name in names if CROSS.search(_tail(name))}
    stacks = {_stack(name) for name in cross} - {None}  # of layers that also attend to another sequence
    several = bool(cross) or len({in_decoder(name) for name in names}) == 2
    kinds = {}
    for name in names:
        decodes = several and (in_decoder(name) or _stack(name) in stacks)
        kinds[name] = "cross" if name in cross else "decoder" if decodes else "self"
    return kinds


def _stack(name: str) -> str | None:
    """What comes before the first number in a dotted name; None if there is no number."""
    parts = name.split(".")
    return next((".".join(parts[:i]) for i, part in enumerate(parts) if part.isdigit()), None)


def _tail(name: str) -> str:
    """What follows the last number in a dotted name; the whole name if nothing does."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    tail = parts[numbers[-1] + 1 :] if numbers else parts
    return ".".join(tail or parts)
