"""Training by Lightning, in steps: progress, checkpoints, patience, logs; and the same numbers on resuming."""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import lightning as L
import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ...parameters import LEARNED, Learned
from . import checkpoints, durable
from .batches import Batches, Endless
from .metrics import Metrics
from .recipe import Train
from .runs import Run
from .watch import Bar, Interrupt, Keeper, Lines

B = TypeVar("B")
PUT_IN = "parsimax"  # what sparsify calls the module that it puts into attention, which softmax does without


class Task(L.LightningModule, Generic[B]):
    """What a recipe trains: it gives ``loss`` and ``validate``; order, seeds, rates and logs are done here.

    Args:
        train: the shared settings.
        batches: of the training data.
    """

    monitor = "loss"  # the figure of ``validate`` that says what is best; of equals the one with less loss
    mode = "min"
    unit = "examples"  # of ``amount``

    def __init__(self, train: Train, batches: Batches[B]) -> None:
        super().__init__()
        self.train_settings, self.batches = train, batches
        self._since: float | None = None
        self._paces: list[float] = []
        self._amount, self._busy = 0, 0.0  # since the last row of the log
        self.seconds = 0.0  # of training, those before a resumption too
        self._peak: float | None = None  # memory of the process, as long as it has only trained
        self._validated = False

    def loss(self, batch: B) -> Tensor:
        raise NotImplementedError

    def validate(self) -> dict[str, float]:
        """Figures on the validation data; ``monitor`` is one of them."""
        raise NotImplementedError

    def amount(self, batch: B) -> int:
        """How much a batch holds, in ``unit``."""
        raise NotImplementedError

    @property
    def _logs_now(self) -> bool:
        return (self.global_step + 1) % log_every(self.train_settings) == 0

    def training_step(self, batch: B, index: int) -> Tensor:
        loss = self.loss(batch)
        if not torch.isfinite(loss):
            raise RuntimeError(
                f"the loss is {loss.item()} at step {self.global_step}; lower train.lr or raise train.warmup"
            )
        self.log("train/loss", loss)
        self._amount += self.amount(batch)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self._logs_now:
            grads = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
            self.log("train/lr", optimizer.param_groups[0]["lr"])
            self.log("train/gradient norm", nn.utils.get_total_norm(grads))

    def on_train_batch_start(self, batch: B, index: int) -> None:
        # Dropout is a function of seed, step and rank, so that a resumed run draws what the whole run drew.
        self._since = time.perf_counter()
        torch.manual_seed((self.train_settings.seed * 1_000_003 + self.global_step) * 64 + self.global_rank)

    def validation_step(self, batch: Any, index: int) -> None:
        self._validated = True
        for name, value in self.validate().items():
            self.log(f"val/{name}", value, sync_dist=True, batch_size=1)
        for name, value in learned(self).items():
            self.log(f"learned/{name}", value, batch_size=1)

    def train_dataloader(self) -> Any:
        data = Endless(
            self.batches,
            self.train_settings.seed,
            lambda: self.global_step,
            lambda: (self.trainer.global_rank, self.trainer.world_size),
        )
        return DataLoader(data, batch_size=None)

    def val_dataloader(self) -> Any:
        return DataLoader([0], batch_size=None)  # type: ignore[arg-type]  # one step, which validates everything

    def on_train_batch_end(self, *arguments: Any) -> None:
        if self._since is None:
            return
        took = time.perf_counter() - self._since
        self._paces.append(took)
        self._peak = self._peak if self._validated else peak_memory()
        self.seconds += took
        self._busy += took
        if self.global_step % log_every(self.train_settings) == 0:
            self.log(f"train/{self.unit} a second", self._amount / self._busy)
            self._amount, self._busy = 0, 0.0

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["training seconds"] = self.seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seconds = checkpoint.get("training seconds", 0.0)
        for state in (one for states in checkpoint["optimizer_states"] for one in states["state"].values()):
            for name in ("exp_avg", "exp_avg_sq"):
                if state[name].dim() == 0:  # a single learned α was a scalar once
                    state[name] = state[name].reshape(1)

    def pace(self) -> dict[str, float]:
        """Milliseconds of a training step, the median without the time between steps, and seconds of all steps; the
        most memory that the process had before its first validation.
        """
        if not self._paces:
            return {}
        pace = {"step ms": 1000 * statistics.median(self._paces), "training seconds": self.seconds}
        return pace if self._peak is None else {**pace, "peak memory MB": self._peak}

    def rate(self, step: int) -> float:
        """The share of ``train.lr`` at a step."""
        return rate_at(step, self.train_settings)

    def configure_optimizers(self) -> Any:
        settings = self.train_settings
        kinds: dict[bool, list[nn.Parameter]] = {False: [], True: []}
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                continue
            kinds[".learned" in f".{name}"].append(parameter)  # as parsimax calls every learned setting of a mapping
        groups: list[dict[str, Any]] = [{"params": kinds[False]}]
        if kinds[True]:
            groups.append({"params": kinds[True], "lr": settings.lr * settings.alpha_lr, "weight_decay": 0.0})
        # One pass over all numbers, where torch's loop makes a dozen.
        fused = {p.device.type for p in self.parameters()} <= {"cpu", "cuda"}
        given: dict[str, Any] = {"weight_decay": settings.weight_decay, "fused": fused or None}
        optimiser = torch.optim.AdamW(groups, settings.lr, (0.9, 0.98), 1e-9, **given)
        # By this Lightning would refuse to clip: a fused step may undo the scaling of float16's gradients by itself.
        # No precision that there is here scales them.
        optimiser._step_supports_amp_scaling = False
        rate = torch.optim.lr_scheduler.LambdaLR(optimiser, self.rate)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def peak_memory() -> float | None:
    """The most memory that this process has had, in MB; None where that is not known."""
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


