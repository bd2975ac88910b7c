"""α, rate, t, budget …: the settings of mappings inside modules, and who moves them.

A setting is *fixed* (a number, or a tensor such as one per head), *learned* (trained by gradient, and held in its
interval by construction) or *scheduled* (a function of the training step, which :func:`set_step` tells). The modules of
mappings and losses, the attention core and all that is built on them keep their settings here, so that each of them can
do each of these, with every setting that is continuous.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ._fixed import FixedTensors
from .engine.arguments import Interval, check_count, check_number
from .engine.clean import Parameter
from .engine.precision import work_dtype
from .schedules import Ramp

Schedule: TypeAlias = Callable[[int], Any]  # step -> the value of a setting
Ends: TypeAlias = tuple[float, float]
LEARNED = "learned"
EDGE = 1e-6  # how far a learned value stays from an end that does not belong to the domain
FAR = 1e12  # the same for an infinite end


@dataclass(frozen=True)
class Setting:
    """A parameter of a mapping, as the file of the mapping declares it.

    ``example`` is a value to show and to test it with, ``default`` what is taken if none is given (None: one must be),
    ``interval`` where it is learned unless another one is asked for (None: the whole domain), ``about`` a phrase for
    help texts. A setting that is not continuous is a count: without a gradient it cannot be a tensor or be learned.
    """

    name: str
    domain: Interval
    example: float
    default: float | None = None
    continuous: bool = True
    interval: Ends | None = None
    about: str = ""

    @property
    def ends(self) -> Ends:
        """Where it is learned unless another interval is asked for."""
        return self.interval or (self.domain.low, self.domain.high)

    def random_start(self, shape: tuple[int, ...]) -> Tensor:
        """Where learning may start: each at random, most in the middle of the interval."""
        return _bounded(torch.randn(shape), *self.ends)

    def at(self, value: float | Tensor) -> Parameter:
        """What a formula is given for it."""
        return Parameter(self.name, value, self.domain)

    def checked(self, value: Any, where: str, at: str = "") -> Any:
        """A number, if it may be one. ``at`` says where a schedule gave it; a count from there is rounded."""
        if self.continuous:
            return check_number(value, self.domain, self.name + at, where)
        if at and isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value):
            value = round(value)
        return check_count(value, self.name + at, where)

    def check_tensor(self, value: Tensor, where: str) -> None:
        if not self.continuous:
            raise TypeError(f"{where}: {self.name} is a count and cannot be a tensor; pass a number")
        if not value.is_floating_point():
            raise TypeError(
                f"{where}: a tensor {self.name} must be floating point, got {value.dtype}; pass {self.name}.float()"
            )

    def check_schedule(self, schedule: Any, where: str) -> None:
        """The values of a ramp lie between its ends, so that these speak for all."""
        for end in ("start", "end") if isinstance(schedule, Ramp) else ():
            self.checked(getattr(schedule, end), where, f" at the {end} of {schedule}")


class Learned(nn.Module):
    """A learned number that stays in its interval whatever the optimiser does.

    Between two ends it is low + (high - low) sigmoid(raw); with one end only it keeps to its side of that by softplus.
    ``raw`` is what is trained and saved; a single number is saved with shape (1,), as FSDP shards no scalars.

    Args:
        setting: which one.
        start: where learning starts; it broadcasts to ``shape``.
        interval: the ends; those of the setting if not given.
        shape: that of the value; that of ``start`` if not given.
        where: the name that errors begin with.
    """

    def __init__(
        self, setting: Setting, start: float | Tensor, interval: Ends | None, shape: tuple[int, ...], where: str
    ) -> None:
        super().__init__()
        domain = setting.domain
        low, high = interval or setting.ends
        if not domain.low <= low < high <= domain.high:
            raise ValueError(f"{where}: interval must be (low, high) with low < high, inside {domain}, got {interval}")
        start = torch.as_tensor(start, dtype=torch.get_default_dtype())
        if not start.is_meta and not ((start > low) & (start < high)).all():
            raise ValueError(
                f"{where}: a learned {setting.name} must start strictly inside ({low:g}, {high:g}), where it has a "
                f"gradient, got {start.min().item():g} to {start.max().item():g}"
            )
        self.shape = tuple(shape) or tuple(start.shape)
        try:
            wide = start.expand(self.shape).double()
        except RuntimeError:
            raise ValueError(f"{where}: a start of shape {tuple(start.shape)} does not fit shape={shape}") from None
        self.low, self.high = float(low), float(high)
        self.least = low if low in domain and math.isfinite(low) else max(low + EDGE, -FAR)
        self.most = high if high in domain else min(high - EDGE, FAR)
        self.raw = nn.Parameter(self._inverse(wide).to(start.dtype).reshape(self.shape or (1,)).contiguous())

    def _inverse(self, value: Tensor) -> Tensor:
        above, below = value - self.low, self.high - value
        if math.isfinite(self.low) and math.isfinite(self.high):
            return (above / below).log()
        if math.isfinite(self.low):
            return above + (-(-above).expm1()).log()  # the inverse of softplus, without overflow
        return below + (-(-below).expm1()).log() if math.isfinite(self.high) else value

    def forward(self) -> Tensor:
        raw = self.raw.to(torch.promote_types(self.raw.dtype, torch.float32))  # half types are coarse near an end
        value = _bounded(raw, self.low, self.high)
        # The sum can round past the end; a value outside the interval must not exist.
        value = value.clamp(self.least, self.most)
        return value if self.shape else value.sum()  # not reshape, which a sharded tensor refuses

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """A model that goes to half precision leaves this in float32: a step of α is smaller than theirs."""
        before = self.raw.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.raw.dtype in (torch.bfloat16, torch.float16) and before.dtype in (torch.float32, torch.float64):
            with torch.no_grad():
                self.raw.data = before.to(self.raw.device, torch.float32)
        return self

    def extra_repr(self) -> str:
        return f"shape={self.shape}, interval=({self.low:g}, {self.high:g})"

    def __str__(self) -> str:
        """The value in a few letters: that of all, or from the smallest to the largest."""
        if not readable(self.raw) or not self.raw.numel():
            return ""
        value = self().detach()
        low, high = f"{value.min().item():g}", f"{value.max().item():g}"
        return low if low == high else f"{low}…{high}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}raw")
        if (
            saved is not None and saved.dim() == 0 and self.raw.dim() == 1
        ):  # before 0.2 a single number had no dimension
            state_dict[f"{prefix}raw"] = saved.reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Adjustable(FixedTensors):
    """A module with settings of a mapping: keeps, moves, saves and shows them.

    The ``state_dict`` holds ``learned_NAME.raw`` of a learned setting, ``fixed_NAME`` of a tensor that is saved, and
    ``step`` if something is scheduled, so that a saved module is as it was.
    """

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._settings: dict[str, Setting] = {}
        self._numbers: dict[str, Any] = {}  # those in use, and counts that schedules gave
        self._schedules: dict[str, Schedule] = {}
        self._scheduled: dict[str, Tensor] = {}  # as tensors: torch.compile lets these change

    def hold(
        self,
        setting: Setting,
        value: Any,
        where: str,
        *,
        learnable: bool = False,
        start: float | Tensor | None = None,
        shape: tuple[int, ...] = (),
        interval: Ends | None = None,
        saved: bool = True,
    ) -> None:
        """Keep a setting: a number, a tensor, a schedule, or ``"learned"``. ``saved``: a tensor is in the state."""
        name = setting.name
        self._settings[name] = setting
        if isinstance(value, str) and value != LEARNED and setting.continuous:
            raise ValueError(
                f'{where}: {name} must be a number, a tensor, a schedule or "learned", got {name}={value!r}'
            )
        learnable = learnable or (isinstance(value, str) and value == LEARNED)
        if learnable and (callable(value) or not setting.continuous):
            kind = "follows a schedule" if callable(value) else "is a count"
            raise ValueError(f"{where}: {name} {kind} and cannot be learned")
        if learnable:
            begin = (setting.default or setting.example) if start is None else start
            begin = begin if isinstance(value, str) or value is None else value
            setattr(self, f"learned_{name}", Learned(setting, begin, interval, shape, where))
            return
        setattr(self, f"learned_{name}", None)  # no entry of a module: a state that has one must not load silently
        if shape:
            raise ValueError(f"{where}: shape={shape} is that of a learned {name}; pass learnable=True or a tensor")
        elif isinstance(value, Tensor):
            setting.check_tensor(value, where)
            if isinstance(value, nn.Parameter):
                self.register_parameter(f"fixed_{name}", value)
            else:
                self.fix(f"fixed_{name}", value, persistent=saved)
        elif callable(value):
            setting.check_schedule(value, where)
            self._schedules[name] = value
            if "step" not in self._buffers:
                self.fix_anew("step", torch.tensor(0, device="cpu"), persistent=True)
            self.set_step(0)
        else:
            self._numbers[name] = setting.checked(value, where)

    def value(self, name: str) -> Any:
        """The value in use: a number, or a tensor that carries the gradient."""
        if name in self._numbers:
            return self._numbers[name]
        learned = getattr(self, f"learned_{name}")
        if learned is not None:
            return learned()
        if name in self._scheduled:  # a copy, since the next step may come before the backward pass
            return _on(self._scheduled[name], self.step.device).clone()
        return getattr(self, f"fixed_{name}")

    def change(self, name: str, value: Any) -> None:
        """Another value for a fixed setting."""
        where = type(self).__name__
        if getattr(self, f"learned_{name}") is not None or name in self._schedules:
            kind = "is learned" if name not in self._schedules else "follows a schedule"
            raise AttributeError(f"{where}: {name} {kind} and cannot be set; make another {where} for a fixed one")
        if isinstance(value, Tensor) != (name not in self._numbers):
            kind = "number" if name in self._numbers else "tensor"
            raise TypeError(f"{where}: {name} was made a {kind} and stays one, got {type(value).__name__}")
        if isinstance(value, Tensor):
            setattr(self, f"fixed_{name}", value)
        else:
            self._numbers[name] = self._settings[name].checked(value, where)

    def set_step(self, step: int) -> None:
        """Take the values that the schedules have at this step."""
        step = check_step(step, "set_step")
        where, at = type(self).__name__, f" at step {step}"
        new = {name: self._settings[name].checked(of(step), where, at) for name, of in self._schedules.items()}
        for name, value in new.items():
            if not isinstance(value, float):
                self._numbers[name] = value
            elif name in self._scheduled:
                self._scheduled[name].fill_(value)
            else:
                self._scheduled[name] = torch.tensor(value, dtype=torch.float64, device="cpu")
                self._move_scheduled()
        if new:
            self.step.fill_(step)
            self._given["step"].fill_(step)

    def shown(self, *, whole: bool = True) -> list[str]:
        """Each setting in words, for the ``repr``; ``whole`` also says the shape and interval of learned ones."""
        return [self._words(name, whole) for name in self._settings]

    def _words(self, name: str, whole: bool) -> str:
        learned = getattr(self, f"learned_{name}")
        if name in self._schedules:
            return f"{name}={self._schedules[name]}"
        if learned is None:
            return f"{name}={short(self.value(name))}"
        now = f"{name}={learned}" if str(learned) else name
        return f"{now} learned, {learned.extra_repr()}" if whole else f"{now} learned"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._move_scheduled()
        return self

    def _move_scheduled(self) -> None:
        if self._scheduled and not self.step.is_meta:
            self._scheduled = {name: _on(value, self.step.device) for name, value in self._scheduled.items()}

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        for name in self._settings:
            for old in (name, f"{name}_value"):  # what it was called before 0.2
                if hasattr(self, f"fixed_{name}") and f"{prefix}{old}" in state_dict:
                    state_dict[f"{prefix}fixed_{name}"] = state_dict.pop(f"{prefix}{old}")
            if f"{prefix}learned_{name}.raw" in state_dict and getattr(self, f"learned_{name}") is None:
                warnings.warn(  # an error would be one with strict=False too
                    f"{prefix.rstrip('.') or type(self).__name__}: {name} was learned when this was saved, and is not "
                    f'here; to go on with what was learned, make the module with {name}="learned"',
                    stacklevel=2,
                )
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        for keys in (missing, unexpected):  # one model has schedules, the other has none: our step stays as it is
            if f"{prefix}step" in keys:
                keys.remove(f"{prefix}step")
        if self._schedules and not self.step.is_meta:
            self.set_step(int(self.step))
            self._move_scheduled()


def set_step(model: Any, step: int) -> None:
    """Tell everything in ``model`` the training step, from which schedules of α and its like take their values.

    Args:
        model: any module, or a logits processor.
        step: the global step of the training loop; saying it anew before each step makes resumed runs right too.

    Example:
        >>> import parsimax
        >>> core = parsimax.AttentionCore(8, "rsoftmax", rate=parsimax.schedules.Linear(0.0, 0.9, steps=100))
        >>> loss = parsimax.EntmaxLoss(parsimax.schedules.Linear(1.01, 1.5, steps=100))
        >>> parsimax.set_step(torch.nn.ModuleList([core, loss]), 50)
        >>> core.settings()
        {'rate': tensor(0.4500, dtype=torch.float64)}
        >>> loss.alpha
        tensor(1.2550, dtype=torch.float64)
    """
    step = check_step(step, "set_step")
    if isinstance(model, nn.Module):
        for module in model.modules():
            if isinstance(module, Adjustable):
                module.set_step(step)
    elif hasattr(model, "set_step"):
        model.set_step(step)
    else:
        raise TypeError(f"set_step: model must be a torch.nn.Module, got {type(model).__name__}")


def check_step(step: object, where: str) -> int:
    if isinstance(step, bool) or not isinstance(step, numbers.Integral):
        raise TypeError(f"{where}: step must be an int, the global step of training, got {step!r}")
    if step < 0:
        raise ValueError(f"{where}: step must be at least 0, got {step}")
    return int(step)


def _bounded(raw: Tensor, low: float, high: float) -> Tensor:
    if math.isfinite(low) and math.isfinite(high):
        return low + (high - low) * torch.sigmoid(raw)
    if math.isfinite(low):
        return low + F.softplus(raw)
    return high - F.softplus(raw) if math.isfinite(high) else raw


def readable(value: Tensor) -> bool:
    """Whether a ``repr`` may read it: its values are here. (A rank that prints alone would wait for the others.)"""
    return type(value) in (Tensor, nn.Parameter) and not value.is_meta


def short(value: object) -> str:
    """A value in a few letters."""
    if isinstance(value, Tensor):
        whole = value.numel() != 1 or not readable(value)
        return f"<tensor of shape {tuple(value.shape)}>" if whole else f"{value.item():g}"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _on(value: Tensor, device: torch.device) -> Tensor:
    return value.to(device, work_dtype(device))
