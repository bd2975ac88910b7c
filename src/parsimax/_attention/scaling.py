"""Scores that grow with the number of keys, so that attention does not fade in long contexts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._fixed import FixedTensors
from ..engine.arguments import FINITE, POSITIVE, check_count, check_number


class LengthScaling(FixedTensors):
    r"""Multiplies the scores of a query that may attend to n keys by a factor that grows with n, one curve per head.

    .. math:: \delta + \beta\, (\log n)^{\gamma}

    With more keys the weights of softmax fade, and the support of entmax changes; the factor makes up for it. A query
    with a single key gets the same weights whatever the factor, so n counts as 2 from there down.

    Args:
        num_heads: how many curves.
        delta: δ, fixed.
        beta: β > 0, or where learning it starts.
        gamma: γ, or where learning it starts. δ = 0 and γ = 1 is the scalable softmax, β log n.
        learnable: train β (kept positive as a softplus) and γ; otherwise they stay as they are and are not saved.
        device: of the parameters.
        dtype: of the parameters.

    Shape: ``forward(counts)`` takes the number of keys of each query, broadcastable to (…, heads, queries, 1), and
    gives the factors; :class:`AttentionCore` counts and multiplies.

    Example:
        >>> import torch, parsimax
        >>> scaling = parsimax.LengthScaling(2, delta=0.0, beta=1.0, gamma=1.0, learnable=False)
        >>> scaling(torch.tensor([[4.0], [16.0]]))[0]
        tensor([[1.3863],
                [2.7726]])

    Reference: Vasylenko et al., Long-Context Generalization with Sparse Attention (ASEntmax), ICLR 2026; Nakanishi,
    Scalable-Softmax Is Superior for Attention, 2025.
    """

    def __init__(
        self,
        num_heads: int,
        delta: float = 1.0,
        beta: float = 0.5,
        gamma: float = 1.0,
        learnable: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.num_heads = check_count(num_heads, "num_heads", where)
        self.delta = check_number(delta, FINITE, "delta", where)
        start = check_number(beta, POSITIVE, "beta", where)
        power = check_number(gamma, FINITE, "gamma", where)
        self.learnable = learnable
        raw = start + math.log(-math.expm1(-start))  # the inverse of softplus, without overflow
        for name, value in (("raw_beta", raw), ("gamma", power)):
            if learnable:
                tensor = torch.full((num_heads,), value, device=device, dtype=dtype)
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.fix_anew(name, torch.full((num_heads,), value, device="cpu", dtype=dtype))
        if not learnable and device is not None:
            self.to(device)

    raw_beta: Tensor
    gamma: Tensor

    @property
    def beta(self) -> Tensor:
        """The β in use, one per head."""
        return F.softplus(self.raw_beta)

    def forward(self, counts: Tensor) -> Tensor:
        self.revive(counts.device)
        logs = counts.to(torch.promote_types(self.gamma.dtype, torch.float32)).clamp_min(2).log()
        return self.delta + self.beta.view(-1, 1, 1) * logs ** self.gamma.view(-1, 1, 1)

    def extra_repr(self) -> str:
        kind = "learned" if self.learnable else "fixed"
        return f"num_heads={self.num_heads}, delta={self.delta:g}, beta and gamma {kind}"


def count_keys(query: Tensor, keys: int, mask: Tensor | None, causal: bool) -> Tensor:
    """How many keys each query may attend to, broadcastable to (…, queries, 1).

    In an added mask also the lowest finite number forbids, since models write it for -inf.
    """
    if causal:
        return torch.arange(1, query.shape[-2] + 1, device=query.device).clamp_max(keys).view(-1, 1)
    if mask is None:
        return torch.full((1, 1), keys, device=query.device)
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return allowed.expand(*mask.shape[:-1], keys).sum(-1, keepdim=True)


def check_scaling(given: bool | LengthScaling, heads: int, where: str) -> LengthScaling | None:
    if isinstance(given, bool):
        return LengthScaling(heads) if given else None
    if not isinstance(given, LengthScaling):
        raise TypeError(f"{where}: length_scaling must be True, False or a LengthScaling, got {given!r}")
    if given.num_heads not in (1, heads):
        raise ValueError(f"{where}: length_scaling has {given.num_heads} heads, the attention has {heads}")
    return given
