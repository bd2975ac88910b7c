"""A small model of any config type that ``transformers`` knows, with random weights, and inputs that it takes.

Nothing here knows a single model: sizes are recognised by how config fields are called, and what a model cannot be
built or run with is put back to its default. What is left over is reported as not built, with the error.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import configuration_auto, modeling_auto

MOST = 30_000_000  # parameters: more takes too long
LENGTH = 9

KEY_VALUE_HEADS = r"key_value_heads$|^num_kv_heads$|^n_kv_heads$|^multi_query_group_num$"
# In this order: a later rule may need an earlier one. Each is (the field's name, its value given the old one).
RULES: list[tuple[str, Any]] = [
    (r"(^|_)n?um_hidden_layers$|^num_layers$|^n_layers?$|^(en|de)coder_layers$|^num_(en|de)coder_layers$|^depth$", 2),
    (r"_layers$", lambda old: min(old, 2)),
    (r"^(vocab_size|encoder_vocab_size|decoder_vocab_size|vocab_size_per_layer_input)$", 99),
    (r"(^|_)(hidden_size|d_model|n_embd|embed_dim|hidden_dim|embedding_size|dim)$", 32),
    (r"attention_heads$|^n_heads?$|^num_heads$|_n_heads?$", 4),
    (KEY_VALUE_HEADS, lambda old: min(old, 2)),
    (r"^(head_dim|d_kv|attention_head_dim|kv_channels|v_head_dim|qk_nope_head_dim|d_head|global_head_dim)$", 8),
    (r"^(qk_rope_head_dim)$", 8),
    (r"^(kv_lora_rank|q_lora_rank|o_lora_rank)$", 16),
    (r"(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|feedforward_dim|mlp_dim|ff_dim)$", 48),
    (r"^(image_size|input_size|img_size)$", 32),
    (r"^patch_size$", 8),
    (r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts)$", 4),
    (r"^(num_experts_per_tok|moe_topk|moe_k|top_k_experts)$", lambda old: min(old, 2)),
    (r"^(n_group|topk_group)$", 1),
    (r"(^|_)projection_dim$|^projection_size$|^proj_dim$", 32),
    (r"max_position_embeddings$|^n_positions$|^max_(source|target)_positions$", 128),
    (r"^sliding_window$|^attention_window_size$|^local_attention$", 4),
]


def types() -> list[str]:
    """Every config type, by its name in the library."""
    return sorted(configuration_auto.CONFIG_MAPPING_NAMES)


def build(kind: str) -> nn.Module:
    """The base model of this type, small, in float64 and evaluation; raises what stood in the way last."""
    cls = next(_classes(kind), None)
    if cls is None:
        raise LookupError("no model has this config for its own")
    problem = None
    for config in _small_configs(kind, cls):
        model = _made(cls, config)
        try:
            inputs(model)
            return model
        except Exception as error:  # whatever a model raises about its inputs
            problem = problem or error
    raise problem or LookupError("no small config was found")


def _made(cls: Any, config: Any) -> nn.Module:
    torch.manual_seed(0)
    # experts one by one: the grouped product of torch knows no float64
    model: nn.Module = cls._from_config(config, experts_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # attention that starts flat shows nothing
            if parameter.dim() > 1 and parameter.requires_grad and parameter.is_floating_point():
                parameter += 0.1 * torch.randn_like(parameter)
            if name.endswith("sinks"):
                parameter += torch.randn_like(parameter)
    return model.double().eval()


def _classes(kind: str) -> Iterator[Any]:
    mappings = [
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",  # whose causal model would be the decoder alone
        "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "MODEL_MAPPING_NAMES",
        "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
        *sorted(name for name in dir(modeling_auto) if re.match(r"MODEL_.*_MAPPING_NAMES", name)),
    ]
    for mapping in mappings:
        found = getattr(modeling_auto, mapping, {}).get(kind)
        for name in [found] if isinstance(found, str) else found or ():
            if hasattr(transformers, name):
                yield getattr(transformers, name)
    # Parts of models have configs of their own, and classes that no auto class makes.
    config_class = configuration_auto.CONFIG_MAPPING[kind]
    module = importlib.import_module(config_class.__module__.rsplit(".", 1)[0])
    for name in dir(module):
        found = getattr(module, name)
        model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
        if model and found.config_class is config_class and not name.endswith("PreTrainedModel"):
            yield found


def _small_configs(kind: str, cls: type) -> Iterator[Any]:
    """With all rules, without grouped heads, with all rules but one, or with as many as the model can be built with."""
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]
    base = _plain(config_class())
    sets = [RULES, [(name, 4 if name == KEY_VALUE_HEADS else new) for name, new in RULES]]
    sets += [[*RULES[:i], *RULES[i + 1 :]] for i in reversed(range(len(RULES))) if RULES[i][0] != KEY_VALUE_HEADS]
    problems = []
    for rules in sets:
        problems.append(_problem(cls, config_class, base, rules))
        if problems[-1] is None:
            yield _shrunk(config_class, base, rules)
    if None in problems:
        return
    some: list[tuple[str, Any]] = []
    for rule in RULES:
        if _problem(cls, config_class, base, [*some, rule]) is None:
            some.append(rule)
    if not some:
        raise problems[0] or LookupError("no small config was found")
    yield _shrunk(config_class, base, some)


def _problem(cls: type, config_class: type, base: dict[str, Any], rules: list[tuple[str, Any]]) -> Exception | None:
    try:
        with torch.device("meta"):
            model = cls._from_config(_shrunk(config_class, base, rules))  # type: ignore[attr-defined]
        count = sum(parameter.numel() for parameter in model.parameters())
        return None if count <= MOST else ValueError(f"{count:,} parameters: too many to try")
    except Exception as error:  # whatever a model raises about its config
        return error


def _plain(config: Any) -> dict[str, Any]:
    """The fields of a config that can be given to its constructor, with configs inside as such dictionaries."""
    fields = {}
    for name, value in config.to_dict().items():
        inner = config.__dict__.get(name)
        if isinstance(inner, transformers.PreTrainedConfig):
            value = _plain(inner)
        if name not in (
            "transformers_version",
            "dtype",
            "architectures",
            "_name_or_path",
            "id2label",
            "label2id",
            "per_layer_config",
        ):
            fields[name] = value
    return fields


def _shrunk(config_class: Any, base: dict[str, Any], rules: list[tuple[str, Any]]) -> Any:
    return config_class(**_apply(base, rules))


def _apply(fields: dict[str, Any], rules: list[tuple[str, Any]]) -> dict[str, Any]:
    small = {
        name: _apply(value, rules) if isinstance(value, dict) and all(isinstance(key, str) for key in value) else value
        for name, value in fields.items()
    }
    for name, value in small.items():
        number = isinstance(value, int) and not isinstance(value, bool)
        for pattern, new in rules:
            if number and value > 0 and re.search(pattern, name):
                small[name] = new(value) if callable(new) else min(new, value) if "heads" in name else new
                break
    layers = next((small[name] for name in ("num_hidden_layers", "num_layers") if isinstance(small.get(name), int)), 0)
    for name, value in small.items():
        if isinstance(value, list) and layers and len(value) == fields.get("num_hidden_layers"):
            small[name] = _kinds(value, layers)
        if name.endswith("token_id") and isinstance(value, int) and value >= 99:
            small[name] = 90 + sum(map(ord, name)) % 9
    return small


def _kinds(values: list[Any], length: int) -> list[Any]:
    """One entry a layer, of as many kinds as there is room for."""
    kinds = list(dict.fromkeys(map(repr, values)))
    first = [next(value for value in values if repr(value) == kind) for kind in kinds]
    return (first * length)[:length] if len(first) > 1 else values[:length]


def inputs(model: nn.Module) -> list[dict[str, torch.Tensor]]:
    """Every kind of input below that the model takes; raises what it said to the first if it takes none."""
    taken, errors = [], []
    for given in _candidates(model):
        try:
            with torch.no_grad():
                if outputs(model, given):
                    taken.append(given)
        except Exception as error:  # whatever a model raises about its inputs
            errors.append(error)
    if not taken:
        raise errors[0] if errors else LookupError("takes no kind of input that this script knows")
    return taken


def outputs(model: nn.Module, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the model gives, by name; where it has a token of its own, only those that are no padding."""
    result = model(**given)
    found = dict(result.items()) if hasattr(result, "items") else {"output": result}
    mask = given.get("attention_mask")
    kept = {}
    for name, value in found.items():
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        of_tokens = "decoder_input_ids" not in given or "encoder" in name
        if mask is not None and of_tokens and value.shape[:2] == mask.shape:
            value = value[mask.bool()]
        kept[name] = value
    return kept


