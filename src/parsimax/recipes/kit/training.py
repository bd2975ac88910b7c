"""Training by Lightning, in steps: progress, checkpoints, early stopping, logs; and the same numbers on resuming."""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import signal
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.utils.data import DataLoader

from .batches import Endless
from .recipe import Train
from .runs import Run, read_metrics


class Trained(L.LightningModule):
    """A module that trains in steps. A recipe gives ``loss`` and ``validate``; order, seeds and rates are done here.

    Args:
        train: the shared settings.
        sizes: tokens of each training example.
        make: indices of training examples → batch.
    """

    monitor = "val/loss"
    mode = "min"

    def __init__(self, train: Train, sizes: list[int], make: Callable[[list[int]], Any]) -> None:
        super().__init__()
        self.train_settings = train
        self.sizes, self.make = sizes, make
        self._since: float | None = None
        self._paces: list[float] = []
        self.seconds = 0.0  # of training, those before a resumption too

    def loss(self, batch: Any) -> Tensor:
        raise NotImplementedError

    def validate(self) -> dict[str, float]:
        """Figures on the validation data; ``monitor`` is one of them, without its ``val/``."""
        raise NotImplementedError

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = self.loss(batch)
        if not torch.isfinite(loss):
            raise RuntimeError(
                f"the loss is {loss.item()} at step {self.global_step}; lower train.lr or raise train.warmup"
            )
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        # Dropout is a function of seed, step and rank, so that a resumed run draws what the whole run drew.
        self._since = time.perf_counter()
        torch.manual_seed((self.train_settings.seed * 1_000_003 + self.global_step) * 64 + self.global_rank)

    def validation_step(self, batch: Any, index: int) -> None:
        for name, value in self.validate().items():
            self.log(f"val/{name}", value, prog_bar=f"val/{name}" == self.monitor, sync_dist=True, batch_size=1)

    def train_dataloader(self) -> Any:
        settings = self.train_settings
        data = Endless(
            self.sizes,
            settings.batch_tokens,
            settings.seed,
            self.make,
            lambda: self.global_step,
            lambda: (self.trainer.global_rank, self.trainer.world_size),
        )
        return DataLoader(data, batch_size=None)

    def val_dataloader(self) -> Any:
        return DataLoader([0], batch_size=None)  # type: ignore[arg-type]  # one step, which validates everything

    def on_train_batch_end(self, *arguments: Any) -> None:
        now = time.perf_counter()
        if self._since is not None:
            self._paces.append(now - self._since)
            self.seconds += now - self._since

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["training seconds"] = self.seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seconds = checkpoint.get("training seconds", 0.0)

    def pace(self) -> dict[str, float]:
        """Milliseconds of a training step, the median without the time between steps, and seconds of all steps."""
        if not self._paces:
            return {}
        return {"step ms": 1000 * statistics.median(self._paces), "training seconds": self.seconds}

    def configure_optimizers(self) -> Any:
        settings = self.train_settings
        kinds: dict[bool, list[nn.Parameter]] = {False: [], True: []}
        for name, parameter in self.named_parameters():
            kinds[".learned" in f".{name}"].append(parameter)  # as parsimax calls every learned setting of a mapping
        groups: list[dict[str, Any]] = [{"params": kinds[False]}]
        if kinds[True]:
            groups.append({"params": kinds[True], "lr": settings.lr * settings.alpha_lr, "weight_decay": 0.0})
        optimiser = torch.optim.AdamW(groups, settings.lr, (0.9, 0.98), 1e-9, settings.weight_decay)
        rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(step, settings))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def rate_at(step: int, settings: Train) -> float:
    """The share of the peak learning rate at a step."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    if settings.decay == "inverse-sqrt":
        return math.sqrt(max(1, settings.warmup) / (step + 1))
    if settings.decay == "cosine":
        done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return 1.0


class Metrics(Logger):
    """``metrics.csv``: a row for each time something was logged. Rows of steps that are done again are dropped."""

    def __init__(self, run: Run, resumed_from: int | None) -> None:
        super().__init__()
        self.path = run.metrics
        before = [
            row for row in read_metrics(self.path) if resumed_from is not None and int(row["step"]) < resumed_from
        ]
        self.rows: list[dict[str, Any]] = list(before)

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
        if values:
            self.rows.append({"step": step, **values})

    @rank_zero_only
    def save(self) -> None:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        beside = self.path.with_name(".metrics.csv")
        with beside.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.rows)
        beside.replace(self.path)

    def finalize(self, status: str) -> None:
        if self.rows:
            self.save()


class Bar(TQDMProgressBar):
    """Steps, rate and time left on one line; validation is part of a step."""

    def init_validation_tqdm(self) -> Any:
        return Tqdm(disable=True)

    def on_train_epoch_start(self, trainer: L.Trainer, *arguments: Any) -> None:
        super().on_train_epoch_start(trainer, *arguments)
        self.train_progress_bar.initial = 0
        self.train_progress_bar.set_description("Training")


class Interrupt(Callback):
    """The first Ctrl-C ends training after the step it meets, so that the state is whole; the second at once."""

    def __init__(self) -> None:
        self.met = False

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, lambda number, frame: self.stop(trainer))

    def stop(self, trainer: L.Trainer) -> None:
        if self.met:
            raise KeyboardInterrupt
        self.met = trainer.should_stop = True
        trainer.limit_val_batches = 0  # a validation here is one that the whole run does not make

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        if hasattr(self, "before"):
            signal.signal(signal.SIGINT, self.before)


class Checkpoint(ModelCheckpoint):
    """Knows what it saved also after the run's folder was moved."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        before, now = state_dict["dirpath"], str(self.dirpath)

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {moved(key): one for key, one in value.items()}
            return value.replace(before, now, 1) if isinstance(value, str) and value.startswith(before) else value

        super().load_state_dict({name: moved(value) for name, value in state_dict.items()})


