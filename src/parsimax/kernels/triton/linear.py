"""The fused output layer and loss: logits a chunk of rows at a time.

The matrix products are those of the vendor's library, which no kernel of ours would beat; the rows in between are ours.
The backward pass computes a chunk's logits again and turns them into their gradient: one product more than with all
logits kept, and never more of them in memory than there are in a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..schemas import CAP
from .losses import loss_bwd, loss_fwd, soft_loss_bwd, soft_loss_fwd

LOGITS = 1 << 24  # in a chunk: 64 MB
# Since when torch multiplies half types into float32.
WIDENS = tuple(map(int, torch.__version__.split(".")[:2])) >= ((2, 10) if torch.version.hip else (2, 8))


def chunks(rows: int, classes: int) -> Iterator[slice]:
    """At least 16 rows, so that products have something to share."""
    each = max(16, LOGITS // max(1, classes))
    return (slice(start, min(rows, start + each)) for start in range(0, rows, each))


def product(a: Tensor, b: Tensor) -> Tensor:
    """In float32; half types are multiplied as they are and not rounded afterwards."""
    if a.is_cuda and a.dtype != torch.float32 and WIDENS:
        return torch.mm(a, b, out_dtype=torch.float32)
    with torch.autocast(a.device.type, enabled=False):
        return a.float() @ b.float()


def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float) -> Tensor:
    z = product(hidden, weight.t())
    z = z if bias is None else z + bias.float()
    return softcap * torch.tanh(z / softcap) if softcap else z


def of_rows(alpha: Tensor | None, part: slice) -> Tensor | None:
    return alpha if alpha is None or alpha.numel() == 1 else alpha.reshape(-1)[part]


def rows_fwd(z: Tensor, target: Tensor, alpha: Tensor | None, value: float) -> tuple[Tensor, Tensor]:
    """(losses, state) of a chunk, against classes or against coefficients of all of them."""
    if target.is_floating_point():
        return soft_loss_fwd(z, target.to(z.dtype), alpha, value)[:2]
    return loss_fwd(z, target, alpha, value, 0.0, None)[:2]


def rows_bwd(z: Tensor, target: Tensor, g: Tensor, alpha: Tensor | None, value: float) -> Tensor:
    """The gradient by a chunk's logits."""
    state = rows_fwd(z, target, alpha, value)[1]
    if target.is_floating_point():
        return soft_loss_bwd(z, target.to(z.dtype), g, alpha, value, state)[0]
    return loss_bwd(z, target, g, alpha, value, 0.0, None, state)[0]


def linear_loss_fwd(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: Tensor | None,
    value: float,
    softcap: float,
    keep: bool,
) -> tuple[Tensor, ...]:
    """(loss, state, index, support, count); the backward needs dloss/dα alone, the last number of the state."""
    rows, classes = hidden.shape[0], weight.shape[0]
    new = hidden.new_empty
    loss, state = new(rows, dtype=torch.float32), hidden.new_zeros((rows, 3), dtype=torch.float64)
    for part in chunks(rows, classes):
        z = logits(hidden[part], weight, bias, softcap)
        loss[part], found = rows_fwd(z, target[part], of_rows(alpha, part), value)
        state[part, 2] = found[:, 3]
    cap = min(CAP, classes) if keep else 0
    kept = new((rows, cap), dtype=torch.int32), new((rows, cap), dtype=torch.float32)
    return loss, state, *kept, new(rows, dtype=torch.int32)


def linear_loss_bwd(
    g: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: Tensor | None,
    value: float,
    softcap: float,
    *_: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    dhidden = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    dweight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    dbias = torch.zeros(0 if bias is None else bias.shape[0], dtype=torch.float32, device=weight.device)
    for part in chunks(hidden.shape[0], weight.shape[0]):
        z = logits(hidden[part], weight, bias, softcap)
        dz = rows_bwd(z, target[part], g[part], of_rows(alpha, part), value)
        if softcap:
            dz = dz * (1 - (z / softcap).square())
        if bias is not None:
            dbias += dz.sum(0)
        dz = dz.to(hidden.dtype)
        dhidden[part] = product(dz, weight).to(hidden.dtype)
        dweight += product(dz.t(), hidden[part])
    return dhidden, dweight.to(weight.dtype), dbias if bias is None else dbias.to(bias.dtype)
