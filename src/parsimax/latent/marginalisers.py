"""Exact sums over a sparse distribution, or over all z."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ..mappings import REGISTRY
from ..structured import Structure, sparsemap, topk
from ..structured.sparsemap import _count
from ..structured.structure import Scores
from ..structured.topk import listed
from .expected import Expected, LossOf, of_distribution


class Method(nn.Module):
    """A way to an expected loss and its gradient; :func:`expected_loss` takes any of them."""

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        raise NotImplementedError


class Marginal(Method):
    """The exact sum over all z that have a probability: every z for softmax, the support alone for a sparse mapping.

    Args:
        mapping: the name of a mapping without a parameter, such as ``"softmax"``, ``"sparsemax"`` or ``"entmax15"``, or
            a function of scores over their last dimension.
        most: how many structures may be listed. One-of-n has no such limit.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[1.0, 0.8, -2.0]], requires_grad=True)
        >>> out = parsimax.expected_loss(scores, lambda example, z: z.float(), parsimax.latent.Marginal("sparsemax"))
        >>> out.loss.sum().backward()
        >>> out.calls, scores.grad
        (tensor([2]), tensor([[-0.5000,  0.5000,  0.0000]]))
    """

    def __init__(self, mapping: str | Callable[[Tensor], Tensor] = "sparsemax", *, most: int = 4096) -> None:
        super().__init__()
        if isinstance(mapping, str):
            entry = REGISTRY.get(mapping)
            if entry is None or entry.setting is not None:
                plain = [name for name, each in REGISTRY.items() if each.setting is None]
                raise ValueError(
                    f"Marginal: mapping is one of {', '.join(plain)}, or a function of scores, got {mapping!r}"
                )
            self.name, self.mapping = mapping, entry.function
        elif not callable(mapping):
            raise TypeError(f"Marginal: mapping is a name or a function of scores, got {mapping!r}")
        else:
            self.name, self.mapping = getattr(mapping, "__name__", type(mapping).__name__), mapping
        self.most = _count(most, "most", "Marginal")

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        return of_distribution(listed(scores, structure, self.mapping, self.most), loss_of, chunk)

    def extra_repr(self) -> str:
        return self.name


class TopK(Method):
    """The exact sum over a sparsemax of the k best structures; the certificate is 0 where no other has a share.

    Args:
        k: how many structures, at most.

    Example:
        >>> import torch, parsimax
        >>> scores, bits = torch.tensor([[0.1, 5.0, -4.0]]), parsimax.structured.Bits()
        >>> method = parsimax.latent.TopK(2)
        >>> out = parsimax.expected_loss(scores, lambda example, z: z.sum(-1), method, structure=bits)
        >>> out.loss, out.calls, out.certificate
        (tensor([1.5500]), tensor([2]), tensor([0.], dtype=torch.float64))
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = _count(k, "k", "TopK")

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        return of_distribution(topk(scores, structure, self.k), loss_of, chunk)

    def extra_repr(self) -> str:
        return str(self.k)


class SparseMAP(Method):
    """The exact sum over the structures of :func:`~parsimax.sparsemap`.

    Args:
        rule: as in :func:`~parsimax.sparsemap`.
        shuffle: as in :func:`~parsimax.sparsemap`.
        max_iter: as in :func:`~parsimax.sparsemap`.

    Example:
        >>> import torch, parsimax
        >>> scores, bits = torch.tensor([[0.5, -0.2, 2.0]]), parsimax.structured.Bits(at_most=2)
        >>> method = parsimax.latent.SparseMAP()
        >>> out = parsimax.expected_loss(scores, lambda example, z: z.sum(-1), method, structure=bits)
        >>> out.loss, out.calls
        (tensor([2.]), tensor([2]))
    """

    def __init__(self, rule: str | None = None, *, shuffle: bool = False, max_iter: int = 1000) -> None:
        super().__init__()
        if isinstance(rule, Structure):
            raise TypeError(f"SparseMAP: the structure belongs to the call, expected_loss(…, structure={rule})")
        if rule is not None and not isinstance(rule, str):
            raise TypeError(f"SparseMAP: rule is the name of a rule, or None, got {rule!r}")
        self.rule, self.shuffle, self.max_iter = rule, shuffle, _count(max_iter, "max_iter", "SparseMAP")

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        found = sparsemap(scores, structure, rule=self.rule, shuffle=self.shuffle, max_iter=self.max_iter)
        return of_distribution(found, loss_of, chunk)


class Best(Method):
    """The best structure alone: how every method can be evaluated alike.

    Example:
        >>> import torch, parsimax
        >>> out = parsimax.expected_loss(
        ...     torch.tensor([[0.1, 0.7]]), lambda example, z: z.float(), parsimax.latent.Best()
        ... )
        >>> out.loss, out.calls
        (tensor([1.]), tensor([1]))
    """

    def forward(
        self, scores: Scores, loss_of: LossOf, structure: Structure, context: Tensor | None, chunk: int | None
    ) -> Expected:
        return of_distribution(topk(scores, structure, 1), loss_of, chunk)
