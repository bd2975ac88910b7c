"""Tiny random ``transformers`` models, and explicit float64 attention for them to be compared with."""

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import parsimax
from parsimax._attention.core import AttentionCore

SMALL = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CAUSAL = dict(**SMALL, num_key_value_heads=2, head_dim=8, max_position_embeddings=64, pad_token_id=0, eos_token_id=1)
PAIR = {
    "vocab_size": 40,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 3,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": 40,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
GPT2 = {
    "vocab_size": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
DISTIL = {"vocab_size": 40, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}

ENCODERS = {"BertModel": SMALL, "DistilBertModel": DISTIL}
DECODERS = {"GPT2LMHeadModel": GPT2, "LlamaForCausalLM": CAUSAL}
PAIRS = {
    "BartForConditionalGeneration": PAIR,
    "MarianMTModel": PAIR,
    "T5ForConditionalGeneration": dict(**T5, decoder_start_token_id=0),
    "EncoderDecoderModel": {},
}
WINDOWS = {  # masks that differ between layers, and bent scores
    "MistralForCausalLM": dict(**CAUSAL, sliding_window=4),
    "Gemma2ForCausalLM": dict(**CAUSAL, sliding_window=4, attn_logit_softcapping=2.0),
    "Gemma3ForCausalLM": dict(
        **CAUSAL, sliding_window=4, layer_types=["sliding_attention", "full_attention"], model_type="gemma3_text"
    ),
}
NOISE = {"MarianMTModel": 0.4, "EncoderDecoderModel": 0.3}  # so that attention is neither flat nor one-hot
MODELS = {**ENCODERS, **DECODERS, **PAIRS}


def make_config(name: str, **more):
    if name == "EncoderDecoderModel":
        parts = [transformers.BertConfig(**SMALL), transformers.BertConfig(**SMALL)]
        ids = {"decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 1}
        return transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*parts, **ids, **more)
    options = {**MODELS, **WINDOWS}[name]
    special = {"Gemma3ForCausalLM": transformers.Gemma3TextConfig}
    config_class = special.get(name) or getattr(transformers, name).config_class
    return config_class(**{**options, **more})


def make(name: str, implementation: str | None = None, seed: int = 0, **more):
    """The model in evaluation, with weights larger than those it starts with."""
    torch.manual_seed(seed)
    model = getattr(transformers, name)._from_config(make_config(name, **more), attn_implementation=implementation)
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):  # not the sinusoids
        parameter.data += NOISE.get(name, 0.2) * torch.randn_like(parameter)
    return model.eval()


def batch(name: str, side: str = "left", length: int = 9) -> dict:
    """Two examples; the second has three tokens of padding."""
    ids = torch.randint(4, 40, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if name in PAIRS:
        inputs["decoder_input_ids"] = ids[:, :5].clone()
    return inputs


def run(model, inputs, **more):
    with torch.no_grad():
        return model(**inputs, output_attentions=True, **more)


def seen(model, inputs):
    """The first output where a token is no padding: decoders' always are tokens here."""
    with torch.no_grad():
        out = model(**inputs)[0]
    return out if "decoder_input_ids" in inputs else out[inputs["attention_mask"].bool()]


def cores(model) -> dict:
    return {name: module for name, module in model.named_modules() if isinstance(module, AttentionCore)}


def all_weights(output) -> list:
    kinds = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return [weights for kind in kinds for weights in (getattr(output, kind, None) or ())]


def register_truth(mapping) -> str:
    """An attention implementation that writes everything out in float64, with masks of the eager kind."""

    def attend(module, query, key, value, mask, scaling=None, position_bias=None, softcap=None, **_):
        groups = query.shape[1] // key.shape[1]
        q, k, v = query.double(), *(t.double().repeat_interleave(groups, 1) for t in (key, value))
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        scores = scores if position_bias is None else scores + position_bias
        if mask is not None:
            scores = scores.masked_fill(mask < -1e9, float("-inf"))
        weights = mapping(scores)
        return (weights @ v).to(query.dtype).transpose(1, 2).contiguous(), weights.to(query.dtype)

    AttentionInterface.register("truth", attend)
    AttentionMaskInterface.register("truth", eager_mask)
    return "truth"


def entmax_per_head(alphas):
    return lambda scores: parsimax.entmax(scores, torch.as_tensor(alphas, dtype=torch.float64).view(-1, 1, 1))
