"""What the page says of layers, heads and examples, as plain lists and dictionaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..example import KEYS, QUERIES, SOURCE, TARGET, Example
from ..layers import Layer
from ..measures import HeadMeasures, densities, measures
from ..recording import Recording
from ..roles import HeadRoles
from ..tables import Table
from .pack import LEVELS

PRECISION = (
    f"Weights are rounded to steps of 1/{LEVELS}, by half a step at most; zeros are exact. Where cells are smaller "
    "than a pixel, the pixel shows the largest weight under it, so a map looks denser than it is."
)


def page_facts(recording: Recording, roles: Table[HeadRoles], captions: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything but the weights. Not one NaN is left in it, as JSON has none."""
    table = measures(recording)
    named = {(row.layer, row.head): row for row in roles}
    layers = []
    for layer in recording.layers:
        own = [row for row in table if row.layer == layer.name]
        layers.append(
            {
                "name": layer.name,
                "kind": layer.kind,
                "mapping": layer.mapping,
                "diversity": own[0].diversity if own else None,
                "heads": [_head(row, named.get((layer.name, row.head))) for row in own],
            }
        )
    one = all(layer.kind == "self" for layer in recording.layers)
    causal = [recording.causal(i) for i in range(len(recording.layers))]
    examples = [_example(example, recording.layers, causal, one) for example in recording.examples]
    for example, caption in zip(examples, captions or (), strict=captions is not None):
        example["caption"] = caption
    found: dict[str, Any] = _without_nan(
        {
            "summary": _summary(recording, table),
            "precision": PRECISION,
            "levels": LEVELS,
            "layers": layers,
            "examples": examples,
        }
    )
    return found


def _head(row: HeadMeasures, role: HeadRoles | None) -> dict[str, Any]:
    return {
        "alpha": row.alpha,
        "density": row.density,
        "support": row.support,
        "entropy": row.entropy,
        "confidence": row.confidence,
        "role": role.label if role else None,
        "strength": role.strength if role else None,
        "roles": {name: value for name, value in role.strengths.items() if not math.isnan(value)} if role else {},
    }


def _example(example: Example, layers: list[Layer], causal: list[bool], one: bool) -> dict[str, Any]:
    """Its sentences, each once, and for each layer the sentences of its queries (rows) and keys (columns)."""
    queries, keys = example.query_tokens, example.key_tokens
    sentences: dict[tuple[str, tuple[str, ...]], int] = {}
    used = {side for layer in layers for side in (QUERIES[layer.kind], KEYS[layer.kind])}

    def place(side: str, tokens: Iterable[str]) -> int:
        label = "Tokens" if one else "Source" if side == SOURCE else "Target"
        return sentences.setdefault((label, tuple(tokens)), len(sentences))

    for name in (SOURCE, TARGET) if used == {SOURCE, TARGET} else ():  # in this order on every page
        for layer in layers:
            for side, tokens in ((QUERIES[layer.kind], queries), (KEYS[layer.kind], keys)):
                if side == name:
                    place(side, tokens[layer.name])
    blocks = [
        {
            "shape": weights.shape,
            "entries": weights.values.numel(),
            "densities": densities(weights, never_ahead).tolist(),
            "rows": place(QUERIES[layer.kind], queries[layer.name]),
            "columns": place(KEYS[layer.kind], keys[layer.name]),
        }
        for layer, weights, never_ahead in zip(layers, example.weights, causal, strict=True)
    ]
    return {"sentences": [{"label": label, "tokens": tokens} for label, tokens in sentences], "blocks": blocks}


def _summary(recording: Recording, table: Table[HeadMeasures]) -> str:
    densities = [row.density for row in table if not math.isnan(row.density)]
    mappings = ", ".join(dict.fromkeys(layer.mapping for layer in recording.layers if layer.mapping))
    counts = ((len(recording.layers), "layer"), (len(table), "head"), (len(recording.examples), "example"))
    words = [f"{count:,} {word}{'' if count == 1 else 's'}".replace(",", " ") for count, word in counts]
    if densities:
        words.append(f"mean density {100 * sum(densities) / len(densities):.1f} %")
    return " · ".join([*words, *([mappings] if mappings else [])])


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
