"""One cell for each head, layers by heads: density, entropy, roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..recording import Recording
from ..roles import HeadRoles
from ..roles import roles as find_roles
from ..tables import Table
from .drawing import (
    INK,
    MANY,
    NOTHING,
    SEQUENCE,
    Measured,
    by_kind,
    color_bar,
    color_map,
    grid_size,
    head_grid,
    measured_table,
    new_figure,
    title,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def density(measured: Measured) -> Figure:
    """The share of non-zero weights of every head, layers by heads.

    Args:
        measured: what :func:`measures` returned, or a recording to measure.

    Returns:
        A figure.

    Example:
        >>> import torch
        >>> from parsimax.analysis import Recording, figures
        >>> figures.density(Recording.from_weights([torch.eye(3).expand(1, 2, 3, 3)]))
        <Figure size ... with 2 Axes>
    """
    return _heads(measured, "density", "Density: the share of keys with a non-zero weight", 2, (0, 1), "density")


def entropy(measured: Measured) -> Figure:
    """The entropy of every head's weights in nats, layers by heads.

    Args:
        measured: what :func:`measures` returned, or a recording to measure.

    Returns:
        A figure.

    Example:
        >>> import torch
        >>> from parsimax.analysis import Recording, figures
        >>> figures.entropy(Recording.from_weights([torch.eye(3).expand(1, 2, 3, 3)]))
        <Figure size ... with 2 Axes>
    """
    return _heads(measured, "entropy", "Entropy: 0 where one key gets all", 2, (0, None), "nats")


def roles(found: Recording | Table[HeadRoles]) -> Figure:
    """What every head does: the colour of its strongest role, stronger where the role is, layers by heads.

    Args:
        found: what :func:`roles` returned, or a recording.

    Returns:
        A figure.

    Example:
        >>> import torch
        >>> from parsimax.analysis import Recording, figures
        >>> figures.roles(Recording.from_weights([torch.eye(3).expand(1, 2, 3, 3)]))
        <Figure size ... with 1 Axes>
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch, Rectangle

    table = by_kind(find_roles(found) if isinstance(found, Recording) else found)
    layers, heads = table.layers, max((row.head + 1 for row in table), default=0)
    names = list(dict.fromkeys(name for row in table for name in row.strengths))
    colors = dict(zip(names, SEQUENCE * len(names), strict=False))
    width, height = grid_size(len(layers), heads)
    figure = new_figure(width + 0.3, height + 0.4)
    axes: Any = figure.add_subplot()
    for row in table:
        place = (row.head - 0.5, layers.index(row.layer) - 0.5)
        shade: Sequence[float] | str = NOTHING
        if row.label is not None and row.strength is not None:
            shade = [1 - row.strength * (1 - part) for part in to_rgb(colors[row.label])]
        axes.add_patch(Rectangle(place, 1, 1, facecolor=shade, linewidth=0))
        if row.strength is not None and len(table) <= MANY:
            text = f"{row.strength:.2f}".removeprefix("0")
            tone = "white" if row.strength > 0.55 else INK
            axes.text(row.head, layers.index(row.layer), text, ha="center", va="center", fontsize=8, color=tone)
    axes.set(xlim=(-0.5, heads - 0.5), ylim=(len(layers) - 0.5, -0.5))
    head_grid(axes, layers, heads)
    counts = {name: sum(row.label == name for row in table) for name in names}
    title(axes, "Roles of heads", f"{sum(counts.values())} of {len(table)} heads have one; number: mean weight on it")
    handles = [Patch(facecolor=colors[name], label=f"{name} ({counts[name]})") for name in names if counts[name]]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _heads(
    measured: Measured, column: str, text: str, digits: int, limits: tuple[float, float | None], label: str
) -> Figure:
    table = measured_table(measured)
    values = table.matrix(column)
    figure = new_figure(*grid_size(*values.shape))
    axes: Any = figure.add_subplot()
    seen = values[~values.isnan()]
    high = limits[1] if limits[1] is not None else max(float(seen.max()) if len(seen) else 0.0, 0.1)
    image = axes.imshow(
        values.numpy(), cmap=color_map("blues"), vmin=limits[0], vmax=high, interpolation="nearest", aspect="auto"
    )
    head_grid(axes, table.layers, values.shape[1])
    write_numbers(axes, values, digits, limits[0], high)
    title(axes, text, f"mean over heads {float(seen.mean()):.2f}" if len(seen) else "")
    color_bar(figure, image, axes, label)
    return figure
