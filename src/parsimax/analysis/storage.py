"""Recordings as files."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import torch

from .example import Example, Side
from .layers import Layer
from .recording import Recording
from .weights import SparseWeights

FORMAT = "parsimax recording 1"


def save(recording: Recording, path: str | os.PathLike[str]) -> None:
    examples = [
        {
            "sides": {name: asdict(side) for name, side in example.sides.items()},
            "generated": example.generated,
            "weights": [(w.shape, w.counts, w.keys, w.values, w.visible) for w in example.weights],
        }
        for example in recording.examples
    ]
    layers = [asdict(layer) for layer in recording.layers]
    torch.save({"format": FORMAT, "layers": layers, "examples": examples}, path)


def load(path: str | os.PathLike[str]) -> Recording:
    """Read a recording that :meth:`Recording.save` wrote. No code in the file is run.

    Args:
        path: of the file.

    Returns:
        An equal recording.

    Example:
        >>> import torch, tempfile, pathlib
        >>> from parsimax import analysis
        >>> recording = analysis.Recording.from_weights({"layer.0": torch.eye(3).expand(1, 2, 3, 3)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "recording.pt"
        ...     recording.save(path)
        ...     analysis.load(path)
        Recording(1 example, 1 layer, 2 heads, density 0.33)
    """
    try:
        data: Any = torch.load(path, weights_only=True)
    except OSError:
        raise
    except Exception:  # whatever torch makes of a file that is none of its own; its advice is for files of others
        raise ValueError(f"load: {os.fspath(path)} is not a recording that Recording.save wrote") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"load: {os.fspath(path)} is not a recording of this version ({FORMAT})")
    layers = [Layer(**layer) for layer in data["layers"]]
    examples = [
        Example(
            {name: Side(**side) for name, side in example["sides"].items()},
            [SparseWeights(tuple(shape), *tensors) for shape, *tensors in example["weights"]],
            layers,
            example["generated"],
        )
        for example in data["examples"]
    ]
    return Recording(layers, examples)
