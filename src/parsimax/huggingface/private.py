"""The names of ``transformers`` that are not its public face, each once and with the reason.

Nothing else in this folder touches such a name. ``tests/huggingface/test_huggingface_private.py`` calls every function
below, so that a release of ``transformers`` that moves one of them fails there by its name.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.utils.generic import TransformersKwargs
from transformers.utils.output_capturing import _active_collector


def outer_keywords() -> set[str]:
    """What every model may hand down to its attention. The public docs name the type, not its fields."""
    return set(TransformersKwargs.__annotations__)


def collects_attentions() -> bool:
    """Whether the running forward pass collects ``attentions``: not every model hands the wish on."""
    collected: Any = _active_collector.get() or ()
    return any("attentions" in name for name in collected)


def boolean_mask(**kwargs: Any) -> Tensor | None:
    """(batch, 1, queries, keys), True = may attend; None where nothing is hidden, or only what ``is_causal`` hides."""
    return sdpa_mask(**kwargs)


def boolean_mask_written_out(**kwargs: Any) -> Tensor | None:
    """The same, with the causal mask always written out."""
    return sdpa_mask(**{**kwargs, "allow_is_causal_skip": False})


def added_mask(**kwargs: Any) -> Tensor | None:
    """What is added to the scores: the lowest finite number where a query may not attend."""
    return eager_mask(**kwargs)


def implementation(config: PreTrainedConfig) -> str | None:
    """The attention implementation in use. The public way to read it is the same attribute, in the docs' examples."""
    name: str | None = config._attn_implementation
    return name


def set_implementation(config: PreTrainedConfig, name: str | None) -> None:
    """Of this config only: a plain assignment goes down to the configs inside, which have their own to go back to."""
    config._attn_implementation = {"": name}


def without_implementation(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy that asks for no attention implementation, and neither do the configs inside."""
    config = copy.deepcopy(config)
    config._attn_implementation = None
    return config


def takes_boolean_masks(part: PreTrainedModel) -> bool:
    """False for models that add their mask to something, or read it themselves, before attention gets it."""
    return bool(part._supports_sdpa)


def keep_float32(model: PreTrainedModel, name: str, keep: bool) -> None:
    """Whether loading leaves modules of this name in float32 when the rest is in half precision."""
    names: set[str] = set(model._keep_in_fp32_modules_strict or ())
    model._keep_in_fp32_modules_strict = names | {name} if keep else names - {name}
