"""Layer after layer: the α of their heads, and how different their heads are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .drawing import (
    INK,
    KIND_COLORS,
    KIND_NAMES,
    LINE,
    SEQUENCE,
    Measured,
    color_bar,
    color_map,
    measured_table,
    new_figure,
    plain,
    short_names,
    title,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def alpha(measured: Measured) -> Figure:
    """The α of every head: a dot in the row of its layer, darker where it is denser, and a histogram above.

    Args:
        measured: what :func:`measures` returned, or a recording to measure, with α.

    Returns:
        A figure.

    Example:
        >>> import torch
        >>> from parsimax.analysis import Recording, figures
        >>> eye = torch.eye(3).expand(1, 2, 3, 3)
        >>> figures.alpha(Recording.from_weights({"layer.0": eye}, alpha={"layer.0": [1.2, 1.9]}))
        <Figure size ... with 3 Axes>

    Reference: the histograms are figure 3 of Correia, Niculae and Martins, EMNLP 2019.
    """
    rows = [row for row in measured_table(measured) if row.alpha is not None]
    if not rows:
        raise ValueError("figures.alpha: no layer has an α; record a model with entmax, or pass alpha= to from_weights")
    kinds = [kind for kind in KIND_NAMES if any(row.kind == kind for row in rows)]
    layers = {kind: list(dict.fromkeys(row.layer for row in rows if row.kind == kind)) for kind in kinds}
    most = max(map(len, layers.values()))
    figure = new_figure(1 + 3.5 * len(kinds), 2.4 + 0.3 * max(most, 4))
    panels: Any = figure.subplots(2, len(kinds), squeeze=False, height_ratios=[1, max(1.2, 0.22 * most)], sharex=True)
    low = min(1.0, *(row.alpha or 1.0 for row in rows))
    high = max(2.0, *(row.alpha or 2.0 for row in rows))
    dots: Any = None
    for column, kind in enumerate(kinds):
        own = [row for row in rows if row.kind == kind]
        top, bottom = panels[:, column]
        values = [row.alpha for row in own]
        top.hist(values, bins=20, range=(low, high), color=KIND_COLORS[kind], edgecolor="white", linewidth=0.8)
        title(top, KIND_NAMES[kind], f"{len(own)} heads")
        places = [layers[kind].index(row.layer) for row in own]
        shades = [row.density for row in own]
        dots = bottom.scatter(
            values,
            places,
            c=shades,
            cmap=color_map("blues"),
            vmin=0,
            vmax=1,
            s=42,
            edgecolors=INK,
            linewidths=0.5,
            zorder=3,
        )
        bottom.set_yticks(range(len(layers[kind])), short_names(layers[kind]), parse_math=False)
        bottom.set(ylim=(len(layers[kind]) - 0.5, -0.5), xlim=(low - 0.03 * (high - low), high + 0.03 * (high - low)))
        bottom.set_xlabel("α", fontsize=11, color=INK)
        for axes in (top, bottom):
            plain(axes)
            axes.grid(color=LINE, linewidth=0.7)
            axes.set_axisbelow(True)
        top.yaxis.get_major_locator().set_params(integer=True)
        top.set_ylabel("heads" if column == 0 else "", fontsize=10, color=INK)
    color_bar(figure, dots, list(panels[:, -1]), "density")
    return figure


def diversity(measured: Measured | Mapping[str, Measured]) -> Figure:
    """How different the heads of each layer are, by Jensen–Shannon divergence, of one model or of several.

    Args:
        measured: what :func:`measures` returned, or a recording to measure; or several by name.

    Returns:
        A figure with a panel for each kind of attention.

    Example:
        >>> import torch
        >>> from parsimax.analysis import Recording, figures
        >>> layers = [torch.rand(1, 2, 3, 3).softmax(-1) for _ in range(4)]
        >>> figures.diversity({"softmax": Recording.from_weights(layers)})
        <Figure size ... with 1 Axes>

    Reference: figure 6 of Correia, Niculae and Martins, EMNLP 2019.
    """
    several = measured if isinstance(measured, Mapping) else {"": measured}
    tables = {name: measured_table(each) for name, each in several.items()}
    kinds = [kind for kind in KIND_NAMES if any(row.kind == kind for table in tables.values() for row in table)]
    figure = new_figure(1 + 3.8 * max(1, len(kinds)) + (1.4 if any(several) else 0), 3.4)
    panels: Any = figure.subplots(1, max(1, len(kinds)), squeeze=False, sharey=True)[0]
    for axes, kind in zip(panels, kinds, strict=False):
        for (name, table), color in zip(tables.items(), SEQUENCE * len(tables), strict=False):
            values = {row.layer: row.diversity for row in table if row.kind == kind}
            axes.plot(
                range(len(values)),
                list(values.values()),
                "o-",
                color=color,
                label=name,
                linewidth=2,
                markersize=6,
            )
        title(axes, KIND_NAMES[kind], "0: all heads agree, 1: no two share a key" if axes is panels[0] else " ")
        axes.set_xlabel("layer", fontsize=10, color=INK)
        axes.xaxis.get_major_locator().set_params(integer=True)
        plain(axes)
        axes.grid(color=LINE, linewidth=0.7)
    highest = max((axes.dataLim.y1 for axes in panels if axes.lines), default=1.0)
    panels[0].set_ylim(0, 1.08 * highest if highest > 0 else 1)
    panels[0].set_ylabel("diversity of heads", fontsize=10, color=INK)
    if any(several):
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=10)
    return figure
