"""Figures of output heads: singular spectra of log-probabilities, and the learned shape of a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..spectrum import Spectrum
from .drawing import FAINT, INK, LINE, SEQUENCE, new_figure, plain, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 1001


def spectrum(spectra: Mapping[str, Spectrum] | Spectrum, width: int | None = None, *, bias: bool = False) -> Figure:
    """Singular values of log-probabilities, by their number, each relative to the largest.

    Args:
        spectra: what :func:`parsimax.analysis.rank` gave, by the name of the model; or one.
        width: of the hidden states, if a line is to mark where a linear softmax ends.
        bias: whether it has one, and so ends one later.

    Returns:
        A figure; a dashed line of the same colour is what rounding alone would make.
    """
    given = {"": spectra} if isinstance(spectra, Spectrum) else dict(spectra)
    figure = new_figure(6.4, 4)
    axes = figure.subplots()
    for color, (name, found) in zip(SEQUENCE * len(given), given.items(), strict=False):
        values = found.values / found.values[0]
        label = f"{name}: rank {found.rank}" if name else f"rank {found.rank}"
        axes.plot(range(1, len(values) + 1), values.clamp(min=1e-18), color=color, label=label)
        axes.axhline(found.tolerance / float(found.values[0]), color=color, linestyle="--", linewidth=0.7)
    if width is not None:
        end = width + 1 + bias
        axes.axvline(end, color=FAINT, linewidth=0.8)
        axes.text(end, 1, f" d + {1 + bias} = {end}", color=FAINT, fontsize=9, va="top")
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("number of the singular value", color=INK)
    axes.set_ylabel("share of the largest", color=INK)
    axes.legend(frameon=False, fontsize=9)
    plain(axes)
    axes.grid(color=LINE, linewidth=0.5)
    first = next(iter(given.values()))
    title(axes, "Rank of log-probabilities", f"{first.contexts} contexts, {first.classes} classes")
    return figure


@torch.no_grad()
def function(learned: Callable[[Tensor], Tensor], low: float = -20.0, high: float = 20.0) -> Figure:
    """The shape of a function of each score, such as a trained ``PLIF`` or ``Monotonic``, and its slope.

    Args:
        learned: the function or module.
        low: where the picture begins.
        high: where it ends.

    Returns:
        A figure with the function above its slope; grey is the identity, moved to meet it in the middle.
    """
    if not callable(learned):
        raise TypeError(
            f"figures.function: learned must be a function or module of each score, such as a PLIF, got {learned!r}"
        )
    parameters = list(getattr(learned, "parameters", lambda: [])())
    device = parameters[0].device if parameters else "cpu"
    x = torch.linspace(low, high, POINTS, dtype=torch.float64, device=device)
    y = learned(x.to(parameters[0].dtype) if parameters else x).double().cpu()
    x = x.cpu()
    figure = new_figure(6.4, 5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(x, x - x[POINTS // 2] + y[POINTS // 2], color=LINE)
    above.plot(x, y, color=SEQUENCE[0])
    below.axhline(1, color=LINE)
    below.plot((x[1:] + x[:-1]) / 2, y.diff() / x.diff(), color=SEQUENCE[1], linewidth=0.8)
    for axes, label in ((above, "f(x)"), (below, "slope")):
        plain(axes)
        axes.set_ylabel(label, color=INK)
    below.set_xlabel("score", color=INK)
    title(above, "The learned function of each score")
    return figure
