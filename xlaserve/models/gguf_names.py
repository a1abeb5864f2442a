"""What llama.cpp's converter did to a Hugging Face model, undone: tensor names, and metadata into a config.json."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from xlaserve.errors import CheckpointError
from xlaserve.models.fields import Fields
from xlaserve.models.gguf_reader import GGUFTensor

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}  # architecture -> HF

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_BLOCK_NAMES = _BLOCK_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Metadata that changes the arithmetic in ways these models do not have, and the value at which it changes nothing.
_NEUTRAL = {
    "expert_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.temperature_scale": 0.0,
    "attention.causal": True,
    "rope.scaling.yarn_ext_factor": 1.0,
}
_GEMMA3_27B_LAYERS = 62  # the one Gemma 3 whose query scale is not head_dim**-0.5


def hf_name(architecture: str, name: str) -> str | None:
    """blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight; None for a name that the model cannot have."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    ours = (_GEMMA3_BLOCK_NAMES if architecture == "gemma3" else _BLOCK_NAMES).get(match[2]) if match else None
    return f"model.layers.{match[1]}.{ours}.{match[3]}" if match and ours else None


def hf_config(metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor], where: str) -> dict[str, Any]:
    """The config.json that the file was converted from, as far as its metadata tells. Raises CheckpointError."""
    architecture = metadata.get("general.architecture")
    if architecture not in MODEL_TYPES:
        raise CheckpointError(
            f"{where}: general.architecture is {architecture!r}; expected one of {', '.join(MODEL_TYPES)}"
        )
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{where}: has no tensor token_embd.weight; expected a whole language model")
    prefix = f"{architecture}."
    fields = Fields(
        {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}, where, prefix
    )
    for key, neutral in _NEUTRAL.items():
        if not np.array_equal(fields.values.get(key, neutral), neutral):
            raise fields.error(key, f"{neutral}: the {architecture} models here do not have it")
    hidden_size, num_heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise fields.error(key, f"the head size, {head_dim}")
    config = {
        "model_type": MODEL_TYPES[architecture],
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": fields.integer("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": fields.integer("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }
    rope = _rope_scaling(fields)
    if architecture == "gemma3":
        return config | _gemma3_config(fields, config, rope)
    return config | {"rope_parameters": {"rope_theta": fields.number("rope.freq_base", 10_000.0)} | rope}


def llama3_rope(divisors: np.ndarray, config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The rope parameters that gave `rope_freqs.weight`, float32 [head_dim / 2]: what divides each frequency.

    The file keeps only the result, so it is compared with the one parameter set that Llama 3.1, 3.2 and 3.3 use.
    """
    rope = config["rope_parameters"]
    if "rope_type" in rope:
        raise CheckpointError(f"{where}: has both rope_freqs.weight and rope scaling {rope['rope_type']}; expected one")
    theta, factor = rope["rope_theta"], float(divisors.max(initial=1.0))
    low, high, original = 1.0, 4.0, 8192
    wavelengths = 2 * np.pi * theta ** (np.arange(0, config["head_dim"], 2) / config["head_dim"])
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-4):
        raise CheckpointError(
            f"{where}: rope_freqs.weight holds frequency divisors that are not those of Llama 3 (largest {factor:g}); "
            "expected rope type llama3 with low_freq_factor 1, high_freq_factor 4 and 8192 original positions"
        )
    return {
        "rope_theta": theta,
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def sampling_defaults(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The part of generation_config.json that newer files carry."""
    names = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p"}
    found = {ours: metadata.get(f"general.sampling.{theirs}") for theirs, ours in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _rope_scaling(fields: Fields) -> dict[str, Any]:
    """The scaling in Hugging Face's words; {} when there is none."""
    scaling_type = fields.choice("rope.scaling.type", ("none", "linear", "yarn"), "none")
    if scaling_type == "none":
        factor = fields.number("rope.scale_linear", 1.0)  # how files of 2023 say it
        return {"rope_type": "linear", "factor": factor} if factor != 1.0 else {}
    scaling = {"rope_type": scaling_type, "factor": fields.number("rope.scaling.factor")}
    if scaling_type == "linear":
        return scaling
    optional = {
        "original_max_position_embeddings": fields.integer("rope.scaling.original_context_length"),
        "attention_factor": fields.number("rope.scaling.yarn_attn_factor", None),
        "beta_fast": fields.number("rope.scaling.yarn_beta_fast", None),
        "beta_slow": fields.number("rope.scaling.yarn_beta_slow", None),
    }
    return scaling | {key: value for key, value in optional.items() if value is not None}


def _gemma3_config(fields: Fields, config: Mapping[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """What is particular to Gemma 3; the file leaves out what all of them have in common."""
    num_layers = config["num_hidden_layers"]
    pattern = fields.values.get("attention.sliding_window_pattern", 6)
    window = fields.integer("attention.sliding_window", None)
    if window is None:
        sliding = [False] * num_layers
    elif isinstance(pattern, np.ndarray):
        sliding = pattern.astype(bool).tolist()
    else:
        period = fields.integer("attention.sliding_window_pattern", 6)
        sliding = [(layer + 1) % period != 0 for layer in range(num_layers)]
    widest = config["hidden_size"] // config["num_attention_heads"]
    return {
        "layer_types": ["sliding_attention" if is_sliding else "full_attention" for is_sliding in sliding],
        "sliding_window": window,
        "query_pre_attn_scalar": widest if num_layers == _GEMMA3_27B_LAYERS else config["head_dim"],
        "final_logit_softcapping": fields.number("final_logit_softcapping", None),
        "rope_parameters": {
            "full_attention": {"rope_theta": fields.number("rope.freq_base", 1_000_000.0)} | rope,
            "sliding_attention": {"rope_theta": fields.number("rope.freq_base_swa", 10_000.0)},
        },
    }
