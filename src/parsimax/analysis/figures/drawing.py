"""What the figures share: colours, names of layers, grids of heads. Nothing here touches pyplot's global state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from ..measures import HeadMeasures, measures
from ..recording import Recording
from ..tables import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measured: TypeAlias = Recording | Table[HeadMeasures]

INK, FAINT, LINE, NOTHING = "#22303c", "#5a6772", "#d5dbe0", "#eef1f3"
KIND_COLORS = {"self": "#3a7ca5", "decoder": "#2a7f62", "cross": "#d1495b"}
KIND_NAMES = {"self": "self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
SEQUENCE = ("#3a7ca5", "#d1495b", "#2a7f62", "#e08e2b", "#8a6bb8", "#c06c9a", "#7fa84f", "#22303c")
# Fonts for what the usual one lacks, where they are installed.
FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Hiragino Sans",
    "Yu Gothic",
    "Microsoft YaHei",
    "Noto Sans",
    "Arial Unicode MS",
)
MANY = 320  # cells of a grid: beyond it they carry no numbers


def measured_table(measured: Measured) -> Table[HeadMeasures]:
    return by_kind(measures(measured) if isinstance(measured, Recording) else measured)


def by_kind(table: Table[Row]) -> Table[Row]:
    """The same rows, with all layers of a kind together."""
    return Table(sorted(table, key=lambda row: list(KIND_NAMES).index(row.kind)))


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("parsimax.analysis.figures needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    return figure


def color_map(name: str) -> Any:
    """Blues from light to dark that stay visible on white; or yellow to violet for weights."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap

    if name == "weights":
        colors = ["#ffd84d", *colormaps["viridis_r"]([0.25, 0.5, 0.75, 1.0])]
        return LinearSegmentedColormap.from_list("weights", colors)
    return LinearSegmentedColormap.from_list("blues", ["#eaf2f8", "#8fbcdb", "#2f76a8", "#0d3350"])


def title(axes: Any, text: str, note: str = "") -> None:
    """A bold title above the axes and a plain line below it."""
    axes.set_title(
        text + ("\n" if note else ""), loc="left", fontsize=12, fontweight="bold", color=INK, parse_math=False
    )
    if note:
        offset = {"xycoords": "axes fraction", "textcoords": "offset points", "xytext": (0, 6)}
        axes.annotate(note, (0, 1), **offset, fontsize=9.5, color=FAINT, va="bottom", ha="left", parse_math=False)


def plain(axes: Any) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)


def short_names(names: Sequence[str]) -> list[str]:
    """Dotted names without the parts at both ends that all share.

    >>> short_names(["bert.layer.0.attention", "bert.layer.1.attention"])
    ['layer 0', 'layer 1']
    >>> short_names(["m.encoder.0.self_attn", "m.decoder.0.self_attn", "m.decoder.0.cross_attn"])
    ['encoder.0.self_attn', 'decoder.0.self_attn', 'decoder.0.cross_attn']
    """
    split = [name.split(".") for name in names]
    if len(split) < 2:
        return list(names)
    while min(map(len, split)) > 1 and len({parts[0] for parts in split}) == 1:
        split = [parts[1:] for parts in split]
    while min(map(len, split)) > 1 and len({parts[-1] for parts in split}) == 1:
        split = [parts[:-1] for parts in split]
    return [f"layer {parts[0]}" if len(parts) == 1 and parts[0].isdigit() else ".".join(parts) for parts in split]


def write_tokens(axis: Any, tokens: Sequence[str], **options: Any) -> None:
    """Tokens as labels of an axis, whatever is in them: no mathematics is read from dollar signs."""
    from matplotlib import font_manager, rcParams

    installed = {font.name for font in font_manager.fontManager.ttflist}
    family = [*rcParams["font.family"], *(name for name in FONTS if name in installed)]
    texts = ["".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in token) for token in tokens]
    axis.set_ticks(range(len(texts)), texts, parse_math=False, fontfamily=family, **options)


def head_grid(axes: Any, layers: Sequence[str], heads: int) -> None:
    """Axes of a matrix with a row for each layer and a column for each head."""
    step = max(1, heads // 16)
    axes.set_xticks(range(0, heads, step))
    axes.set_yticks(range(len(layers)), short_names(layers), parse_math=False)
    axes.set_xlabel("head", fontsize=10, color=INK)
    axes.set_xticks([x - 0.5 for x in range(1, heads)], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(layers))], minor=True)
    axes.grid(which="minor", color="white", linewidth=2 if heads <= 24 else 0.5)
    axes.tick_params(which="minor", length=0)
    axes.set_facecolor(NOTHING)
    plain(axes)


def grid_size(layers: int, heads: int) -> tuple[float, float]:
    return max(4.5, min(14, 2.6 + 0.55 * heads)), max(2.6, min(14, 1.5 + 0.42 * layers))


def write_numbers(axes: Any, values: Tensor, digits: int, low: float, high: float) -> None:
    """Each cell's number, in white where the cell is dark."""
    if values.numel() > MANY:
        return
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            if value == value:  # not NaN
                dark = (value - low) / max(high - low, 1e-12) > 0.45
                text = f"{value:.{digits}f}"
                text = text.removeprefix("0") if text.startswith("0.") else text
                axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else INK)


def color_bar(figure: Any, image: Any, axes: Any, label: str) -> Any:
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=9, labelcolor=INK)
    bar.set_label(label, fontsize=10, color=INK)
    return bar
