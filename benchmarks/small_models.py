"""A small model of any config type that ``transformers`` knows, with random weights, and inputs that it takes.

Sizes are recognised by how config fields are called, and what a model cannot be built or run with is put back to its
default; inputs are recognised by what ``forward`` calls them. Where that does not do, ``SPECIAL`` has values of a
single type. What is left over is reported as not built, with the error.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import configuration_auto, modeling_auto

MOST = 80_000_000  # parameters: more takes too long
LENGTH = 9
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


def inputs(model: nn.Module) -> list[dict[str, torch.Tensor]]:
    """Every kind of input below that the model takes; raises what it said to the first if it takes none."""
    taken: list[dict[str, torch.Tensor]] = []
    errors = []
    for candidates in (_candidates, _parts):
        for given in () if taken else candidates(model):
            if taken and candidates is _parts:
                break  # one of them is enough
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
    several = enumerate(result) if isinstance(result, tuple | list) else [("output", result)]
    found = {str(name): value for name, value in (result.items() if hasattr(result, "items") else several)}
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


def _parts(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs of the models that take none of the above, from ``TABLE``, with all that ``forward`` cannot do without."""
    parameters = inspect.signature(model.forward).parameters.values()
    known = {each.name for each in parameters}
    needed = {
        each.name for each in parameters if each.default is each.empty and each.kind == each.POSITIONAL_OR_KEYWORD
    }
    sizes = Sizes(model.config)
    for shapes in TABLE:
        if not shapes.keys() <= known:
            continue
        names = [*shapes, *sorted(needed - shapes.keys())]
        if all(name in shapes or name in ALSO for name in names):
            draw = torch.Generator().manual_seed(2)
            yield {name: _drawn(shapes.get(name, ALSO.get(name)), sizes, draw) for name in names}


def _drawn(made: Any, sizes: Sizes, draw: torch.Generator) -> torch.Tensor:
    """A tensor as it stands, ones of a shape that is a list, numbers drawn for one that is a tuple."""
    made = made(sizes) if callable(made) else made
    if isinstance(made, tuple):
        return torch.randn(*made, generator=draw, dtype=torch.float64)
    return made if isinstance(made, torch.Tensor) else torch.ones(*made, dtype=torch.long)


