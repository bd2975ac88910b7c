"""A model's attention replaced by ours."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from ..mappings.registry import MappingLike
from ..parameters import Schedule
from .core import AttentionCore
from .multihead import MultiheadAttention

WHERE = "replace_attention"
PARAMETERS = (
    "in_proj_weight",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "in_proj_bias",
    "bias_k",
    "bias_v",
)


def replace_attention(
    model: nn.Module,
    mapping: MappingLike | None = None,
    *,
    alpha: float | Tensor | str | Schedule | None = None,
    **settings: Any,
) -> nn.Module:
    """Replace every ``nn.MultiheadAttention`` inside a model by a :class:`MultiheadAttention` with its weights.

    A :class:`MultiheadAttention` that is there already stays, with its weights, and gets this mapping for its old one.

    Args:
        model: any module; it is changed in place. Its parameters stay the same objects, so that an optimiser keeps
            them; a learned α is new and has to be given to the optimiser.
        mapping: as in :class:`MultiheadAttention`, and so are the next two. A module is copied for each layer.
        alpha: a number, a tensor of one per head, a schedule, or ``"learned"``.
        settings: further ones.

    Returns:
        The model; if it is itself an ``nn.MultiheadAttention``, what replaces it.

    Example:
        >>> import torch, parsimax
        >>> model = torch.nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
        >>> model = parsimax.replace_attention(model, alpha="learned")
        >>> [name for name, _ in model.named_parameters() if "alpha" in name]
        ['encoder.layers.0.self_attn.core.learned_alpha.raw',
         'decoder.layers.0.self_attn.core.learned_alpha.raw',
         'decoder.layers.0.multihead_attn.core.learned_alpha.raw']

    For models of ``transformers`` there is ``parsimax.huggingface.sparsify``.

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019.
    """
    options = {"mapping": mapping, "alpha": alpha, **settings}
    found = {module: name for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)}
    replaced = [module for module in model.modules() if isinstance(module, MultiheadAttention)]
    for module, name in found.items():
        if type(module) is not nn.MultiheadAttention:
            raise TypeError(
                f"{WHERE}: {name or 'the model'} is a {type(module).__name__}, which may compute something else than "
                "nn.MultiheadAttention; replace it yourself"
            )
    if not found and not replaced:
        raise ValueError(
            f"{WHERE}: {type(model).__name__} has no nn.MultiheadAttention; for a model of transformers use "
            "parsimax.huggingface.sparsify"
        )
    ours = {module: _replacement(module, options) for module in found}
    cores = [_core(module, options) for module in replaced]
    for layer, core in zip(replaced, cores, strict=True):
        layer.core = core
    if model in ours:
        return ours[model]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children() would skip the second name of a shared one
            if child in ours:
                parent._modules[name] = ours[child]
        if isinstance(parent, nn.TransformerEncoder):
            parent.use_nested_tensor = False  # only the fast path, which computes softmax, gains by it
    return model


def _replacement(old: nn.MultiheadAttention, options: dict[str, Any]) -> MultiheadAttention:
    new = MultiheadAttention(
        old.embed_dim,
        old.num_heads,
        old.dropout,
        kdim=old.kdim,
        vdim=old.vdim,
        add_zero_attn=old.add_zero_attn,
        batch_first=old.batch_first,
        device="meta",  # the weights come from the old one
    )
    for name in PARAMETERS:
        new.register_parameter(name, getattr(old, name))
    new.out_proj = old.out_proj
    new.core = _core(old, options)
    return new.train(old.training)


def _core(layer: nn.MultiheadAttention | MultiheadAttention, options: dict[str, Any]) -> AttentionCore:
    own: dict[str, Any] = {
        name: deepcopy(value) if isinstance(value, nn.Module) else value for name, value in options.items()
    }
    weight = layer.out_proj.weight
    core = AttentionCore(layer.num_heads, **own).to(device=weight.device, dtype=weight.dtype)
    return core.train(layer.training)
