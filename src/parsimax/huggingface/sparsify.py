"""Put a mapping into every attention layer of a model, and take it out again."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .._attention.core import AttentionCore, Schedule
from . import private
from .adapters import base_of, record
from .interface import ADDED, CORE, MASKED, NAME, NAMES
from .layers import Heads, Layers, choice, find
from .told import KEY, Told
from .watch import unwatch, watch

Model = TypeVar("Model", bound=nn.Module)
MARK = "attn_implementation"  # written into config.json, so that no plain from_pretrained gives softmax unnoticed


def sparsify(
    model: Model,
    mapping: str | None = None,
    alpha: float | Tensor | str | Schedule | None = None,
    *,
    layers: Layers = None,
    heads: Heads = None,
    **settings: Any,
) -> Model:
    """Let the attention of a ``transformers`` model use a sparse mapping, in place.

    Every attention module gets an :class:`AttentionCore` named ``parsimax``; weights, masks, caches and generation stay
    as they are. Layers and heads that are not chosen use softmax. The model gets a config of its own, so that others
    made from the same config object are left alone.

    Args:
        model: one whose attention goes through the attention interface: BERT, DistilBERT, GPT-2, Llama, BART, Marian,
            T5, ``EncoderDecoderModel`` and most others; or a ``PeftModel`` around it, whose adapters then record the
            mapping when they are saved.
        mapping: the name of a mapping; "entmax" if not given.
        alpha: of entmax: a number, a tensor of one per head, a schedule, or ``"learned"``: a parameter per head.
            1.5 if not given.
        layers: where, all if not given: numbers of blocks or parts of module names, such as ``[0, 1]``,
            ``"decoder"`` or ``"encoder.layer.3"``.
        heads: which heads of these layers, all if not given; or for each layer its own, ``{0: [1, 2], 5: [0]}``.
        settings: as of :class:`AttentionCore`: ``alpha_start``, ``interval``, ``length_scaling=True``, and the
            mapping's own, such as ``rate=0.8``.

    Returns:
        The model. Called again with other arguments, it replaces the mapping; without arguments, it takes what the
        model's config says, if it says anything.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from parsimax.huggingface import sparsify
        >>> config = BertConfig(
        ...     vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        ... )
        >>> model = sparsify(BertModel(config), alpha="learned")
        >>> [name for name, _ in model.named_parameters() if "alpha" in name]
        ['encoder.layer.0.attention.self.parsimax.learned_alpha.raw']
        >>> weights = model(torch.tensor([[1, 2, 3]]), output_attentions=True).attentions[0]
        >>> weights.shape
        torch.Size([1, 2, 3, 3])

    :func:`desparsify` takes the mapping out. ``save_pretrained`` keeps it, and :func:`from_pretrained` loads it.

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019.
    """
    where = "sparsify"
    if (base := base_of(model)) is not model:
        sparsify(base, mapping, alpha, layers=layers, heads=heads, **settings)
        record(model, Told.from_json(saved(base) or {}, where))
        return model
    given = settings if alpha is None else {"alpha": alpha, **settings}
    if mapping is None and layers is None and heads is None and not given and saved(model) is not None:
        return _restore(model, where)
    told = told_by_user(mapping, given, layers, heads, where)
    cores = told.cores(model, where)  # before anything is changed: it may raise
    if any(config.output_attentions for config in configs(model)):
        raise ValueError(
            f"{where}: config.output_attentions is True, which transformers allows with 'eager' attention only; set it "
            "to False, and ask for the weights in the call: model(…, output_attentions=True)"
        )
    desparsify(model)
    put(model, told, cores)
    return model


def told_by_user(mapping: str | None, options: dict[str, Any], layers: Layers, heads: Heads, where: str) -> Told:
    if mapping is not None and not isinstance(mapping, str):
        raise TypeError(f"{where}: mapping must be a name, with its settings beside it, got {mapping!r}")
    if not isinstance(options.get("length_scaling", False), bool):
        raise TypeError(f"{where}: length_scaling must be True or False, since each layer has its own")
    mapping = mapping or "entmax"
    if mapping == "entmax":
        options = {"alpha": 1.5, **options}
    return Told(mapping, choice(layers, heads, where), options)


def saved(model: nn.Module) -> dict[str, Any] | None:
    """The settings in the model's config."""
    found: dict[str, Any] | None = getattr(getattr(model, "config", None), KEY, None)
    return found


