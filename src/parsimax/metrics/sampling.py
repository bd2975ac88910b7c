"""Drawing from sparse distributions."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engine.arguments import check_count, check_dim, check_scores
from ..engine.precision import work_dtype


def sample(
    p: Tensor, num_samples: int | None = None, dim: int = -1, *, generator: torch.Generator | None = None
) -> Tensor:
    r"""Draw indices from distributions with zeros; an entry of probability 0 is never drawn.

    By the inverse of the cumulative sum, in float64: the smallest i with :math:`\sum_{j \le i} p_j > u`.

    Args:
        p: non-negative, any shape; need not sum to 1.
        num_samples: how many to draw from each row, with replacement; None draws one and drops ``dim``.
        dim: the dimension that is the distribution.
        generator: the source of random numbers.

    Returns:
        Indices (int64): the shape of ``p`` without ``dim``, or with ``num_samples`` in its place. -1 where a row has no
        mass to draw from, or NaN.

    Example:
        >>> import torch, parsimax
        >>> p = parsimax.sparsemax(torch.tensor([0.3, 2.0, 0.1, 1.9]))
        >>> draws = parsimax.sample(p, 1000, generator=torch.Generator().manual_seed(0))
        >>> draws.unique()
        tensor([1, 3])

    ``torch.multinomial`` takes at most two dimensions and 2^24 entries, and raises on a row of zeros.
    """
    check_scores(p, None, "sample")
    dim = check_dim(dim, p.dim(), "sample")
    count = 1 if num_samples is None else check_count(num_samples, "num_samples", "sample")
    rows = p.detach().movedim(dim, -1).to(work_dtype(p.device))
    shape = (*rows.shape[:-1], count)
    if rows.shape[-1] == 0:
        index = torch.full(shape, -1, dtype=torch.long, device=p.device)
    else:
        mass = rows.cumsum(-1)
        total = mass[..., -1:]
        u = torch.rand(shape, generator=generator, dtype=rows.dtype, device=p.device) * total
        # u * total can round up to the total, which lies beyond the last entry
        u = torch.minimum(u, torch.nextafter(total, torch.zeros_like(total)))
        index = torch.searchsorted(mass.contiguous(), u.contiguous(), right=True).clamp(max=rows.shape[-1] - 1)
        index = torch.where((total > 0) & total.isfinite(), index, -1)
    return index.squeeze(-1) if num_samples is None else index.movedim(-1, dim)
