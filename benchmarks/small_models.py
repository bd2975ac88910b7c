"""A small model of any config type that ``transformers`` knows, with random weights.

Sizes are recognised by how config fields are called, and what a model cannot be built or run with is put back to its
default. Where that does not do, ``SPECIAL`` has values of a single type. What is left over is reported as not built,
with the error. ``small_inputs.py`` has the inputs.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from small_inputs import inputs
from torch import nn
from transformers.models.auto import configuration_auto, modeling_auto

MOST = 80_000_000  # parameters: more takes too long
WIDE = 40_000_000  # where widths are left as they are
CLASSES = 2  # of one config that are tried, one after the other

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

# Tried before those above, where they alone do not build a model.
MORE: list[tuple[str, Any]] = [
    (r"^rotary_dim$", 4),
    (r"^qk_head_dim$", 16),  # with and without rotation
    (r"head_dim$", 8),
    (r"^(mamba_n_heads|n_mamba_heads)$", 4),
    (r"^(mamba_d_state|state_size|mamba_d_head|mamba_headdim)$", 16),
    (r"^(linear_num_key_heads|linear_num_value_heads|linear_num_heads)$", 4),
    (r"^(base_channels|stem_channels|num_channels_latent|codebook_dim|latent_channels|z_channels)$", 32),
    (r"^(num_queries|num_latents|num_query_tokens|codebook_size|num_embeddings)$", lambda old: min(old, 16)),
    (r"_vocab_size$|_vocab_size_base$", lambda old: min(old, 99)),
    (r"^(context_length|prediction_length)$", lambda old: min(old, 32)),
]
# Fewer layers and words, but widths as they are, for models whose widths depend on each other.
GENTLE = RULES[:3] + [rule for rule in RULES if "num_experts" in rule[0]]
# Fields that default to None, but that the model computes with.
MISSING: dict[str, Any] = {
    "head_dim": 8,
    "vocab_size": 99,
    "pad_token_id": 0,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
    "prediction_length": 4,
    "sliding_window": 4,
}
# Lists that speak of sizes or of layers which the rules above make fewer.
LISTS: dict[str, list[Any]] = {
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [1],
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
# Values of a single type, by the path of the field.
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "bridgetower_vision_model": {"hidden_size": 128},
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": ROPE}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE}},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"]},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "emu3": {"pad_token_id": 0},
    "gemma4_assistant": {"text_config.hidden_size_per_layer_input": 0},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "nemotron": {"num_key_value_heads": 2},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 95},
    "qwen3_omni_moe": {"talker_config.text_config.shared_expert_intermediate_size": 16},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 16},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 95},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "xmod": {"default_language": "en_XX"},
}


def types() -> list[str]:
    """Every config type, by its name in the library."""
    return sorted(configuration_auto.CONFIG_MAPPING_NAMES)


def build(kind: str, quick: bool = False) -> nn.Module:
    """The base model of this type, small, in float64 and evaluation; raises what stood in the way first."""
    classes = list(dict.fromkeys(_classes(kind)))[:CLASSES]
    if not classes:
        raise LookupError(_no_model(kind))
    problem = None
    for cls in classes:
        try:
            for config in _small_configs(kind, cls, everything=cls is classes[0] and not quick):
                model = _made(cls, config)
                try:
                    inputs(model)
                    return model
                except Exception as error:  # whatever a model raises about its inputs
                    problem = problem or error
        except Exception as error:  # about its config
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
    # Parts of models have configs of their own, and classes that no auto class makes: exported, or else inside.
    config_class = configuration_auto.CONFIG_MAPPING[kind]
    package = importlib.import_module(config_class.__module__.rsplit(".", 1)[0])
    exported = (getattr(package, name) for name in dir(package))
    own = [found for found in exported if _is_model(found) and found.config_class is config_class]
    inside = sorted(_in_package(kind), key=lambda found: not found.__name__.endswith("Model"))
    yield from (found for found in (*own, *inside) if _is_model(found))


def _is_model(found: Any) -> bool:
    model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return model and not found.__name__.endswith("PreTrainedModel")


def _in_package(kind: str) -> Iterator[type[nn.Module]]:
    """The modules of the type's package that are made from its config."""
    config_class = configuration_auto.CONFIG_MAPPING[kind]
    try:
        package = importlib.import_module(_modeling(config_class))
    except ImportError:
        return
    for found in vars(package).values():
        if isinstance(found, type) and issubclass(found, nn.Module) and found.__module__ == package.__name__:
            taken = getattr(inspect.signature(found.__init__).parameters.get("config"), "annotation", None)
            says = isinstance(taken, type) and issubclass(taken, transformers.PreTrainedConfig)
            if config_class is (taken if says else getattr(found, "config_class", None)):
                yield found


def _modeling(config_class: type) -> str:
    return config_class.__module__.replace(".configuration_", ".modeling_")