def _candidates(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    known = set(inspect.signature(model.forward).parameters)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 80, (2, LENGTH), generator=draw)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    text = {"input_ids": ids, "attention_mask": mask}
    other = {"attention_mask": mask.flip(-1)}  # padding on the right: no query of a decoder has nothing to look at
    more = {"decoder_input_ids": ids[:, :5].clone()} if "decoder_input_ids" in known else {}
    if "bbox" in known:
        text["bbox"] = torch.zeros(2, LENGTH, 4, dtype=torch.long)
    sizes = _sizes(model)
    images = {
        "pixel_values": torch.randn(2, sizes["channels"], sizes["image"], sizes["image"], generator=draw).double()
    }
    sounds = [
        {"input_features": torch.randn(2, sizes["mels"], frames, generator=draw).double()}
        for frames in (100, 256, 3000)
    ]
    sounds += [{"input_features": torch.randn(2, 40, sizes["mels"], generator=draw).double()}]
    waves = [{"input_values": torch.randn(2, n, generator=draw).double()} for n in (1200, 4000)]
    if "input_ids" in known:
        for side in ({}, other):
            yield {**text, **side, **more}
            if more:
                yield {**text, **side}
            if "pixel_values" in known:
                yield {**text, **side, **images}
    if "pixel_values" in known:
        yield images
        yield {"pixel_values": images["pixel_values"][:, None].expand(-1, 4, -1, -1, -1).contiguous()}
    for sound in (*sounds, *waves):
        if known & sound.keys():
            yield {**sound, **more}
            yield sound
    if "past_values" in known:
        yield {"past_values": torch.randn(2, 64, generator=draw).double()}
        yield {"past_values": torch.randn(2, 512, 1, generator=draw).double()}


def _sizes(model: nn.Module) -> dict[str, int]:
    config: Any = model.config
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 32)
    size = size[0] if isinstance(size, list | tuple) else size
    return {
        "channels": getattr(vision, "num_channels", 3) or 3,
        "image": size if isinstance(size, int) and size <= 512 else 32,
        "mels": getattr(config, "num_mel_bins", 80) or 80,
    }
