"""What ``transformers.Trainer`` needs to know of a sparsified model: the step, and how to train α."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback

from .._attention.core import AttentionCore
from ..parameters import set_step


class AlphaCallback(TrainerCallback):
    """Lets ``transformers.Trainer`` train α without weight decay and at its own rate, and tells schedules the step.

    By itself ``Trainer`` pulls a learned α toward the middle of its interval by weight decay, at a learning rate that
    is made for weights, and no schedule moves. With this callback everything learned by the attention cores is a group
    of its own in every optimiser step. Between steps the optimiser has the groups that ``Trainer`` made, so that its
    learning rate scheduler, checkpoints and resuming work as always.

    Args:
        lr: the learning rate of α when training starts. It follows the schedule that the other rates follow.

    Example:
        >>> from parsimax.huggingface import AlphaCallback
        >>> callback = AlphaCallback(lr=0.02)  # Trainer(model, …, callbacks=[callback])

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019.
    """

    def __init__(self, lr: float = 0.02) -> None:
        if isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 < lr < math.inf:
            raise ValueError(f"AlphaCallback: lr must be a number above 0, got {lr!r}")
        self.lr = float(lr)
        self._handles: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._release()
        set_step(model, state.global_step)
        if alphas := _learned(model):
            group = _OwnGroup(alphas, self.lr)
            plain = _plain(optimizer)
            self._handles = [plain.register_step_pre_hook(group.split), plain.register_step_post_hook(group.join)]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        set_step(kwargs["model"], state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        set_step(kwargs["model"], state.global_step)
        self._release()

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _learned(model: nn.Module) -> list[nn.Parameter]:
    cores = (module for module in model.modules() if isinstance(module, AttentionCore))
    return [parameter for core in cores for parameter in core.parameters() if parameter.requires_grad]


def _plain(optimizer: Any) -> Optimizer:
    """The optimiser of torch that accelerate may have wrapped."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(inner, Optimizer):
        raise TypeError(
            f"AlphaCallback: the optimiser must be a torch.optim.Optimizer, whose steps can be hooked, got "
            f"{type(inner).__name__}; give α a parameter group of its own where you make the optimiser"
        )
    return inner


class _OwnGroup:
    """Takes parameters out of an optimiser's groups for one step, into one without weight decay."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.ids, self.lr = {id(parameter) for parameter in parameters}, lr
        self.before: list[dict[str, Any]] = []  # the groups as they were; empty between steps

    def split(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.join(optimizer)  # a step that raised has left them split
        self.before = [dict(group) for group in optimizer.param_groups]
        own = []
        for group in list(optimizer.param_groups):
            mine = [parameter for parameter in group["params"] if id(parameter) in self.ids]
            if mine:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in self.ids]
                start = group.get("initial_lr")  # what a scheduler goes out from
                share = group["lr"] / start if start else 1.0
                own.append({**group, "params": mine, "lr": self.lr * share, "weight_decay": 0.0})
        optimizer.param_groups += own

    def join(self, optimizer: Optimizer, *_: Any) -> None:
        if self.before:
            groups = optimizer.param_groups
            del groups[len(self.before) :]
            for group, old in zip(groups, self.before, strict=True):
                group["params"] = old["params"]
            self.before = []
