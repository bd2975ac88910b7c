"""What a recipe is to the command line: settings, data, a task that trains, figures of it, and answers to queries.

Everything about a subject is the recipe's: how its batches are made, what it measures, which packages it needs, what a
prediction reads and which options it has. Nothing heavy is imported here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from .runs import Run
from .settings import SettingsError, group, setting

if TYPE_CHECKING:
    from .training import Task


class DataError(ValueError):
    """Data that cannot be used, with the file and the line."""


@dataclass(frozen=True)
class Train:
    """Settings of training that all recipes share. A recipe adds the size of its batches."""

    steps: int = setting(2000, "optimiser steps at most", low=1, later=True)
    lr: float = setting(1e-3, "peak learning rate of Adam", low=0, high=10)
    alpha_lr: float = setting(5.0, "learning rate of learned α, as a multiple of lr", low=0, high=1e6)
    warmup: int = setting(200, "steps in which the rate rises; after them it falls", low=0)
    decay: Literal["cosine", "linear", "inverse-sqrt", "none"] = setting(
        "cosine", "how the rate falls after the warm-up"
    )
    clip: float = setting(1.0, "largest norm of the gradient; 0 for any", low=0)
    weight_decay: float = setting(0.0, "weight decay of the optimiser", low=0, high=1000)
    eval_every: int = setting(200, "steps between validations, each with a checkpoint", low=1)
    patience: int = setting(
        0, "stop after this many validations without a better one; 0 never stops early", low=0, later=True
    )
    seed: int = setting(1, "seed of weights, order and dropout", low=0, high=2**31 - 1)
    precision: Literal["32-true", "bf16-mixed"] = setting("32-true", "number format of training, in Lightning's words")
    matmul: Literal["highest", "high", "medium"] = setting(
        "highest", "torch's float32_matmul_precision while training: a lower one is quicker on some machines"
    )
    devices: int = setting(1, "processes that train", low=1)
    strategy: Literal["auto", "ddp"] = setting("auto", "ddp trains with several processes")
    accelerator: Literal["cpu", "auto"] = setting("cpu", "auto takes a GPU where there is one", later=True)
    tensorboard: bool = setting(True, "write TensorBoard files beside metrics.csv", later=True)


@dataclass(frozen=True)
class Data:
    """Where the data is, for recipes that read files."""

    of_files: ClassVar[tuple[str, ...]] = ()  # settings that choose among files, which the embedded default has not

    root: Path | None = setting(
        None, "folder of the data in its standard format; none for the embedded default", later=True
    )


@dataclass(frozen=True)
class Settings:
    """The base of a recipe's settings."""

    train: Train = group(Train)

    def check(self) -> None:
        """Raise SettingsError where values do not go together; a recipe may add to it."""
        data = getattr(self, "data", None)
        if not isinstance(data, Data):
            return
        if data.root is not None and not data.root.is_dir():
            raise SettingsError(f"data.root: {data.root} is not a folder")
        for name in data.of_files if data.root is None else ():
            if getattr(data, name) != getattr(type(self)().data, name):  # type: ignore[attr-defined]
                raise SettingsError(f"data.{name} chooses among files: give their folder too, data.root=PATH")

    def check_new(self) -> None:
        """Raise SettingsError for what a run that begins would be given in vain; a recipe may add to it.

        Not asked of a run that has begun: ``eval`` may exchange its mapping, whose number then stands there unread.
        """


@dataclass(frozen=True)
class Options:
    """Options of ``parsimax predict``; a recipe adds its own."""

    json: bool = setting(False, "a line of JSON for each query, with all that is known")


@dataclass(frozen=True)
class Answer:
    """The lines of output for one query, and what a user should be told."""

    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()  # told once, with the first query that has them, such as unseen characters
    own_notes: tuple[str, ...] = ()  # told with every query, such as a text that was cut
    failed: bool = False  # the lines say why there is no answer


