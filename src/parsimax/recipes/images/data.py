"""Images in three parts: scikit-learn's digits, or any of MNIST's format (IDX files, plain or .gz)."""

from __future__ import annotations

import gzip
import math
import zlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..digits import images as digits
from ..kit.recipe import DataError

PARTS = {"train": "train", "val": "train", "test": "t10k"}  # val is the end of the training files
VAL = 10_000  # images of val, or a sixth if there are fewer
MAGIC = {"images": 2051, "labels": 2049}
CLASSES = 10


class Images(NamedTuple):
    """Whole numbers from 0 to ``brightest`` (N, pixels), and labels (N,)."""

    levels: Tensor
    labels: Tensor
    brightest: int

    @property
    def side(self) -> int:
        return math.isqrt(self.levels.shape[1])

    def pixels(self, some: Tensor | list[int] | slice = slice(None)) -> Tensor:
        """From 0 to 1."""
        return self.levels[some].float() / self.brightest

    def part(self, some: slice) -> Images:
        return Images(self.levels[some], self.labels[some], self.brightest)

    def __len__(self) -> int:
        return len(self.labels)


@lru_cache(4)
def splits(root: Path | None) -> dict[str, Images]:
    if root is None:
        found = digits.splits()
        return {
            name: Images((part.pixels * digits.BRIGHTEST).round().to(torch.uint8), part.digits, digits.BRIGHTEST)
            for name, part in found.items()
        }
    train, test = (_read(root, part) for part in ("train", "t10k"))
    if train.side != test.side:
        raise DataError(f"{root}: images of train are {train.side} pixels wide, and those of t10k {test.side}")
    held = min(VAL, len(train) // 6)
    if not held:
        raise DataError(f"{root}: a sixth of the images of train is held out, got {len(train)}; 6 or more are needed")
    return {"train": train.part(slice(None, -held)), "val": train.part(slice(-held, None)), "test": test}


def files(root: Path | None, split: str) -> list[Path]:
    """The files that a split is read from."""
    return [] if root is None else [_file(root, PARTS[split], kind) for kind in MAGIC]


def _file(root: Path, part: str, kind: str) -> Path:
    name = f"{part}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"
    for path in (root / name, root / f"{name}.gz"):
        if path.exists():
            return path
    raise DataError(f"{root} has neither {name} nor {name}.gz, the files of MNIST and of those made like it")


def _read(root: Path, part: str) -> Images:
    images, labels = (_numbers(_file(root, part, kind), MAGIC[kind]) for kind in MAGIC)
    if len(images) != len(labels) or not len(labels):
        raise DataError(f"{root}: {len(images)} images and {len(labels)} labels of {part}")
    if images.shape[1] != images.shape[2]:
        raise DataError(f"{root}: images are square, got {tuple(images.shape[1:])}")
    if int(labels.max()) >= CLASSES:
        raise DataError(f"{root}: labels are 0 to {CLASSES - 1}, got {int(labels.max())}")
    return Images(images.flatten(1), labels.long(), 255)


def _numbers(path: Path, magic: int) -> Tensor:
    """An IDX file: a magic number, a size a dimension, and bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    dims = content[3] if len(content) > 3 else 0
    if int.from_bytes(content[:4], "big") != magic or len(content) < 4 + 4 * dims:
        raise DataError(f"{path} is no IDX file of bytes: it begins with {content[:4].hex()}, not {magic:08x}")
    sizes = [int.from_bytes(content[4 + 4 * d : 8 + 4 * d], "big") for d in range(dims)]
    start = 4 + 4 * dims
    if len(content) != start + math.prod(sizes):
        raise DataError(f"{path} should hold {math.prod(sizes)} bytes after its header, got {len(content) - start}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(sizes)
