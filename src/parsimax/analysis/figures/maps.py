"""Weights as pictures: one head on one example, and all heads of two models against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..compare import Comparison
from ..recording import Recording
from ..weights import SparseWeights, check_index
from .drawing import INK, LINE, NOTHING, color_bar, color_map, new_figure, plain, short_names, title, write_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRITTEN = 60  # tokens that have room for their text
HATCHED = 200  # tokens up to which exact zeros are hatched too; among more, hatching would hide single weights
PIXELS = 400  # cells along an axis; with more tokens a cell is the largest weight of several


def attention(recording: Recording, layer: int | str = 0, head: int = 0, example: int = 0) -> Figure:
    """The weights of one head on one example. Exact zeros are white, every other weight has a colour.

    Args:
        recording: what was recorded.
        layer: its number or its name.
        head: its number.
        example: its number.

    Returns:
        A figure.

    Example:
        >>> import torch
        >>> from parsimax.analysis import Recording, figures
        >>> recording = Recording.from_weights([torch.eye(3).expand(1, 2, 3, 3)], tokens=["a", "b", "c"])
        >>> figures.attention(recording, layer=0, head=1)
        <Figure size ... with 2 Axes>
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Patch, Rectangle

    number = recording.index(layer)
    info = recording.layers[number]
    head = check_index(head, info.heads, "head", f"figures.attention of layer {info.name}")
    shown = recording.examples[check_index(example, len(recording.examples), "example", "figures.attention")]
    weights = shown.weights[number]
    _, queries, keys = weights.shape
    cells = _cells(weights, head)
    longest = max(queries, keys, 1)
    size = min(11.0, max(3.2, 0.2 * longest))
    figure = new_figure(1 + max(2.2, size * keys / longest), 1 + max(2.2, size * queries / longest))
    axes: Any = figure.add_subplot()
    edges = (-0.5, keys - 0.5, queries - 0.5, -0.5)
    hatch = "////" if longest <= HATCHED else None
    style: dict[str, Any] = {"facecolor": "white", "edgecolor": LINE, "hatch": hatch}
    axes.add_patch(Rectangle((-0.5, -0.5), keys, queries, zorder=0, linewidth=0, **style))
    image = axes.imshow(
        torch.where(cells > 0, cells, float("nan")).numpy(),
        cmap=color_map("weights"),
        norm=PowerNorm(0.5, 0, 1),
        extent=edges,
        interpolation="nearest",
        aspect="equal",
        zorder=1,
    )
    options: dict[str, Any]
    for axis, count, tokens, options in (
        (axes.xaxis, keys, shown.key_tokens[info.name], {"rotation": 90}),
        (axes.yaxis, queries, shown.query_tokens[info.name], {}),
    ):
        if count <= WRITTEN:
            write_tokens(axis, tokens, **options)
    plain(axes)
    axes.spines[:].set(visible=True, color=LINE)
    share = float(weights.density()[head])
    of = f", α = {info.alpha[head]:.2f}" if info.alpha else ""
    names = short_names([each.name for each in recording.layers])
    title(axes, f"{names[number]}, head {head}", f"{1 - share:.1%} exact zeros{of}")
    axes.set_xlabel("attended to", fontsize=10, color=INK)
    axes.set_ylabel("attends", fontsize=10, color=INK)
    color_bar(figure, image, axes, "weight").set_ticks(
        [0.01, 0.1, 0.25, 0.5, 1], labels=["0.01", "0.1", "0.25", "0.5", "1"]
    )
    figure.legend(
        handles=[Patch(**style, linewidth=0.8, label="exactly 0")],
        loc="outside lower right",
        frameon=False,
        fontsize=9,
    )
    return figure


def comparison(compared: Comparison) -> Figure:
    """Head against head of two models: dark where two attend alike; a ring marks the nearest head of each row.

    Args:
        compared: what :func:`compare` returned.

    Returns:
        A figure.

    Example:
        >>> import torch
        >>> from parsimax import analysis
        >>> recording = analysis.Recording.from_weights([torch.eye(3).expand(1, 2, 3, 3)])
        >>> analysis.figures.comparison(analysis.compare(recording, recording))
        <Figure size ... with 2 Axes>
    """
    rows, columns = len(compared.heads), len(compared.other_heads)
    cell = min(0.45, 9 / max(rows, columns, 1))
    figure = new_figure(2.5 + max(2.4, cell * columns), 1.7 + max(2.4, cell * rows))
    axes: Any = figure.add_subplot()
    axes.set_facecolor(NOTHING)
    image = axes.imshow(
        compared.divergence.numpy(),
        cmap=color_map("blues").reversed(),
        vmin=0,
        vmax=1,
        interpolation="nearest",
        aspect="auto",
    )
    marks = [
        (compared.heads.index((m.layer, m.head)), compared.other_heads.index((m.other_layer, m.other_head)))
        for m in compared.matches()
    ]
    size = min(60.0, (24 * cell) ** 2)
    axes.scatter(
        [j for _, j in marks], [i for i, _ in marks], s=size, facecolors="none", edgecolors="#e08e2b", linewidths=1.4
    )
    options: dict[str, Any]
    for heads, axis, line, options in (
        (compared.heads, axes.yaxis, axes.axhline, {}),
        (compared.other_heads, axes.xaxis, axes.axvline, {"rotation": 90}),
    ):
        layers = list(dict.fromkeys(name for name, _ in heads))
        starts = [next(i for i, (name, _) in enumerate(heads) if name == layer) for layer in layers]
        for start in starts[1:]:
            line(start - 0.5, color="white", linewidth=2)
        ends = [*starts[1:], len(heads)]
        axis.set_ticks(
            [(a + b - 1) / 2 for a, b in zip(starts, ends, strict=True)],
            short_names(layers),
            parse_math=False,
            **options,
        )
    plain(axes)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    title(axes, "Heads of one model against heads of the other", "ring: the nearest head of the other model")
    axes.set_xlabel("heads of the other model", fontsize=10, color=INK)
    axes.set_ylabel("heads of this model", fontsize=10, color=INK)
    color_bar(figure, image, axes, "Jensen–Shannon divergence (bits)")
    return figure


def _cells(weights: SparseWeights, head: int) -> Tensor:
    """The weights of a head, at most ``PIXELS`` a side; NaN becomes 1, so that it shows."""
    _, queries, keys = weights.shape
    rows, columns = min(queries, PIXELS), min(keys, PIXELS)
    of_head, query, key, value = weights.entries()
    own = of_head == head
    place = (query[own] * rows // max(queries, 1)) * columns + key[own] * columns // max(keys, 1)
    cells = torch.zeros(rows * columns)
    return cells.scatter_reduce_(0, place, value[own].nan_to_num(nan=1.0), "amax").view(rows, columns)