def _ended(saved: dict[str, Any], settings: Train) -> bool:
    """Whether training is over: all steps are done, or patience is."""
    stops = [state for name, state in saved["callbacks"].items() if name.startswith("EarlyStopping")]
    return saved["global_step"] >= settings.steps or any(stop["wait_count"] >= stop["patience"] for stop in stops)


def fit(model: Trained, run: Run, resume: bool = False, bar: bool | None = None) -> None:
    """Train ``model`` into ``run``; with ``resume`` from its last checkpoint."""
    settings = model.train_settings
    checkpoint = run.last if resume else None
    saved = torch.load(run.last, weights_only=False, map_location="cpu") if checkpoint else None
    step = saved["global_step"] if saved else None
    if saved and _ended(saved, settings):
        model.on_load_checkpoint(saved)
        model.load_state_dict(saved["state_dict"])
        return
    interrupt = Interrupt()
    kept: dict[str, Any] = {"enable_version_counter": False, "save_on_train_epoch_end": False}
    callbacks: list[Callback] = [
        Checkpoint(run.best.parent, run.best.stem, model.monitor, mode=model.mode, **kept),
        Checkpoint(run.last.parent, run.last.stem, **kept),  # after every validation, better or not
        interrupt,
    ]
    if settings.patience:
        callbacks.append(EarlyStopping(model.monitor, mode=model.mode, patience=settings.patience))
    if bar is None:
        bar = sys.stderr.isatty()
    if bar:
        callbacks.append(Bar(refresh_rate=10))
    loggers: list[Logger] = [Metrics(run, step)]
    if settings.tensorboard:
        loggers.append(TensorBoardLogger(run.folder, "tensorboard", ""))
    with _quiet():
        trainer = L.Trainer(
            accelerator=settings.accelerator,
            devices=settings.devices,
            strategy=settings.strategy,
            precision=settings.precision,
            max_steps=settings.steps,
            max_epochs=-1,
            val_check_interval=min(settings.eval_every, settings.steps),
            check_val_every_n_epoch=None,
            gradient_clip_val=settings.clip or None,
            callbacks=callbacks,
            logger=loggers,
            log_every_n_steps=min(50, settings.eval_every),
            num_sanity_val_steps=0,
            enable_model_summary=False,
            enable_progress_bar=bar,
            default_root_dir=run.folder,
        )
        try:
            trainer.fit(model, ckpt_path=checkpoint, weights_only=False)
        except SystemExit:  # how Lightning ends after Ctrl-C
            raise KeyboardInterrupt from None
        if trainer.global_step % trainer.val_check_interval:  # the steps after the last validation
            trainer.save_checkpoint(run.last)
    if interrupt.met:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's greetings and advice, which concern other machines, are not shown."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            warnings.filterwarnings("ignore", ".*exists and is not empty.*")  # as it must when resuming
            warnings.filterwarnings("ignore", ".*treespec.*", FutureWarning)  # Lightning's own use of torch
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
