"""The mappings on the 2-simplex, as curves, and on the 3-simplex, as regions of scores and as images of a grid."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import parsimax

Array = NDArray[np.float64]
Mapping = Callable[[Tensor], Tensor]
DPI = 150
SUPPORT = ("#d1495b", "#edc268", "#cfe3f1")  # one, two, three probabilities above 0
INK, REACH, REACH_OF_GRID = "#22303c", 2.6, 3.0
CORNERS = np.array([[-math.sqrt(3) / 2, -0.5], [math.sqrt(3) / 2, -0.5], [0.0, 1.0]])  # of a triangle around 0


class Curve(NamedTuple):
    label: str
    mapping: Mapping
    color: Any
    dash: str = "-"


def family() -> list[Curve]:
    tones = matplotlib.colormaps["viridis"]
    alphas = (1.0, 1.25, 1.5, 2.0, 4.0, math.inf)
    names = {1.0: "1   softmax", 1.5: "1.5", 2.0: "2   sparsemax", math.inf: "∞   argmax"}
    return [
        Curve(f"α = {names.get(a, f'{a:g}')}", lambda z, a=a: parsimax.entmax(z, a), tones(0.95 * i / 5))  # type: ignore[misc]
        for i, a in enumerate(alphas)
    ]


OTHERS = (
    Curve("softmax, for comparison", parsimax.softmax, "#b4bcc4"),
    Curve("sigsoftmax", parsimax.sigsoftmax, "#8a6bb8"),
    Curve("t-softmax, t = 1.5", lambda z: parsimax.tsoftmax(z, 1.5), "#d1495b"),
    Curve("r-softmax, any rate", lambda z: parsimax.rsoftmax(z, 0.5), "#22303c", "--"),
    Curve("normmax, α = 2", lambda z: parsimax.normmax(z, 2.0), "#2a7f62"),
    Curve("sparsegen, λ = −1", lambda z: parsimax.sparsegen(z, -1.0), "#e08e2b"),
    Curve("sparsehourglass, q = 0.2", lambda z: parsimax.sparsehourglass(z, 0.2), "#3a7ca5", "-."),
    Curve("budget sparsemax, sum 1.5", lambda z: parsimax.budget_sparsemax(z, 1.5), "#c06c9a", ":"),
)
TRIANGLES = (
    Curve("softmax", parsimax.softmax, INK),
    Curve("entmax, α = 1.5", parsimax.entmax15, INK),
    Curve("sparsemax", parsimax.sparsemax, INK),
    Curve("normmax, α = 2", lambda z: parsimax.normmax(z, 2.0), INK),
    Curve("t-softmax, t = 2", lambda z: parsimax.tsoftmax(z, 2.0), INK),
    Curve("r-softmax, rate 0.1", lambda z: parsimax.rsoftmax(z, 0.1), INK),
    Curve("top-2 sparsemax", lambda z: parsimax.topk_sparsemax(z, 2), INK),
)


def draw_curves(axes: Any, curves: tuple[Curve, ...] | list[Curve], title: str, note: str) -> None:
    gap = torch.linspace(-4, 4, 1601, dtype=torch.float64)
    scores = torch.stack([gap, torch.zeros_like(gap)], -1)
    for curve in curves:
        p = curve.mapping(scores)[:, 0]
        axes.plot(gap, p, color=curve.color, linestyle=curve.dash, linewidth=2, label=curve.label)
    axes.set(xlim=(-4, 4), ylim=(-0.03, 1.03), xlabel="score $z_1$, against $z_2 = 0$", yticks=[0, 0.25, 0.5, 0.75, 1])
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK)
    axes.text(0.98, 0.04, note, transform=axes.transAxes, ha="right", va="bottom", fontsize=10, color="#5a6772")
    axes.grid(color="#e5e9ec", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", fontsize=10, frameon=True, framealpha=0.9, edgecolor="none", borderpad=0.2)


def plane(points: int) -> tuple[Array, Tensor]:
    """A grid over the plane of scores that sum to 0, drawn so that the corner i is where score i is largest."""
    side = np.linspace(-REACH, REACH, points)
    spots = np.stack(np.meshgrid(side, side), -1)
    return side, torch.tensor(spots @ (2 / 3 * CORNERS.T))


def lattice(steps: int = 26) -> Tensor:
    """Scores on a lattice that treats all three alike, no two of them further apart than REACH_OF_GRID."""
    i, j = torch.meshgrid(*[torch.arange(-steps, steps + 1, dtype=torch.float64)] * 2, indexing="ij")
    scores = torch.stack([i, j, torch.zeros_like(i)], -1).reshape(-1, 3)
    inside = scores.max(-1).values - scores.min(-1).values <= steps
    return (scores - scores.mean(-1, keepdim=True))[inside] * (REACH_OF_GRID / steps)


def draw_regions(axes: Any, curve: Curve) -> None:
    side, scores = plane(521)
    p = curve.mapping(scores)
    size = parsimax.support_size(p).numpy()
    colors, steps = ListedColormap(SUPPORT), BoundaryNorm([0.5, 1.5, 2.5, 3.5], 3)
    axes.pcolormesh(side, side, size, cmap=colors, norm=steps, shading="nearest", rasterized=True)
    largest = np.where(size > 1, p.max(-1).values.numpy(), np.nan)
    axes.contour(side, side, largest, levels=[0.4, 0.5, 0.6, 0.7, 0.8, 0.9], colors=INK, linewidths=0.7, alpha=0.75)
    axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[], yticks=[], aspect="equal")
    axes.set_title(curve.label, fontsize=12, color=INK)
    for i, corner in enumerate(CORNERS):
        x, y = 0.83 * REACH * corner / np.abs(corner).max()
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        axes.text(x, y, f"$z_{i + 1}$", ha="center", va="center", fontsize=11, color=INK, bbox=box)


def draw_image(axes: Any, curve: Curve) -> None:
    p = curve.mapping(lattice())
    size = parsimax.support_size(p).numpy()
    spots = p.numpy() @ CORNERS
    axes.fill(*CORNERS.T, facecolor="#f6f8f9", edgecolor="#9aa5ae", linewidth=1)
    for count, area in ((3, 5), (2, 7), (1, 60)):
        at = spots[size == count]
        color = "#5b93b8" if count == 3 else SUPPORT[count - 1]
        axes.scatter(*at.T, s=area, color=color, linewidths=0, clip_on=False, zorder=4 - count)
    shares = [f"{(size == count).mean():.0%}" for count in (1, 2, 3)]
    axes.text(0, -0.74, " · ".join(shares), ha="center", va="center", fontsize=11, color=INK)
    axes.set(xlim=(-0.97, 0.97), ylim=(-0.88, 1.06), aspect="equal")
    axes.axis("off")


def heading(figure: Figure, y: float, title: str, rest: str) -> None:
    figure.text(0.035, y, title, fontsize=13, fontweight="bold", color=INK, va="bottom")
    figure.text(0.035, y - 0.003, rest, fontsize=11, color="#5a6772", va="top")


def draw() -> Figure:
    figure = Figure(figsize=(15, 11.4), facecolor="white")
    figure.text(0.035, 0.966, "From softmax to sparse: how mappings share out probability", fontsize=18, color=INK)
    top = figure.add_gridspec(1, 2, left=0.06, right=0.985, top=0.925, bottom=0.588, wspace=0.12)
    left, right = top.subplots(squeeze=False)[0]
    draw_curves(
        left, family(), "Two scores: $p_1$ under entmax", "exactly 0 and 1 from a gap\nof 1/(α − 1) on; never for α = 1"
    )
    draw_curves(right, OTHERS, "Two scores: $p_1$ under other mappings", "")
    columns = len(TRIANGLES)
    middle = figure.add_gridspec(1, columns, left=0.035, right=0.985, top=0.465, bottom=0.29, wspace=0.07)
    bottom = figure.add_gridspec(1, columns, left=0.035, right=0.985, top=0.198, bottom=0.012, wspace=0.07)
    heading(
        figure,
        0.518,
        "Three scores: which of them get a share",
        "Seen from above the plane $z_1 + z_2 + z_3 = 0$. Lines: the largest probability is 0.4, 0.5, … 0.9.",
    )
    heading(
        figure,
        0.236,
        "Where a grid of such scores lands in the triangle of probabilities",
        f"Scores at most {REACH_OF_GRID:g} apart. "
        "Below each: the share of them with one, two and three probabilities above 0.",
    )
    rows = (part.subplots(squeeze=False)[0] for part in (middle, bottom))
    for curve, above, below in zip(TRIANGLES, *rows, strict=True):
        draw_regions(above, curve)
        draw_image(below, curve)
    names = ("one probability above 0", "two", "three")
    handles = [Patch(facecolor=c, label=n) for c, n in zip(SUPPORT, names, strict=True)]
    figure.legend(handles=handles, loc="lower right", bbox_to_anchor=(0.985, 0.5), ncols=3, fontsize=11, frameon=False)
    return figure


def write(folder: Path) -> Path:
    """Draw, and save with a palette of 128 colours, which a picture of flat areas loses nothing by."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mappings.png"
    figure, memory = draw(), io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(memory, dpi=DPI, format="png")
    image = Image.open(memory).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(path, optimize=True, dpi=(DPI, DPI))
    return path