def _no_model(kind: str) -> str:
    config_class = configuration_auto.CONFIG_MAPPING[kind]
    parts = [found.__name__ for found in _in_package(kind)]
    if parts:
        part = max(parts, key=lambda name: config_class.__name__.startswith(name))
        return f"no model of its own: {part} is a plain module inside other models"
    if importlib.util.find_spec(_modeling(config_class)) is None:
        return "no model of its own: its package has no modeling file, its checkpoints are of other types"
    return f"no model of its own: no class of {_modeling(config_class).rsplit('.', 1)[-1]} is made from its config"


def _small_configs(kind: str, cls: type, everything: bool = True) -> Iterator[Any]:
    """With all rules, without grouped heads, with more rules, with all but one, or with as many as can be built."""
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]
    base = _plain(config_class())
    special = SPECIAL.get(kind, {})
    small = [RULES, _ungrouped(RULES)]
    more = [MORE + RULES, _ungrouped(MORE + RULES)]
    without = [[*RULES[:i], *RULES[i + 1 :]] for i in reversed(range(len(RULES))) if RULES[i][0] != KEY_VALUE_HEADS]
    ways = [(_shrunk, rules) for rules in ([] if special else small)] + [
        (way, rules) for way in (_filled, _lean) for rules in more
    ]
    ways += [(_shrunk, GENTLE), (_lean, GENTLE), (_shrunk, [])]
    if everything:
        ways += [(_shrunk, rules) for rules in without]
    problems = []
    for way, rules in ways:
        most = WIDE if rules in (GENTLE, []) else MOST
        config, problem = _tried(cls, lambda way=way, rules=rules: way(config_class, base, rules, special), most)
        problems.append(problem)
        if problem is None:
            yield config
    if None in problems:
        return
    some: list[tuple[str, Any]] = []
    for rule in RULES if everything else ():
        if _tried(cls, lambda rule=rule: _shrunk(config_class, base, [*some, rule], special))[1] is None:
            some.append(rule)
    if not some:
        raise problems[0] or LookupError("no small config was found")
    yield _shrunk(config_class, base, some, special)


def _tried(cls: Any, make: Callable[[], Any], most: int = MOST) -> tuple[Any, Exception | None]:
    """A config, and what the model says to it without weights."""
    try:
        config = make()
        with torch.device("meta"):
            model = cls._from_config(copy.deepcopy(config))
        count = sum(parameter.numel() for parameter in model.parameters())
        return config, None if count <= most else ValueError(f"{count:,} parameters: too many to try")
    except Exception as error:  # whatever a model raises about its config
        return None, error


def _ungrouped(rules: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, 4 if name == KEY_VALUE_HEADS else new) for name, new in rules]


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


def _shrunk(config_class: Any, base: dict[str, Any], rules: list[tuple[str, Any]], special: dict[str, Any]) -> Any:
    return config_class(**_set(_apply(base, rules), special))


def _filled(config_class: Any, base: dict[str, Any], rules: list[tuple[str, Any]], special: dict[str, Any]) -> Any:
    """With a value for what is None, and lists to fit."""
    return config_class(**_set(_fill(_apply(base, rules)), special))


def _lean(config_class: Any, base: dict[str, Any], rules: list[tuple[str, Any]], special: dict[str, Any]) -> Any:
    """Only what differs from the defaults, so that the config derives the rest anew."""
    return config_class(**_set(_difference(base, _fill(_apply(base, rules))), special))


def _fill(fields: dict[str, Any]) -> dict[str, Any]:
    filled = {}
    for name, value in fields.items():
        if name == "rope_parameters" and "rope_theta" in (value or {}):
            value = {**value, "mrope_section": _sections(fields, value.get("partial_rotary_factor") or 1)}
        elif isinstance(value, dict):
            value = _fill(value)
        elif value is None:
            value = MISSING.get(name)
        filled[name] = LISTS.get(name, value)
    return filled


def _sections(fields: dict[str, Any], share: float) -> list[int]:
    """Half of a head in three parts, which rotary embeddings in three dimensions ask for."""
    heads = fields.get("num_attention_heads") or fields.get("num_heads") or 4
    half = int((fields.get("head_dim") or fields.get("hidden_size", 32) // heads) * share) // 2
    return [half // 3, half // 3, half - 2 * (half // 3)]


def _difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _difference(old[name], value) if isinstance(value, dict) and isinstance(old.get(name), dict) else value
        for name, value in new.items()
        if name not in old
        or (value != old[name] and not isinstance(value, list))
        or name == "model_type"
        or name in LISTS
    }


def _set(fields: dict[str, Any], special: dict[str, Any]) -> dict[str, Any]:
    for path, value in special.items():
        *parents, name = path.split(".")
        inner = fields
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return fields


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
