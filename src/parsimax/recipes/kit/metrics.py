"""The log of a run as a table that any program reads."""

from __future__ import annotations

import csv
import io
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from . import durable
from .runs import Run


class Metrics(Logger):
    """``metrics.csv``: a row for each time something was logged.

    Rows of steps that are done again are dropped, and so is what Lightning logs of the step at which it was told to
    stop: a run that was not stopped has no such row.
    """

    def __init__(self, run: Run, resumed_from: int | None, every: int) -> None:
        super().__init__()
        self.path, self.every = run.metrics, every
        before = run.rows() if resumed_from is not None else []
        self.rows: list[dict[str, Any]] = [row for row in before if int(row["step"]) < (resumed_from or 0)]

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, *arguments: Any, **words: Any) -> None:
        """The settings are in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        values = {name: f"{value:.6g}" for name, value in metrics.items() if name != "epoch"}
        stopped = "train/loss" in values and (step is None or (step + 1) % self.every)
        if values and not stopped:
            self.rows.append({"step": step, **values})

    @rank_zero_only
    def save(self) -> None:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(self.rows)
        durable.replace(self.path, text.getvalue().encode())

    def finalize(self, status: str) -> None:
        if self.rows:
            self.save()
