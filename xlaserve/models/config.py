"""A model's architecture in our words, made from a Hugging Face config.json (a GGUF file is translated into one)."""

from dataclasses import dataclass
from typing import Literal

LayerType = Literal["full", "sliding"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: `rope_type` default, linear, llama3 or yarn; the scaling's parameters as HF names them."""

    theta: float
    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position_embeddings: int = 0  # llama3, yarn
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None = derived from factor (and mscale, mscale_all_dim)
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


@dataclass(frozen=True)
class ModelConfig:
    """Hashable, so that it can be a static argument of the compiled programs."""

    family: Literal["llama", "qwen3", "gemma3"]  # llama covers Llama, Mistral and Qwen2
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: Literal["silu", "gelu_pytorch_tanh"]
    tie_word_embeddings: bool
    max_position_embeddings: int
    layer_types: tuple[LayerType, ...]
    rope: RopeConfig
    rope_sliding: RopeConfig  # of the sliding layers; equal to `rope` in all families but Gemma 3
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None  # tokens seen, the current one included; of the sliding layers
    query_scale: float = 1.0  # multiplies q.k: head_dim**-0.5, or query_pre_attn_scalar**-0.5
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    eos_token_ids: tuple[int, ...] = ()  # of config.json only; the union is made in engine/tokenizer.py
    bos_token_id: int | None = None
    checkpoint_dtype: str = "float32"  # torch_dtype / dtype of config.json
