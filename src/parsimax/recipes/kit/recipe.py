"""What a recipe is to the command line: settings, data, a model that trains, and figures of what it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .runs import Run
from .settings import group, setting


class DataError(ValueError):
    """Data that cannot be used, with the file and the line."""


@dataclass(frozen=True)
class Train:
    """Settings of training that all recipes share."""

    steps: int = setting(2000, "optimiser steps at most", low=1)
    batch_tokens: int = setting(2048, "tokens of a batch: examples × the longest of them", low=1)
    lr: float = setting(1e-3, "peak learning rate of Adam", low=0, high=10)
    alpha_lr: float = setting(5.0, "that of learned α, as a multiple of lr", low=0)
    warmup: int = setting(200, "steps in which the rate rises; after them it falls", low=0)
    decay: Literal["cosine", "inverse-sqrt", "none"] = setting("cosine", "how the rate falls after the warm-up")
    clip: float = setting(1.0, "largest norm of the gradient; 0 for any", low=0)
    weight_decay: float = setting(0.0, "of AdamW", low=0)
    eval_every: int = setting(200, "steps between validations, each with a checkpoint", low=1)
    patience: int = setting(0, "stop after so many validations without a better one; 0 goes on", low=0)
    seed: int = setting(1, "of weights, order and dropout", low=0, high=2**31 - 1)
    precision: Literal["32-true", "bf16-mixed"] = setting("32-true", "of Lightning")
    devices: int = setting(1, "processes", low=1)
    strategy: Literal["auto", "ddp"] = setting("auto", "ddp trains with several processes")
    accelerator: Literal["cpu", "auto"] = setting("cpu", "auto takes a GPU where there is one")
    tensorboard: bool = setting(True, "write TensorBoard files beside metrics.csv")


@dataclass(frozen=True)
class Data:
    """Where the data is."""

    root: Path | None = setting(None, "folder of the data in its standard format; none for the embedded default")


@dataclass(frozen=True)
class Settings:
    """The base of a recipe's settings."""

    data: Data = group(Data)
    train: Train = group(Train)


@dataclass(frozen=True)
class Wanted:
    """What to print of each prediction."""

    nbest: int = 0  # outputs with their probabilities; 0 for the text of the best alone
    exact: bool = False  # search on until the best is proved, or the budget is spent
    json: bool = False  # all that is known, alignment included


class Recipe(ABC):
    """One experiment. Its module is imported only when it runs; its settings are read without torch."""

    name: str

    @abstractmethod
    def start(self, settings: Any, run: Run) -> Any:
        """A fresh ``kit.training.Trained`` with its data, read and checked; what predicting needs goes into the run."""

    @abstractmethod
    def reopen(self, settings: Any, run: Run) -> Any:
        """The same for a run that goes on; its checkpoint is loaded by Lightning."""

    @abstractmethod
    def restore(self, settings: Any, run: Run, checkpoint: Path) -> Any:
        """The trained task, ready to predict."""

    @abstractmethod
    def evaluate(self, task: Any, settings: Any, split: str, show: Callable[[str], None]) -> dict[str, Any]:
        """Figures of a split, from the most important to the least."""

    def speed(self, task: Any, settings: Any) -> dict[str, float]:
        """What training costs beside the same model with softmax, measured on the trained task."""
        return {}

    @abstractmethod
    def predict(self, task: Any, settings: Any, lines: Iterable[str], wanted: Wanted) -> Iterator[str]:
        """One line of output for each line of input, or as many as are wanted."""

    @abstractmethod
    def report(self, task: Any, settings: Any, run: Run, folder: Path) -> list[Path]:
        """Write figures and the HTML report into ``folder``; return what was written."""
