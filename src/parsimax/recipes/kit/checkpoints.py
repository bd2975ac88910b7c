"""Checkpoints: tensors and plain data, never code; whole or refused; the last good one kept until the next is proved.

A checkpoint is a zip archive with a CRC of each part, which tells flipped bytes. It is read with ``weights_only``:
a file from a stranger that wants to run something is refused.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO

from . import durable
from .runs import Run
from .settings import SettingsError


class CheckpointError(SettingsError):
    """A checkpoint that cannot be read, and why."""


def save(content: dict[str, Any], path: Path, before: Path | None = None) -> None:
    """Write a checkpoint; ``before`` gets the one that was there, once the new one is proved readable."""
    memory = io.BytesIO()
    torch.save(content, memory)
    durable.folder(path.parent)

    def prove(written: Path) -> None:
        check(written)
        if before is not None:
            durable.keep(path, before)

    durable.replace(path, memory.getvalue(), prove)


def check(path: Path) -> None:
    """Raise CheckpointError unless every byte of the parts is as it was written."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # zipfile raises many kinds on bytes that are no archive
        raise CheckpointError(f"{path} is damaged or no checkpoint ({error})") from None
    if bad is not None:
        raise CheckpointError(f"{path} is damaged: the checksum of {bad} is wrong")


def load(path: Path) -> dict[str, Any]:
    """What a checkpoint holds; CheckpointError where it is damaged or more than tensors and plain data."""
    check(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        names = re.findall(r"GLOBAL (\S+)", str(error)) or ["objects that are not plain data"]
        raise CheckpointError(
            f"{path} is refused: it holds more than weights and plain data, namely {names[0]}, and could run code"
        ) from None
    except Exception as error:  # a pickle may fail in every way
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise CheckpointError(f"{path} is no checkpoint of a training: it has no state_dict of weights")
    return content


def weights(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = load(path)["state_dict"]
    return state


def newest(run: Run) -> tuple[dict[str, Any], Path, list[str]] | None:
    """The last checkpoint that can be read, its path, and what is wrong with later ones; None if there never was one.

    Each holds all that training needs, so going on from an earlier one ends with the same bits.
    """
    wrong = []
    found: list[tuple[dict[str, Any], Path]] = []
    for path in (run.last, run.previous, run.best):
        if path.exists():
            try:
                found.append((load(path), path))
            except CheckpointError as error:
                wrong.append(str(error))
            else:
                if path == run.last:
                    break
        elif path == run.last:
            wrong.append(f"{path} is missing")
    if not found:
        if len(wrong) > 1 or run.last.exists() or _kept_one(run):
            raise CheckpointError(
                f"{run.folder} has been trained, but no checkpoint is left to go on from ({'; '.join(wrong)}); "
                f"bring one back from a copy, or train anew in another folder"
            )
        return None
    content, path = max(found, key=lambda one: int(one[0]["global_step"]))
    return content, path, wrong


def _kept_one(run: Run) -> bool:
    """Whether there was a checkpoint: the first is written after the figures of the first validation are."""
    validated = [row for row in run.rows() if any(name.startswith("val/") and row[name] for name in row)]
    return len({row["step"] for row in validated}) > 1


class WholeFiles(CheckpointIO):
    """How Lightning writes and reads checkpoints here. Only ``last`` keeps its predecessor."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save(checkpoint, Path(path), self.run.previous if Path(path) == self.run.last else None)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return load(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)
