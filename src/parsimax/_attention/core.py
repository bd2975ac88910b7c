"""Scores → weights → context of one attention layer, whatever module surrounds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.arguments import check_count
from ..mappings.declaration import REGISTRY, MappingModule
from ..mappings.registry import MappingLike
from ..parameters import Adjustable, Ends, short
from ..parameters import Schedule as Schedule
from . import biases
from .choice import check_heads, check_mapping, check_shape
from .functional import attention
from .heads import attend_by_head
from .observation import Observation as Observation
from .scaling import LengthScaling, check_scaling, count_keys

WHERE = "AttentionCore"


class AttentionCore(Adjustable):
    """Attention without projections, as a layer: it holds the mapping, its settings per head and observers.

    :class:`MultiheadAttention` has one, and so has every attention module of a sparsified ``transformers`` model.

    Args:
        num_heads: heads of the query.
        mapping: a mapping of parsimax: its name, function or module. Not given it is "softmax", or "entmax" if there
            is an ``alpha``.
        alpha: of "entmax" (and "normmax"): a number, a tensor of one per head, a schedule, or ``"learned"``: one
            parameter per head, kept inside ``interval``.
        start: where a learned setting starts, a number or one per head; 1.5 for α if not given.
        interval: the ends of a learned setting; (1, 2) for the α of entmax if not given.
        heads: the heads that use the mapping; the others use softmax. All, if not given.
        length_scaling: multiply the scores by a learned factor that grows with the number of keys; ``True``, or a
            :class:`LengthScaling`.
        settings: the mapping's own, such as ``rate=0.8``: a number, a tensor of one per head, a schedule, or
            ``"learned"``.
        alpha_start: an older name of ``start``.

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

    chosen: Tensor | None

    def __init__(
        self,
        num_heads: int,
        mapping: MappingLike | None = None,
        *,
        alpha: float | Tensor | str | Schedule | None = None,
        start: float | Tensor | None = None,
        interval: Ends | None = None,
        heads: Sequence[int] | None = None,
        length_scaling: bool | LengthScaling = False,
        alpha_start: float | Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.num_heads = check_count(num_heads, "num_heads", WHERE)
        self.observers: list[Callable[[Observation], None]] = []
        self.mapping = mapping if isinstance(mapping, MappingModule) else None
        if mapping is None:
            mapping = "softmax" if alpha is None else "entmax"
        if alpha is not None:
            settings["alpha"] = alpha
        entry = check_mapping(mapping, settings, WHERE)
        self.name = entry.name
        if start is not None and alpha_start is not None:
            raise ValueError(f"{WHERE}: start and alpha_start are two names of one thing; pass start alone")
        start = alpha_start if start is None else start
        if start is not None and not any(isinstance(value, str) for value in settings.values()):
            raise ValueError(f'{WHERE}: start is that of a learned setting; pass alpha="learned" or the like')
        self._switches = {name: value for name, value in settings.items() if name in entry.switches}
        if entry.setting is not None and (value := settings.get(entry.setting.name)) is not None:
            check_shape(entry, value, num_heads, WHERE)
            learned: dict[str, Any] = {"start": start, "shape": (num_heads,)} if isinstance(value, str) else {}
            self.hold(entry.setting, value, WHERE, interval=interval, saved=False, **learned)
        self.register_buffer("chosen", None)
        if heads is not None:
            self.fix_anew("chosen", check_heads(heads, num_heads, WHERE))
        self.length_scaling = check_scaling(length_scaling, num_heads, WHERE)

    @property
    def alpha(self) -> Tensor | None:
        """The α in use, (num_heads,); 1, 1.5 or 2 for softmax, entmax15 and sparsemax; None for mappings without."""
        alpha = self._alpha()
        if alpha is None:
            return None
        if not isinstance(alpha, Tensor):
            alpha = torch.tensor(float(alpha), device=None if self.chosen is None else self.chosen.device)
        elif "alpha" in self._scheduled:
            alpha = alpha.to(torch.get_default_dtype())  # as a number has
        return alpha.reshape(-1).expand(self.num_heads) if alpha.numel() in (1, self.num_heads) else alpha

    def _alpha(self) -> float | Tensor | None:
        entry = REGISTRY[self.name]
        alpha: float | Tensor | None = entry.alpha
        if alpha is None:
            default = entry.setting.default if entry.name == "entmax" and entry.setting else None
            alpha = self.settings().get("alpha", default)
        if alpha is None or self.chosen is None or self.name == "normmax":
            return alpha
        return torch.where(self.chosen, alpha.reshape(-1) if isinstance(alpha, Tensor) else alpha, 1.0).view(-1, 1, 1)

    def settings(self) -> dict[str, Any]:
        """The mapping's settings in use, tensors shaped to broadcast to (…, heads, queries, 1)."""
        if self.mapping is not None:
            return self.mapping.settings()
        now = {name: self.value(name) for name in self._settings}
        shaped = {
            name: value.view(-1, 1, 1) for name, value in now.items() if isinstance(value, Tensor) and value.dim()
        }
        return {**now, **shaped, **self._switches}

    def set_step(self, step: int) -> None:
        """Take the values that the schedules have at this step."""
        super().set_step(step)
        if self.mapping is not None:
            self.mapping.set_step(step)

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
        if self.name == "entmax" or REGISTRY[self.name].alpha is not None:
            return attention(query, key, value, mapping="entmax", alpha=self._alpha(), **options)
        return attend_by_head(query, key, value, self.chosen, self.name, self.settings(), options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "observers": []}  # a copy is not watched

    def extra_repr(self) -> str:
        shown = [f"num_heads={self.num_heads}", f"mapping={self.name}"]
        held = self if self.mapping is None else self.mapping
        shown += held.shown(whole=False)
        shown += [f"{name}={short(value)}" for name, value in self.settings().items() if name not in held._settings]
        if self.chosen is not None:
            shown.append(f"heads={self._given['chosen'].nonzero().flatten().tolist()}")
        if self.length_scaling is not None:
            shown.append("length_scaling=True")
        return ", ".join(shown)

    def __repr__(self) -> str:  # one line, as for Entmax
        return f"{WHERE}({self.extra_repr()})"
