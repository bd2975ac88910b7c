"""Put another output head into a model, which is saved and loaded with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from ..heads import Head, make_head
from .loss import connect
from .sparsify import own_configs

KEY = "parsimax_head"  # the attribute of the config
# What a config calls a function of the logits that the model applies behind its output layer
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
ADDED = "final_logits_bias"  # what BART, Marian and their kin call a buffer that they add to the logits
Model = TypeVar("Model", bound=nn.Module)


def replace_head(model: Model, kind: str = "plif", **settings: Any) -> Model:
    """Give a ``transformers`` model another output head, in place.

    What the model calls logits are then the head's log-probabilities, whose softmax they are themselves: its loss,
    generation and processors work as before. The weight, a tie to the embedding and a bias stay those of the layer
    before. A head that starts as the identity, "plif" or "linear", leaves what the model says as it is until it is
    trained.

    Args:
        model: one with a linear layer as its output: a causal, a masked or a sequence-to-sequence language model. One
            that caps or scales its logits afterwards (Gemma 2, Cohere, Granite) is refused.
        kind: as of :func:`make_head`: "linear", "sigsoftmax", "monotonic", "plif", "mixture" or "mixture-plif".
        settings: of that head, numbers and names only: ``knots=100_000``, ``components=15``, ``mapping="entmax15"``;
            ``bias=True`` adds a bias where there was none. What BART and Marian add to their logits becomes one.

    Returns:
        The model. ``save_pretrained`` keeps the head; where ``parsimax`` is imported, ``from_pretrained`` of
        ``transformers`` brings it back, and a model made from this one's config has an untrained one. The loss without
        all logits is ``model.get_output_embeddings().loss(hidden, target)``.

    Example:
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from parsimax.huggingface import replace_head
        >>> config = GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
        >>> model = replace_head(GPT2LMHeadModel(config), "plif", knots=1000)
        >>> model.lm_head
        PLIFHead(
          features=8, classes=9, bias=False
          (mapping): Softmax(dim=-1)
          (function): PLIF(knots=1000, bound=20)
        )
        >>> model.lm_head.weight is model.transformer.wte.weight
        True
        >>> model(torch.tensor([[1, 2, 3]])).logits.exp().sum(-1).round(decimals=4)
        tensor([[1., 1., 1.]], grad_fn=<RoundBackward1>)

    Sparse mappings give logits of -inf, whose cross-entropy is infinite: with them ``model(…, labels=…).loss`` is the
    head's own, which ``Trainer`` then trains by. Models that write their cross-entropy out (BERT, BART, T5) refuse
    labels.
    """
    where = "replace_head"
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"{where}: the model must be a transformers PreTrainedModel, got {type(model).__name__}")
    for name, value in settings.items():
        if not isinstance(value, (bool, int, float, str)):
            raise TypeError(f"{where}: {name} must be a number or a name, which a config can hold, got {value!r}")
    if settings.get("bias") is False:
        raise ValueError(f"{where}: bias=False would take out what the layer before may have; leave it out")
    for name in (*CAPS, *SCALES):
        value = getattr(model.config.get_text_config(), name, None)
        if value is not None and not (name in SCALES and value == 1):
            raise ValueError(
                f"{where}: {type(model).__name__} changes its logits behind the output layer ({name}={value}), so they "
                "would not be log-probabilities; take a model without that"
            )
    added = next((buffer for name, buffer in model.named_buffers() if name.split(".")[-1] == ADDED), None)
    before = getattr(model.config, KEY, None) or {}
    if before.get("bias") or (added is not None and added.any()):
        settings["bias"] = True
    head = put_head(model, {"kind": kind, **settings}, where)
    if added is not None and head.bias is not None:
        with torch.no_grad():
            head.bias.add_(added.view(-1))
            added.zero_()
    own_configs(model)
    setattr(model.config, KEY, {"kind": kind, **settings})
    return model


def resized(plain: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """As ``plain``, the method of ``transformers``, which a linear layer with the weight of the head goes through."""
    head = model.get_output_embeddings()
    if not isinstance(head, Head):
        return plain(model, *args, **kwargs)
    linear: Any = nn.Linear(head.weight.shape[1], head.classes, bias=False, device="meta")
    linear.weight, linear.bias = head.weight, head.bias
    model.set_output_embeddings(linear)
    try:
        return plain(model, *args, **kwargs)
    finally:
        linear = model.get_output_embeddings()
        head.weight, head.bias = linear.weight, linear.bias
        model.set_output_embeddings(head)


def put_saved_head(model: Any) -> None:
    """Give a model that was made from a config the head that it names; a part without an output layer has none."""
    if model.get_output_embeddings() is not None:
        put_head(model, getattr(model.config, KEY), f"config.{KEY}")


def put_head(model: Any, saved: dict[str, Any], where: str) -> Head:
    """Replace the output layer."""
    old: Any = model.get_output_embeddings()
    if not isinstance(old, nn.Linear | Head):
        raise ValueError(
            f"{where}: the output of {type(model).__name__} must be a linear layer, found "
            f"{'none' if old is None else type(old).__name__}"
        )
    classes, features = old.weight.shape
    settings, weight = dict(saved), cast(nn.Parameter, old.weight)
    bias = settings.pop("bias", False) or old.bias is not None
    head = make_head(settings.pop("kind"), features, classes, bias=bias, tied=weight, **settings)
    for module in head.modules():  # its own parameters are where and what the weight is
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter is not weight:
                moved = parameter.detach().to(weight.device, weight.dtype)
                setattr(module, name, nn.Parameter(moved, parameter.requires_grad))
    if old.bias is not None:
        head.bias = old.bias
    model.set_output_embeddings(head.train(old.training))
    connect(model, head)
    return head
