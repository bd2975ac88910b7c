"""Tensor parallelism: a rank has some of the heads, and what is learned of all heads is the same on every rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._attention.core import AttentionCore
from .._attention.functional import attention
from .._attention.scaling import count_keys


def attend_part(
    module: nn.Module, core: AttentionCore, query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Any:
    """As the core, for a query that has only the heads of this rank.

    Parameters of the core are whole on every rank, so that they are saved and loaded as ever. Each rank reads those of
    its heads, and their gradients are summed over the ranks, so that they stay the same everywhere.
    """
    mesh = _mesh(module, core, query)
    heads = slice(mesh.get_local_rank() * query.shape[1], (mesh.get_local_rank() + 1) * query.shape[1])
    if core.observers:
        raise NotImplementedError("AttentionCore: observers see whole layers; there is none under tensor parallelism")
    core.revive(query.device)
    if core.length_scaling is not None:
        counts = count_keys(query, key.shape[-2], options["attn_mask"], options["is_causal"])
        factors = core.length_scaling(counts)
        query = (query * _of_rank(factors, heads, core, mesh)).to(query.dtype)
    if core.chosen is None:
        settings: dict[str, Any] = {
            name: _of_rank(each, heads, core, mesh) if isinstance(each, Tensor) else each
            for name, each in core.settings().items()
        }
        return attention(query, key, value, mapping=core.name, **options, **settings)
    if core.alpha is None or core.name == "normmax":
        raise NotImplementedError(
            f"AttentionCore: heads={core.chosen.tolist()} of {core.name} under tensor parallelism"
        )
    alpha = _of_rank(core.alpha.view(-1, 1, 1), heads, core, mesh)
    return attention(query, key, value, mapping="entmax", alpha=alpha, **options)


def _mesh(module: nn.Module, core: AttentionCore, query: Tensor) -> Any:
    """The ranks that share the heads of this layer: those over which its projections are split."""
    for parameter in module.parameters():
        mesh: Any = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            mesh = mesh["tp"] if "tp" in (mesh.mesh_dim_names or ()) else mesh
            if mesh.ndim == 1 and mesh.size() * query.shape[1] == core.num_heads:
                return mesh
    raise ValueError(
        f"AttentionCore: {type(module).__name__} has {core.num_heads} heads, its query has {query.shape[1]}, and its "
        "parameters are not split over that many ranks"
    )


def _of_rank(whole: Tensor, heads: slice, core: AttentionCore, mesh: Any) -> Tensor:
    """The part of what broadcasts to (…, heads, queries, 1) that belongs to these heads."""
    if whole.requires_grad:
        whole = _Summed.apply(whole, mesh.get_group())  # type: ignore[no-untyped-call]
    return whole[..., heads, :, :] if whole.dim() > 2 and whole.shape[-3] == core.num_heads else whole


class _Summed(torch.autograd.Function):
    """The same forward on every rank; the gradient is that of all ranks together."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        g = g.contiguous().clone()
        torch.distributed.all_reduce(g, group=ctx.group)
        return g, None