def _restore(model: Model, where: str) -> Model:
    """Give the model the mapping that its config names, unless it has it."""
    if any(isinstance(module, AttentionCore) for module in model.modules()):
        return model
    told = Told.from_json(saved(model) or {}, where)
    cores = told.cores(model, where)
    if any(core.state_dict() for core in cores.values()):
        raise ValueError(
            f"{where}: the config of this {type(model).__name__} speaks of learned parameters, which are not in the "
            "model; load it by from_pretrained(path), or say anew what you want, such as alpha='learned'"
        )
    desparsify(model)
    put(model, told, cores)
    return model


def put(model: nn.Module, told: Told, cores: dict[str, AttentionCore]) -> None:
    """Hang the cores on their modules, and switch the model's configs over, which become its own."""
    modules = {name: model.get_submodule(name) for name in cores}
    for module, core in zip(modules.values(), cores.values(), strict=True):
        at = next((tensor.device for tensor in module.parameters()), None)
        setattr(module, CORE, core.to(at).train(module.training))
    own_configs(model)
    for config, name in _names(model):
        setattr(config, KEY, told.to_json(before=private.implementation(config), implementation=name))
        setattr(config, MARK, name)
        private.set_implementation(config, name)
    if saved(model) is None:  # its own attention is computed elsewhere, but it is the config that loading reads first
        whole: Any = model.config
        setattr(whole, KEY, told.to_json(before=private.implementation(whole), implementation=None))
    watch(modules)


def _names(model: nn.Module) -> list[tuple[PreTrainedConfig, str]]:
    """The attention implementation for each config of the model; none for those that only other attention reads.

    Masks are made by the config's implementation, so a config whose attention is computed elsewhere keeps its own, and
    where both kinds read one mask it stays of the kind it was.
    """
    found, others = find(model, "sparsify")
    plain = NAME if all(hasattr(module, "is_causal") for module in found.values()) else MASKED
    ours = {id(owner) for name, module in found.items() for owner in (_owner(model, name), _config(module))}
    theirs = {id(_owner(model, name)) for name in others}
    numbers = {
        id(part.config)
        for part in model.modules()
        if isinstance(part, PreTrainedModel) and not private.takes_boolean_masks(part)
    }
    result = []
    for config in configs(model):
        if id(config) in ours or id(config) not in theirs:
            read = id(config) in theirs and private.implementation(config) == "eager"
            result.append((config, ADDED if read or id(config) in numbers else plain))
    return result


def _config(module: nn.Module) -> PreTrainedConfig | None:
    config = getattr(module, "config", None)
    return config if isinstance(config, PreTrainedConfig) else None


def _owner(model: nn.Module, name: str) -> PreTrainedConfig:
    """The config of the innermost model around a module."""
    parts = name.split(".")
    around = (model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts), -1, -1))
    owner: PreTrainedConfig = next(part for part in around if isinstance(part, PreTrainedModel)).config
    return owner


def desparsify(model: Model) -> Model:
    """Take back what :func:`sparsify` did: the model computes what it did before, bit for bit.

    Args:
        model: a sparsified model; any other is left as it is.

    Returns:
        The model, with its former attention implementation and no trace of a mapping.

    Example:
        >>> from transformers import GPT2Config, GPT2Model
        >>> from parsimax.huggingface import desparsify, sparsify
        >>> model = GPT2Model(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2))
        >>> desparsify(sparsify(model, "sparsemax")).config._attn_implementation
        'sdpa'
    """
    if base_of(model) is not model:
        record(model, None)
    for module in list(model.modules()):
        if isinstance(module.__dict__.get("_modules", {}).get(CORE), AttentionCore):
            delattr(module, CORE)
    unwatch(model)
    whole = saved(model) or {}
    for config in configs(model):
        kept = config.__dict__.pop(KEY, whole)
        if config.__dict__.get(MARK) in NAMES:
            delattr(config, MARK)
        if private.implementation(config) in NAMES:
            private.set_implementation(config, kept.get("before"))
    return model


def own_configs(model: nn.Module) -> None:
    """Copy the model's configs, so that others made from the same objects are left alone; shared ones stay shared."""
    memo: dict[int, Any] = {}
    for part in model.modules():
        if isinstance(old := part.__dict__.get("config"), PreTrainedConfig):
            part.__dict__["config"] = copy.deepcopy(old, memo)


def configs(model: nn.Module) -> list[PreTrainedConfig]:
    """Every config object that a part of the model reads, once each."""
    return configs_in([part.__dict__["config"] for part in model.modules() if "config" in part.__dict__])


def configs_in(waiting: list[Any]) -> list[PreTrainedConfig]:
    """These and the configs inside them, once each."""
    waiting = list(waiting)
    found: dict[int, PreTrainedConfig] = {}
    while waiting:
        config = waiting.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            waiting += list(config.__dict__.values())
    return list(found.values())