@dataclass(frozen=True)
class Evaluation:
    """Figures of a split, from the most important to the least, and a record of each example's output."""

    figures: dict[str, Any]
    outputs: Iterable[dict[str, Any]] = field(default=(), repr=False)


@dataclass(frozen=True)
class About:
    """What the command line knows of a recipe before it runs: ``ABOUT`` of its ``settings.py``."""

    settings: type[Settings]
    options: type[Options] = Options
    needs: tuple[str, ...] = ()  # packages beside those of the kit, by the names that import knows


S = TypeVar("S", bound=Settings)
T = TypeVar("T", bound="Task[Any]")
Q = TypeVar("Q")
O = TypeVar("O", bound=Options)  # noqa: E741


class Recipe(ABC, Generic[S, T, Q, O]):
    """One experiment: ``RECIPE`` of its ``recipe.py``, which is imported only when it runs.

    S are its settings, T its task, Q what a prediction reads (a dataclass), O the options of predictions.
    """

    query: type[Q]
    held_out = True  # False where every split is what was trained on

    @abstractmethod
    def start(self, settings: S, run: Run) -> T:
        """A fresh task with its data, read and checked; what predicting needs beside weights goes into the run."""

    @abstractmethod
    def reopen(self, settings: S, run: Run, data: bool = True) -> T:
        """The task of a run that has begun, before its weights are loaded; ``data`` says whether it will train."""

    @abstractmethod
    def evaluate(self, task: T, settings: S, split: str, show: Callable[[str], None]) -> Evaluation:
        """Measure the task on a split; ``show`` gets lines of progress."""

    @abstractmethod
    def predict(self, task: T, settings: S, queries: Sequence[Q], options: O) -> list[Answer]:
        """An answer for each query, in order."""

    def report(self, task: T, settings: S, run: Run, folder: Path) -> list[Path]:
        """Write figures and pages into ``folder``; return what was written."""
        raise SettingsError("this recipe has no report; its figures are those of `parsimax eval`")

    def speed(self, task: T, settings: S) -> dict[str, float]:
        """What training costs beside the same model with softmax, measured on the trained task."""
        return {}

    def export(self, task: T, run: Run) -> list[Path]:
        """Write the trained task into the run as other programs read it; return what was written."""
        return []

    def files(self, settings: S, split: str) -> list[Path]:
        """The files that a split is read from, which must not change during a run; none for embedded data."""
        return []

    def dials(self, settings: S) -> list[str]:
        """The settings that `eval` may turn without training again: every number of a mapping that is in use.

        ``KEY=VALUE`` for what may have that value alone.
        """
        from .dial import numbers_of_mappings

        return numbers_of_mappings(settings)

    def quality(self, task: T) -> tuple[str, str]:
        """The figure of an evaluation that says what is better, whatever the mapping; and "max" or "min"."""
        return task.monitor, task.mode

    def zeros(self, task: T, figures: Mapping[str, Any], key: str) -> float | None:
        """The measured share of exact zeros of the mapping that the setting ``key`` belongs to; None if to none."""
        return float(figures["zeros"])

    def read(self, task: T, line: str, options: O) -> Q:
        """A line of plain text as a query: its columns by tabs, unless the recipe knows better."""
        from .inputs import query_of

        names = [one.name for one in fields(self.query)]  # type: ignore[arg-type]
        cells = line.split("\t") if len(names) > 1 else [line]
        if len(cells) != len(names):
            raise DataError(f"{len(cells)} columns where {', '.join(names)} are {len(names)}, tab-separated")
        return query_of(self.query, dict(zip(names, cells, strict=True)))

    def record(self, task: T, record: Mapping[str, Any], options: O) -> Q:
        """A row of CSV or an object of JSON as a query: its values by name, unless the recipe knows better."""
        from .inputs import query_of

        return query_of(self.query, record)

    def check(self, task: T, query: Q, options: O) -> None:
        """Raise DataError for a query that cannot be answered."""
