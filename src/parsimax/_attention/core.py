"""Scores → weights → context of one attention layer, whatever module surrounds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.arguments import check_count
from ..engine.precision import work_dtype
from ..mappings.learned import BoundedParameter
from ..mappings.modules import MappingModule, readable, short
from ..mappings.registry import MappingLike
from . import biases
from .fixed import FixedTensors
from .functional import ALPHA, attention
from .heads import attend_by_head
from .observation import Observation as Observation
from .scaling import LengthScaling, check_scaling, count_keys
from .settings import check_ends, check_heads, check_mapping, check_step, check_tensor, check_value

WHERE = "AttentionCore"
Schedule = Callable[[int], Any]  # step -> the value of a setting


class AttentionCore(FixedTensors):
    """Attention without projections, as a layer: it holds the mapping, a learned α per head, schedules and observers.

    :class:`MultiheadAttention` has one, and so has every attention module of a sparsified ``transformers`` model.

    Args:
        num_heads: heads of the query.
        mapping: a mapping of parsimax: its name, function or module. Not given it is "softmax", or "entmax" if there
            is an ``alpha``.
        alpha: of "entmax" (and "normmax"): a number, a tensor of one per head, a schedule, or ``"learned"``: one
            parameter per head, kept inside of ``interval``.
        alpha_start: where a learned α starts, a number or one per head; 1.5 if not given.
        interval: the ends of a learned α.
        heads: the heads that use the mapping; the others use softmax. All, if not given.
        length_scaling: multiply the scores by a learned factor that grows with the number of keys; ``True``, or a
            :class:`LengthScaling`.
        settings: the mapping's own, such as ``rate=0.8``: a number, a tensor of one per head or a schedule.

    A schedule is any function of the training step, such as those of ``parsimax.schedules``; :func:`set_step` tells the
    step, which is 0 before. A fixed mapping adds nothing to the ``state_dict``; a learned α adds
    ``learned_alpha.raw``, and a schedule ``step``, so that a saved model is as it was.

    ``observers`` is a list of functions; each is called with an :class:`Observation` after every forward pass.

    Example:
        >>> import torch, parsimax
        >>> core = parsimax.AttentionCore(8, alpha="learned")
        >>> core
        AttentionCore(num_heads=8, mapping=entmax, alpha=1.5 learned)
        >>> query, key, value = torch.randn(3, 2, 8, 5, 16)
        >>> core(query, key, value, is_causal=True).sum().backward()
        >>> core.learned_alpha.raw.grad.shape
        torch.Size([8])

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019.
    """

    step: Tensor
    chosen: Tensor | None

    def __init__(
        self,
        num_heads: int,
        mapping: MappingLike | None = None,
        *,
        alpha: float | Tensor | str | Schedule | None = None,
        alpha_start: float | Tensor | None = None,
        interval: tuple[float, float] = (1, 2),
        heads: Sequence[int] | None = None,
        length_scaling: bool | LengthScaling = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.num_heads = check_count(num_heads, "num_heads", WHERE)
        self.observers: list[Callable[[Observation], None]] = []
        self.mapping = mapping if isinstance(mapping, MappingModule) else None
        self.learned_alpha: BoundedParameter | None = None
        self._now: dict[str, Any] = {}  # the numbers in use, and counts that schedules gave
        self._values: dict[str, Tensor] = {}  # those of schedules, as tensors: torch.compile lets these change
        self._tensors: list[str] = []
        self._schedules: dict[str, Schedule] = {}
        if mapping is None:
            mapping = "softmax" if alpha is None else "entmax"
        learned = alpha if isinstance(alpha, str) else None
        if alpha is not None and learned is None:
            settings["alpha"] = alpha
        self.name = check_mapping(mapping, settings, learned, WHERE)
        if learned:
            start = 1.5 if alpha_start is None else alpha_start
            self.learned_alpha = BoundedParameter(start, interval, (num_heads,), WHERE)
        elif alpha_start is not None:
            raise ValueError(f'{WHERE}: alpha_start is that of a learned alpha; pass alpha="learned"')
        for name, value in settings.items():
            self._hold(name, value)
        self.register_buffer("chosen", None)
        if heads is not None:
            self.fix_anew("chosen", check_heads(heads, num_heads, WHERE))
        self.length_scaling = check_scaling(length_scaling, num_heads, WHERE)
        if self._schedules:
            self.fix_anew("step", torch.tensor(0, device="cpu"), persistent=True)
            self.set_step(0)

    def _hold(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            check_tensor(self.name, name, value, self.num_heads, WHERE)
            self._tensors.append(name)
            if isinstance(value, nn.Parameter):
                self.register_parameter(f"{name}_value", value)
            else:
                self.fix(f"{name}_value", value)
        elif callable(value):
            check_ends(self.name, name, value, WHERE)
            self._schedules[name] = value
        else:
            self._now[name] = check_value(self.name, name, value, WHERE)

    @property
    def alpha(self) -> Tensor | None:
        """The α in use, (num_heads,); 1, 1.5 or 2 for softmax, entmax15 and sparsemax; None for mappings without."""
        alpha = self._alpha()
        if alpha is None:
            return None
        if not isinstance(alpha, Tensor):
            alpha = torch.tensor(float(alpha), device=None if self.chosen is None else self.chosen.device)
        elif "alpha" in self._values:
            alpha = alpha.to(torch.get_default_dtype())  # as a number has
        return alpha.reshape(-1).expand(self.num_heads) if alpha.numel() in (1, self.num_heads) else alpha

    def _alpha(self) -> float | Tensor | None:
        alpha: float | Tensor | None = ALPHA.get(self.name)
        if alpha is None:
            alpha = self.settings().get("alpha", 1.5 if self.name == "entmax" else None)
        if alpha is None or self.chosen is None or self.name == "normmax":
            return alpha
        return torch.where(self.chosen, alpha.reshape(-1) if isinstance(alpha, Tensor) else alpha, 1.0).view(-1, 1, 1)

    def settings(self) -> dict[str, Any]:
        """The mapping's settings in use, tensors shaped to broadcast to (…, heads, queries, 1)."""
        if self.mapping is not None:
            return self.mapping.settings()
        now = dict(self._now)
        for name in self._tensors:
            value = getattr(self, f"{name}_value")
            now[name] = value if value.dim() == 0 else value.view(-1, 1, 1)
        for name, value in self._values.items():  # a copy, since the next step may come before the backward pass
            now[name] = _on(value, self.step.device).clone()
        if self.learned_alpha is not None:
            now["alpha"] = self.learned_alpha().view(-1, 1, 1)
        return now

    def set_step(self, step: int) -> None:
        """Take the values that the schedules have at this step."""
        step = check_step(step, "set_step")
        at = f" at step {step}"
        new = {name: check_value(self.name, name, each(step), WHERE, at) for name, each in self._schedules.items()}
        for name, value in new.items():
            if not isinstance(value, float):
                self._now[name] = value
            elif name in self._values:
                self._values[name].fill_(value)
            else:
                self._values[name] = torch.tensor(value, dtype=torch.float64, device="cpu")
                self._move_values()
        if new:
            self.step.fill_(step)
            self._given["step"].fill_(step)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._move_values()
        return self

    def _move_values(self) -> None:
        if self._values and not self.step.is_meta:
            self._values = {name: _on(value, self.step.device) for name, value in self._values.items()}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_weights: bool = False,
    ) -> Any:
        """As :func:`attention`, for query (batch, heads, queries, features)."""
        if query.dim() != 4 or query.shape[1] != self.num_heads:
            raise ValueError(
                f"{WHERE}: query must be (batch, {self.num_heads} heads, queries, features), got {tuple(query.shape)}"
            )
        self.revive(query.device)
        if not is_causal:
            sizes = (query.shape[-2], key.shape[-2])
            attn_mask, is_causal = biases.resolved(attn_mask, is_causal, *sizes, query.device, WHERE)
        if self.length_scaling is not None:
            factors = self.length_scaling(count_keys(query, key.shape[-2], attn_mask, is_causal))
            query = (query * factors).to(query.dtype)
        options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        result = self._attend(query, key, value, {**options, "dropout_p": dropout_p, "return_weights": return_weights})
        if self.observers:
            seen = Observation(self, query.detach(), key.detach(), options)
            for observer in tuple(self.observers):
                observer(seen)
        return result

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
        if self.chosen is None:
            return attention(query, key, value, mapping=self.name, **options, **self.settings())
        if self.name == "entmax" or self.name in ALPHA:
            return attention(query, key, value, mapping="entmax", alpha=self._alpha(), **options)
        return attend_by_head(query, key, value, self.chosen, self.name, self.settings(), options)

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
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        for keys in (missing, unexpected):  # one model has schedules, the other has none: our step stays as it is
            if f"{prefix}step" in keys:
                keys.remove(f"{prefix}step")
        if self._schedules and not self.step.is_meta:
            self.set_step(int(self.step))
            self._move_values()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "observers": []}  # a copy is not watched

    def extra_repr(self) -> str:
        shown = [f"num_heads={self.num_heads}", f"mapping={self.name}"]
        if self.learned_alpha is not None:
            shown.append(_learned(self.learned_alpha()))
        else:
            shown += [
                f"{name}={short(value)}" for name, value in self.settings().items() if name not in self._schedules
            ]
        shown += [f"{name}={schedule}" for name, schedule in self._schedules.items()]
        if self.chosen is not None:
            shown.append(f"heads={self._given['chosen'].nonzero().flatten().tolist()}")
        if self.length_scaling is not None:
            shown.append("length_scaling=True")
        return ", ".join(shown)

    def __repr__(self) -> str:  # one line, as for Entmax
        return f"{WHERE}({self.extra_repr()})"


def set_step(model: nn.Module, step: int) -> None:
    """Tell every attention core inside of ``model`` the training step, from which its schedules take their values.

    Args:
        model: any module.
        step: the global step of the training loop; saying it anew before each step makes resumed runs right too.

    Example:
        >>> import parsimax
        >>> core = parsimax.AttentionCore(8, "rsoftmax", rate=parsimax.schedules.Linear(0.0, 0.9, steps=100))
        >>> parsimax.set_step(core, 50)
        >>> core.settings()
        {'rate': tensor(0.4500, dtype=torch.float64)}
    """
    step = check_step(step, "set_step")
    for module in model.modules():
        if isinstance(module, AttentionCore):
            module.set_step(step)


def _on(value: Tensor, device: torch.device) -> Tensor:
    return value.to(device, work_dtype(device))


def _learned(alpha: Tensor) -> str:
    if not readable(alpha):
        return "alpha learned"
    low, high = (f"{end.item():g}" for end in (alpha.min(), alpha.max()))
    return f"alpha={low if low == high else f'{low}…{high}'} learned"