class Sizes:
    """What a config says about the shapes of inputs, or its part for images or sounds."""

    def __init__(self, config: Any) -> None:
        parts = [getattr(config, name, None) for name in ("vision_config", "audio_config", "encoder_config")]
        self.configs = [config, *filter(None, parts)]

    def of(self, *names: str, default: int) -> int:
        for config, name in itertools.product(self.configs, names):
            value = getattr(config, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and value > 0:
                return value
        return default

    @property
    def width(self) -> int:
        return self.of("hidden_size", "d_model", "embed_dim", "hidden_dim", default=32)

    @property
    def channels(self) -> int:
        return self.of("num_channels", "in_channels", "in_chans", "input_channels", default=3)

    @property
    def patch(self) -> int:
        return self.of("patch_size", default=8)

    @property
    def flat(self) -> int:
        return self.channels * self.of("temporal_patch_size", default=1) * self.patch**2

    @property
    def image(self) -> int:
        return min(self.of("image_size", "input_size", "img_size", default=64), 512)

    @property
    def mels(self) -> int:
        return self.of("num_mel_bins", "input_feat_size", "input_dim", "feature_size", "input_size", default=80)


GRID = torch.tensor([[1, 4, 4], [1, 4, 4]])
IDS = torch.randint(4, 80, (2, LENGTH), generator=torch.Generator().manual_seed(1))
# Each line is one kind of inputs, of the names that forward gives them: a tuple is the shape of random numbers, a list
# that of ones, both of the sizes of the config.
TABLE: list[dict[str, Any]] = [
    {"hidden_states": lambda s: (32, s.flat), "grid_thw": GRID},
    {"pixel_values": lambda s: (32, s.flat), "grid_thw": GRID},
    {"pixel_values": lambda s: (32, s.channels, s.patch, s.patch), "grid_thw": GRID},
    {"pixel_values": lambda s: (1, 32, s.channels, s.patch, s.patch), "grid_thw": GRID},
    {"pixel_values": lambda s: (1, s.channels, s.patch, 32 * s.patch), "target_sizes": GRID[:, 1:]},
    {"pixel_values": lambda s: (2, 16, s.flat), "pixel_attention_mask": [2, 16]},
    {
        "pixel_values": lambda s: (2, 16, s.flat),
        "pixel_position_ids": torch.cartesian_prod(*[torch.arange(4)] * 2)[None].repeat(2, 1, 1),
    },
    {
        "flattened_patches": lambda s: torch.rand(2, 9, 2 + s.of("patch_embed_hidden_size", default=s.flat)).double(),
        "decoder_input_ids": IDS,
    },
    {"flattened_patches": lambda s: torch.rand(2, 9, 2 + s.of("patch_embed_hidden_size", default=s.flat)).double()},
    {"pixel_values": lambda s: (2, s.channels, s.image, s.image), "input_ids": IDS, "attention_mask": [2, LENGTH]},
    {"pixel_values": lambda s: (2, s.channels, s.image, s.image), "decoder_input_ids": IDS},
    {"pixel_values": lambda s: (2, s.channels, s.image, s.image)},
    {"pixel_values": lambda s: (2, s.channels, 64, 64)},
    {"pixel_values": lambda s: (2, s.channels, 256, 256)},
    {"pixel_values": lambda s: (2, 2, s.channels, 64, 64)},
    {"pixel_values": lambda s: (2, s.of("num_frames", default=4), s.channels, s.image, s.image)},
    {"pixel_values": lambda s: (2, 16, s.flat)},
    {
        "pixel_values_videos": lambda s: (
            2,
            s.of("num_frames", "frames_per_clip", default=4),
            s.channels,
            s.image,
            s.image,
        )
    },
    {"input_features": lambda s: (2, 64, s.mels)},
    {"input_features": lambda s: (2, s.mels, 64)},
    {"input_features": lambda s: (2, 64, s.mels), "attention_mask": [2, 64]},
    {"input_features": lambda s: (2, 64, s.mels), "input_features_mask": [2, 64]},
    {"input_features": lambda s: (2, s.mels, 64), "input_features_mask": [2, 64]},
    {"input_features": lambda s: (s.mels, 128), "feature_lens": torch.tensor([64, 64])},
    {"input_features": lambda s: (2, s.mels, 64), "decoder_input_ids": IDS},
    {"audio_mel": lambda s: (2, 64, s.mels), "audio_mel_mask": torch.zeros(2, 64, dtype=torch.bool)},
    {"input_values": lambda s: (2, 1, 3840)},
    {"input_values": lambda s: (2, s.of("audio_channels", default=1), 3840)},
    {"input_values": lambda s: (2, 128, 128)},
    {"input_values": lambda s: (2, s.of("max_length", default=64), s.mels)},
    {"input_values": lambda s: (2, s.mels, 64)},
    {"latents": lambda s: (2, s.width, 16)},
    {"latents": lambda s: (2, 16, s.width)},
    {"spectrogram": lambda s: (2, 16, s.of("model_in_dim", default=80))},
    {
        "hidden_states": lambda s: (2, 16, s.of("input_dim", "input_size", default=80)),
        "mask": torch.ones(2, 16, dtype=torch.bool),
    },
    {"hidden_states": lambda s: (2, 16, s.of("input_dim", default=32))},
    {"hidden_states": lambda s: (2, 9, s.width), "attention_mask": [2, 9]},
    {"hidden_states": lambda s: (2, 9, s.width)},
    {
        "query_embeds": lambda s: (2, 9, s.width),
        "encoder_hidden_states": lambda s: (
            2,
            9,
            s.of("encoder_hidden_size", "cross_attention_hidden_size", default=32),
        ),
    },
    {
        "input_ids": IDS,
        "attention_mask": [2, LENGTH],
        "encoder_hidden_states": lambda s: (
            2,
            9,
            s.of("encoder_hidden_size", "cross_attention_hidden_size", "hidden_size", default=32),
        ),
    },
    {"input_ids": IDS.repeat(4, 1) % 16, "attention_mask": [2, LENGTH]},
    {"input_ids": IDS, "attention_mask": [2, LENGTH]},
    {"input_ids": IDS},
    {"input_ids": IDS[:, :1].repeat(1, 64)},
    {
        "input_ids": IDS,
        "attention_mask": [2, LENGTH],
        "pixel_values": lambda s: (2, 1, s.channels, s.image, s.image),
        "image_attention_mask": [2, LENGTH, 1],
    },
    {
        "input_ids": IDS,
        "attention_mask": [2, LENGTH],
        "visual_feats": lambda s: (2, 4, s.of("visual_feat_dim", default=2048)),
        "visual_pos": (2, 4, 4),
    },
    {"input_ids": IDS, "attention_mask": [2, LENGTH], "input_features": lambda s: (2, 1, 128, s.mels)},
    {"input_ids": IDS, "input_features": lambda s: (2, s.of("feature_size", default=80), 64)},
    {
        "input_ids": IDS,
        "attention_mask": [2, LENGTH],
        "pixel_values": lambda s: (2, 16, s.flat),
        "pixel_attention_mask": [2, 16],
        "spatial_shapes": GRID[:, 1:],
    },
    {"input_ids": IDS, "pixel_values": lambda s: (2, s.of("num_frames", default=4), s.channels, s.image, s.image)},
    {
        "input_ids": IDS,
        "pixel_values_videos": lambda s: (2, s.of("num_frames", default=4), s.channels, s.image, s.image),
    },
    {"pixel_values": lambda s: (2, s.channels, s.image, s.image), "noise": lambda s: (2, (s.image // s.patch) ** 2)},
    {
        "pixel_values": lambda s: (2, 1, s.of("max_num_tiles", default=4), s.channels, s.image, s.image),
        "aspect_ratio_ids": [2, 1],
        "aspect_ratio_mask": lambda s: [2, 1, s.of("max_num_tiles", default=4)],
    },
    {
        "past_values": lambda s: (2, s.of("context_length", default=4) + 7),
        "past_time_features": lambda s: (
            2,
            s.of("context_length", default=4) + 7,
            s.of("num_time_features", default=0),
        ),
        "past_observed_mask": lambda s: [2, s.of("context_length", default=4) + 7],
        "future_values": lambda s: (2, s.of("prediction_length", default=4)),
        "future_time_features": lambda s: (
            2,
            s.of("prediction_length", default=4),
            s.of("num_time_features", default=0),
        ),
    },
    {"input_ids": IDS, "audio_input_ids": lambda s: IDS},
    {"audio_input_ids": lambda s: IDS[..., None].repeat(1, 1, s.mels) % 16},
    {"input_ids": IDS[..., None].repeat(1, 1, 4) % 16},
    {"inputs_embeds": lambda s: (2, 9, s.width), "attention_mask": [2, 9]},
    {"inputs_embeds": lambda s: (2, 9, s.width)},
    {"context": lambda s: (2, 9, s.width), "attention_mask": [2, 9]},
    {
        "past_values": lambda s: (2, s.of("context_length", default=64)),
        "past_values_padding": lambda s: torch.zeros(2, s.of("context_length", default=64)),
    },
    {"past_values": lambda s: (2, s.of("context_length", default=64), s.of("num_input_channels", default=1))},
]
# What some of them cannot do without, besides.
ALSO: dict[str, Any] = {
    "grid_thw": GRID,
    "merge_sizes": torch.tensor([1, 1]),
    "spatial_shapes": GRID[:, 1:],
    "target_sizes": GRID[:, 1:],
    "input_ids": IDS,
    "qformer_input_ids": IDS,
    "attention_mask": [2, LENGTH],
    "encoder_hidden_states": lambda s: (2, 9, s.width),
    "task_inputs": lambda s: IDS[:, :1].repeat(1, s.of("task_seq_len", default=77)),
    "prompt_pixel_values": lambda s: (2, s.channels, s.image, s.image),
    "prompt_masks": lambda s: (2, s.channels, s.image, s.image),
    "codebook_idx": torch.tensor(1),
    "freq": torch.zeros(2, 1, dtype=torch.long),
}


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
