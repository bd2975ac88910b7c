"""Inputs for any model of ``transformers``, recognised by what its ``forward`` calls them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

LENGTH = 9


def inputs(model: nn.Module) -> list[dict[str, torch.Tensor]]:
    """Every kind of input below that the model takes; raises what it said to the first if it takes none."""
    errors: list[Exception] = []

    def takes(given: dict[str, torch.Tensor]) -> bool:
        try:
            with torch.no_grad():
                return bool(outputs(model, given))
        except Exception as error:  # whatever a model raises about its inputs
            errors.append(error)
            return False

    taken = [given for given in _candidates(model) if takes(given)]
    taken = taken or list(itertools.islice(filter(takes, _parts(model)), 1))  # one of these is enough
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
    own = Sizes(model.config)
    seen = Sizes(getattr(model.config, "vision_config", None) or model.config)
    size, mels = seen.of("image_size", default=32), own.of("num_mel_bins", default=80)
    size = size if size <= 512 else 32
    images = {"pixel_values": torch.randn(2, seen.of("num_channels", default=3), size, size, generator=draw).double()}
    sounds = [{"input_features": torch.randn(2, mels, frames, generator=draw).double()} for frames in (100, 256, 3000)]
    sounds += [{"input_features": torch.randn(2, 40, mels, generator=draw).double()}]
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
