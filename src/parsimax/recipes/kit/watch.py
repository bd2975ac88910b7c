"""What goes along with training: the keeper of checkpoints, signals, and progress on a terminal or in lines."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

from .runs import Run

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Keeper(Callback):
    """After each validation writes ``last``, and ``best`` if it is; ends training when patience is lost.

    The best is the best by the monitored figure; of equals, the one with less validation loss.
    """

    def __init__(self, run: Run, patience: int) -> None:
        self.run, self.patience = run, patience
        self.best: tuple[float, ...] | None = None
        self.wait = 0  # validations since the best

    @property
    def lost_patience(self) -> bool:
        return bool(self.patience) and self.wait >= self.patience

    def on_validation_end(self, trainer: L.Trainer, task: Any) -> None:
        figures = trainer.callback_metrics
        mark = mark_of(float(figures[f"val/{task.monitor}"]), task.mode, float(figures.get("val/loss", math.nan)))
        self.wait += 1
        if self.best is None or mark > self.best:
            self.best, self.wait = mark, 0
            if trainer.is_global_zero:
                self.run.set_aside()  # before there are other weights, so that a kill leaves no figures of these
            trainer.save_checkpoint(self.run.best)
        trainer.save_checkpoint(self.run.last)
        if self.lost_patience:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "wait": self.wait}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.wait = state_dict["best"] and tuple(state_dict["best"]), state_dict["wait"]

    @classmethod
    def state_of(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The keeper's state in a checkpoint, also in one that was written before there was a keeper."""
        states: dict[str, dict[str, Any]] = saved["callbacks"]
        if cls.__name__ not in states:
            old: dict[str, Any] = {"best": None, "wait": 0}
            for name, state in states.items():
                if "Checkpoint{" in name and state.get("best_model_score") is not None:
                    mode = "max" if "'mode': 'max'" in name else "min"
                    old["best"] = mark_of(float(state["best_model_score"]), mode, math.nan)
                elif name.startswith("EarlyStopping"):
                    old["wait"] = int(state["wait_count"])
            states[cls.__name__] = old
        return states[cls.__name__]


def mark_of(figure: float, mode: str, loss: float) -> tuple[float, float]:
    """What is compared: larger is better, and what is not a number is worst."""
    first, second = figure if mode == "max" else -figure, -loss
    return (-math.inf if math.isnan(first) else first), (-math.inf if math.isnan(second) else second)


class Interrupt(Callback):
    """The first Ctrl-C or SIGTERM ends training after its step, so that the state is whole; the second at once."""

    def __init__(self) -> None:
        self.met = False

    @contextlib.contextmanager
    def during(self, trainer: L.Trainer) -> Iterator[None]:
        """Listen from here on, and no more at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: self.listen(number, trainer) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self, number: int, trainer: L.Trainer) -> Any:
        return signal.signal(number, lambda number, frame: self.stop(trainer))

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Lightning has put its own handlers meanwhile."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self.listen(number, trainer)

    def stop(self, trainer: L.Trainer) -> None:
        if self.met:
            raise KeyboardInterrupt
        self.met = trainer.should_stop = True
        trainer.limit_val_batches = 0  # a validation here is one that the whole run does not make


class Bar(Callback):
    """Steps, rate and time left on one line of a terminal, counted from the start of the run."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.bar: Any = None

    @staticmethod
    def possible() -> bool:
        return sys.stderr.isatty()

    @rank_zero_only
    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar = tqdm(total=self.steps, initial=trainer.global_step, desc="Training", leave=False)

    @rank_zero_only
    def on_train_batch_end(self, trainer: L.Trainer, *arguments: Any) -> None:
        self.bar.update(trainer.global_step - self.bar.n)

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar.set_postfix_str(figures_line(trainer, ("val/",)))

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.close()


class Lines(Callback):
    """Without a terminal: a line after each validation."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        print(f"step {trainer.global_step} of {self.steps}  {figures_line(trainer)}", flush=True)


def figures_line(trainer: L.Trainer, kinds: tuple[str, ...] = ("val/", "train/")) -> str:
    figures = sorted(trainer.callback_metrics.items(), key=lambda one: not one[0].startswith("val/"))
    return "  ".join(f"{name} {float(value):.4g}" for name, value in figures if name.startswith(kinds))