@torch.no_grad()
def learned(model: nn.Module) -> dict[str, float]:
    """Every learned number of a mapping, such as α of each head, by the module that has it and its place there."""
    found: dict[str, float] = {}
    for path, module in model.named_modules():
        if isinstance(module, Learned):
            where, _, setting = path.rpartition(f"{LEARNED}_")
            values = module().flatten().tolist()
            places = [f".{place}" for place in range(len(values))] if len(values) > 1 else [""]
            found |= {f"{where}{setting}{place}": value for place, value in zip(places, values, strict=True)}
    return found


def rate_at(step: int, settings: Train) -> float:
    """The share of the peak learning rate at a step."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    if settings.decay == "inverse-sqrt":
        return math.sqrt(max(1, settings.warmup) / (step + 1))
    done = min(1.0, (step - settings.warmup) / max(1, settings.steps - settings.warmup))
    if settings.decay == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0 - done if settings.decay == "linear" else 1.0


def log_every(settings: Train) -> int:
    return min(50, settings.eval_every)


def fit(
    task: Task[Any],
    run: Run,
    resume: bool = False,
    say: Callable[[str], None] = print,
    watched: bool = True,
) -> None:
    """Train ``task`` into ``run``; with ``resume`` from its newest checkpoint that can be read, if there is one.

    ``watched`` shows progress: a bar on a terminal, else a line for each validation.
    """
    settings = task.train_settings
    found = checkpoints.newest(run) if resume else None
    keeper = Keeper(run, settings.patience)
    if found:
        saved, path, wrong = found
        if path != run.last:
            say(f"{'; '.join(wrong)}. Going on from {path}, step {saved['global_step']}")
            durable.replace(run.last, path.read_bytes())  # the run is whole again
        keeper.load_state_dict(Keeper.state_of(saved))
        if saved["global_step"] >= settings.steps or keeper.lost_patience:
            task.on_load_checkpoint(saved)
            task.load_state_dict(saved["state_dict"])
            return
    interrupt = Interrupt()
    watch = [(Bar if Bar.possible() else Lines)(settings.steps)] if watched else []
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
            callbacks=[*watch, keeper, interrupt],
            logger=_loggers(run, settings, found[0]["global_step"] if found else None),
            log_every_n_steps=log_every(settings),
            num_sanity_val_steps=0,
            enable_checkpointing=False,  # the keeper does it
            enable_model_summary=False,
            enable_progress_bar=False,
            default_root_dir=run.folder,
            plugins=[checkpoints.WholeFiles(run)],
        )
        try:
            with interrupt.during(trainer), _matmul(settings.matmul):
                trainer.fit(task, ckpt_path=run.last if found else None, weights_only=True)
        except SystemExit:  # how Lightning ends after Ctrl-C
            raise KeyboardInterrupt from None
        if trainer.global_step % trainer.val_check_interval:  # the steps after the last validation
            trainer.save_checkpoint(run.last)
    if interrupt.met:
        raise KeyboardInterrupt


def _loggers(run: Run, settings: Train, step: int | None) -> list[Logger]:
    own: list[Logger] = [Metrics(run, step, log_every(settings))]
    return [*own, TensorBoardLogger(run.folder, "tensorboard", "")] if settings.tensorboard else own


def restore(task: Task[Any], path: Path, turned: bool = False) -> Task[Any]:
    """``task`` with the weights of a checkpoint, ready to predict.

    ``turned``: its mappings may be others than in the run, or have other numbers, so that what was learned of them and
    the state of those that are gone is left out.
    """
    state = checkpoints.weights(path)
    if turned:
        known = task.state_dict()
        own = (f".{LEARNED}_", f".{PUT_IN}.")
        state = {
            name: value for name, value in state.items() if name in known or not any(part in f".{name}" for part in own)
        }
    try:
        task.load_state_dict(state)
    except RuntimeError as error:
        problem = str(error).partition("\n\t")[2].partition("\n")[0]
        raise checkpoints.CheckpointError(
            f"{path} does not fit the model of its run's settings: {problem}; config.yaml or the library has changed "
            f"since it was written"
        ) from None
    return task.eval()


@contextlib.contextmanager
def _matmul(precision: str) -> Iterator[None]:
    """Torch's own state, put back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
            warnings.filterwarnings("ignore", ".*callbacks used to create the checkpoint.*")  # of an older version
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
