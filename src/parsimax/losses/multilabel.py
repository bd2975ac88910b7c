"""Several right labels a row: the loss of each mapping at the uniform distribution over them."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ..engine.arguments import check_scores
from ..engine.chunked import Solve, Traced, evaluate
from ..engine.clean import as_tensor, clean, inside
from ..engine.modes import is_plain, kernels_serve
from ..engine.precision import formula_dtype
from ..mappings.declaration import Entry
from ..mappings.registry import MappingLike, resolve
from ..mappings.sparsehourglass import hourglass_scale
from .contract import REDUCTIONS, Bound, loss_dtype, reduced, soft_rows
from .fenchel_young import bind

EPSILON = 1e-8  # the paper's, inside the logarithm


def _hinge_rows(x: Tensor, q: Tensor, target: Tensor, *, solve: Solve) -> Tensor:
    """Pairs of labels are to be as far apart as their shares, a label ahead of a non-label by its share; over a."""
    traced = isinstance(solve, Traced)
    rows = clean(x, shift=False, traced=traced, dtype=solve.dtype)
    z, share = rows.z, target.to(rows.z.dtype)
    on = share > 0
    a = hourglass_scale(z, rows.live, q.to(z.dtype)).unsqueeze(-1)
    # Every pair begins with a label, and there are few: these are moved to the front where their number may be read.
    most = z.shape[-1] if traced else int(on.sum(-1).max()) if on.numel() else 0
    at = share.expand_as(z).topk(most).indices
    label, own = z.gather(-1, at).unsqueeze(-1), share.expand_as(z).gather(-1, at).unsqueeze(-1)
    apart = label - z.unsqueeze(-2)
    wanted = (own - share.unsqueeze(-2)) / a
    both = (own > 0) & on.unsqueeze(-2)
    ahead = (own > 0) & (~on & rows.allowed).unsqueeze(-2)
    loss = torch.where(both, (wanted - apart).abs() / 2, torch.where(ahead, (wanted - apart).clamp(min=0), 0))
    forbidden = torch.where((on & ~rows.allowed).any(-1, keepdim=True), torch.inf, 0.0)
    return loss.sum((-1, -2)).unsqueeze(-1) + forbidden + torch.where(rows.broken, torch.nan, 0.0)


def _log_loss(p: Tensor, target: Tensor) -> Tensor:
    return -(target * (p + EPSILON).log()).sum(-1)


def _rows_loss(entry: Entry, settings: dict[str, Any], scores: Tensor, target: Tensor, where: str) -> Tensor:
    """One loss per row, for a target that sums to 1."""
    work = formula_dtype(scores)
    if entry.regulariser is not None:
        bound: Bound = bind(entry, settings, where, keep_entropy=True)
        raw = [as_tensor(p, scores, scores.dim() - 1, where) for p in bound.parameters]
        kernels_serve(where, scores, *raw)  # none does, which is an error for those who insist on them
        ones = torch.ones((1,) * (scores.dim() - 1) + scores.shape[-1:], dtype=work, device=scores.device)
        return evaluate(partial(soft_rows, bound, 0.0), scores, *raw, target, ones, width=1, dtype=work).squeeze(-1)
    if entry.name != "sparsehourglass" and entry.total == 1 and (entry.setting is None or entry.setting.continuous):
        if entry.setting and entry.setting.default is None and entry.setting.name not in settings:
            raise TypeError(f"{where}: {entry.name} needs {entry.setting.name}=…, in {entry.setting.domain}")
        return _log_loss(entry.function(scores, **settings, dtype=work), target)
    if entry.name == "sparsehourglass":
        assert entry.setting is not None
        value: Any = settings.get("q", entry.setting.default)
        parameter = entry.setting.at(value)
        q = as_tensor(parameter, scores, scores.dim() - 1, where)
        good, bad = inside(q, parameter.domain, 1.0, work)
        n = labels = scores.shape[-1]
        if is_plain(target) and target.device.type == "cpu" and target.numel():
            labels = int((target > 0).sum(-1).max())
        loss = evaluate(_hinge_rows, scores, good, target, width=1, dtype=work, cost=n * max(1, labels))
        return (loss * torch.where(bad, torch.nan, 1.0)).squeeze(-1)
    raise ValueError(f"{where}: there is no multi-label loss for {entry.name}")


@overload
def multilabel_loss(
    scores: Tensor,
    targets: Tensor,
    mapping: MappingLike = ...,
    *,
    reduction: str = ...,
    return_skipped: Literal[False] = ...,
    **settings: Any,
) -> Tensor: ...
@overload
def multilabel_loss(
    scores: Tensor,
    targets: Tensor,
    mapping: MappingLike = ...,
    *,
    reduction: str = ...,
    return_skipped: Literal[True],
    **settings: Any,
) -> tuple[Tensor, Tensor]: ...
def multilabel_loss(
    scores: Tensor,
    targets: Tensor,
    mapping: MappingLike = "sparsemax",
    *,
    reduction: str = "mean",
    return_skipped: bool = False,
    **settings: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""The loss of a row of scores with several right labels.

    .. math:: q = y / \|y\|_1

    * a mapping with an entropy (softmax, sparsemax, entmax15, entmax, normmax, sparsegen): its Fenchel–Young loss at q;
    * rsoftmax, tsoftmax, sigsoftmax: :math:`-\sum_i q_i \log(p_i + 10^{-8})`;
    * sparsehourglass: the pairwise hinge :math:`\sum_{i,j \in P} |(q_i - q_j)/a - (z_i - z_j)|/2 +
      \sum_{i \in P, j \in N} [q_i/a - (z_i - z_j)]_+`, labels P, others N, a its scale.

    Args:
        scores: (…, L), one score per label.
        targets: (…, L), 0 or 1, boolean, or non-negative weights of the labels.
        mapping: the name, the function or a module.
        reduction: "mean" over the rows that have a label, "sum", or "none" (skipped rows are 0).
        return_skipped: also return how many rows have no label, and were skipped.
        settings: the mapping's own parameter, such as ``rate=0.8``.

    Returns:
        A scalar, or for "none" one loss per row; with ``return_skipped`` a pair, the second an integer tensor.

    Example:
        >>> import torch, parsimax
        >>> scores = torch.tensor([[1.0, 1.0, -1.0], [0.0, 1.0, 2.0]])
        >>> targets = torch.tensor([[1, 1, 0], [0, 0, 0]])
        >>> parsimax.multilabel_loss(scores, targets, "sparsemax", return_skipped=True)
        (tensor(0.), tensor(1))

    Reference: Martins and Astudillo, ICML 2016; Laha et al., NeurIPS 2018; Bałazy et al., ICCS 2023.
    """
    where = "multilabel_loss"
    check_scores(scores, None, where)
    if reduction not in REDUCTIONS:
        raise ValueError(f"{where}: reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if not isinstance(targets, Tensor):
        raise TypeError(f"{where}: targets must be a torch.Tensor, got {type(targets).__name__}")
    if targets.shape != scores.shape:
        raise ValueError(
            f"{where}: targets must have the shape of scores {tuple(scores.shape)}, got {tuple(targets.shape)}"
        )
    entry, settings = resolve(mapping, settings, where)
    y = targets.to(formula_dtype(scores))
    if is_plain(y) and y.device.type == "cpu" and (y < 0).any():
        raise ValueError(f"{where}: targets must not be negative, got {y.min().item():g}")
    size = y.sum(-1, keepdim=True)
    labelled = size > 0
    scores = scores.masked_fill(~labelled, 0)  # what is skipped is not even read
    loss = _rows_loss(entry, settings, scores, y / torch.where(labelled, size, 1), where)
    labelled = labelled.squeeze(-1)
    loss = torch.where(labelled, loss, 0)
    out = reduced(loss, labelled.sum(), reduction).to(loss_dtype(scores))
    return (out, (~labelled).sum()) if return_skipped else out
