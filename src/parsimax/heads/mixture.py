"""A mixture of softmaxes: several contexts made of one hidden state, and what each of them would say."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..engine.modes import is_plain
from ..mappings.declaration import MappingModule
from ..mappings.registry import MappingLike
from .chunks import tokens_at_a_time, with_parameters
from .fused import Fused
from .head import Head, Tied, bent, negative_logs, wide
from .linear import FLOOR, fused_plan, like, log_of, mapped_logs, mapping_module


class MixtureOfSoftmaxes(Head):
    r"""A mixture of K softmaxes over the same classes, with a prior and contexts made from the hidden state.

    .. math:: p(c \mid h) = \sum_{k=1}^K \pi_k(h) \, \operatorname{softmax}\big(f(W g_k(h) + b)\big)_c, \qquad
              \pi = \operatorname{softmax}(P h), \quad g_k = \tanh(U_k h + u_k)

    The logarithm of a sum is not linear in the contexts, so its rank is not bound by their width. K rows of logits are
    made for each token, a chunk of tokens at a time; nothing of size tokens × K × classes exists in eager code (graphs
    of ``torch.compile`` and ``torch.func`` take all tokens at once).

    Args:
        features: of the hidden states.
        classes: how many.
        components: K.
        width: of the contexts and the class vectors; that of the hidden states if not given.
        mapping: what makes probabilities of a component's scores: its name, function or module.
        function: an increasing function of each score before that, such as :class:`PLIF`; one for all components.
        tanh: whether the contexts go through a tanh, as in the paper.
        bias: whether a number per class is added to its score in every component.
        tied: an embedding (classes, width) whose weight scores the classes; the head has its device and dtype.
        device: of the parameters, if nothing is tied.
        dtype: of the parameters, if nothing is tied.
        settings: the mapping's own parameter.

    Example:
        >>> import torch, parsimax
        >>> _ = torch.manual_seed(0)
        >>> head = parsimax.MixtureOfSoftmaxes(8, 100, components=3, function=parsimax.PLIF(1000))
        >>> hidden, target = torch.randn(4, 8), torch.tensor([1, 2, 3, 4])
        >>> torch.allclose(head.probs(hidden).sum(-1), torch.ones(4))
        True
        >>> head.loss(hidden, target, label_smoothing=0.1).shape
        torch.Size([])

    Where a sparse mapping makes the mixture exactly 0, its logarithm is -inf, and the loss is -log(p + 1e-8).

    Reference: Yang, Dai, Salakhutdinov and Cohen, Breaking the Softmax Bottleneck, ICLR 2018.
    """

    mapping: MappingModule

    def __init__(
        self,
        features: int,
        classes: int,
        components: int = 15,
        *,
        width: int | None = None,
        mapping: MappingLike = "softmax",
        function: nn.Module | None = None,
        tanh: bool = True,
        bias: bool = True,
        tied: Tied = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **settings: Any,
    ) -> None:
        if components < 1:
            raise ValueError(f"MixtureOfSoftmaxes: components must be 1 or more, got {components}")
        width = features if width is None else width
        super().__init__(features, classes, width, bias, tied, device, dtype)
        self.components, self.width, self.tanh = components, width, tanh
        self.mapping = mapping_module(mapping, settings, "MixtureOfSoftmaxes").to(self.weight.device)
        self.function = None if function is None else like(self.weight, function)
        own: dict[str, Any] = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.contexts = nn.Linear(features, components * width, **own)
        self.prior = nn.Linear(features, components, bias=False, **own)

    @property
    def rows_per_token(self) -> int:  # type: ignore[override]
        return self.components

    def log_prior(self, hidden: Tensor) -> Tensor:
        """log π (…, K), the weights of the components."""
        return F.log_softmax(wide(self.prior(hidden)), -1)

    def latent(self, hidden: Tensor) -> Tensor:
        """The contexts g_k (…, K, width)."""
        contexts: Tensor = self.contexts(hidden).unflatten(-1, (self.components, self.width))
        return torch.tanh(contexts) if self.tanh else contexts

    def whole(self, hidden: Tensor) -> Tensor:
        scores = bent(self.function, wide(F.linear(self.latent(hidden), self.weight, self.bias)))
        prior = self.log_prior(hidden).unsqueeze(-1)
        if self.mapping.entry.sparse:
            p: Tensor = (prior.exp() * self.mapping(scores)).sum(-2)
            return log_of(p)
        joint = prior + mapped_logs(self.mapping, scores)
        if self.bias is None:
            return torch.logsumexp(joint, -2)
        # A class that no component allows: a sum of nothing but zeros has no gradient, where its logarithm has NaN.
        allowed = self.bias != -math.inf
        return torch.where(allowed, torch.logsumexp(torch.where(allowed, joint, 0), -2), -math.inf)

    def row_losses(self, hidden: Tensor, target: Tensor, options: dict[str, Any]) -> Tensor:
        logs = self.whole(hidden)
        if self.mapping.entry.sparse:
            logs = (logs.exp() + FLOOR).log()
        return negative_logs(logs, target, **options)

    def forward(self, hidden: Tensor) -> Tensor:
        """Log-probabilities (…, classes), a chunk of tokens at a time; the backward pass computes a chunk again."""
        rows = self._checked(hidden).reshape(-1, self.features)
        step = tokens_at_a_time(self)
        # Asked in this order: a traced call that compares its size is bound to one side of the comparison.
        if not is_plain(rows, *self.parameters()) or rows.shape[0] <= step:
            return self.whole(hidden)
        names, values = zip(*self.named_parameters(), strict=True)

        def again(part: Tensor, *values: Tensor) -> Tensor:
            return with_parameters(self, "whole", names, values)(part)

        parts: list[Tensor] = [checkpoint(again, part, *values, use_reentrant=False) for part in rows.split(step)]
        return torch.cat(parts).reshape(*hidden.shape[:-1], self.classes)

    def fused(self, hidden: Tensor) -> Fused | None:
        if type(self).whole is not MixtureOfSoftmaxes.whole or type(self).latent is not MixtureOfSoftmaxes.latent:
            return None
        return fused_plan(self, self.function, hidden, self)

    def extra_repr(self) -> str:
        own = f"features={self.features}, classes={self.classes}, components={self.components}, width={self.width}"
        return f"{own}, tanh={self.tanh}, bias={self.bias is not None}"
