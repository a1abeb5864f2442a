"""The configs of the random tiny models, as transformers makes them."""

import transformers as hf

from tests.tiny_models import SHARDED

COMMON = dict(
    vocab_size=256,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.2,  # large enough that logits differ and errors show
)
SMALL = COMMON | dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
GEMMA_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

CONFIGS = {
    "llama": lambda: hf.LlamaConfig(**COMMON, head_dim=8),
    "llama-tied": lambda: hf.LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama-biases": lambda: hf.LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": lambda: hf.LlamaConfig(**COMMON, head_dim=32),
    "llama-mqa": lambda: hf.LlamaConfig(**(COMMON | dict(num_key_value_heads=1))),
    "mistral": lambda: hf.MistralConfig(**COMMON, head_dim=8, sliding_window=None),
    "mistral-window": lambda: hf.MistralConfig(**COMMON, head_dim=8, sliding_window=8),
    "qwen2": lambda: hf.Qwen2Config(**COMMON, use_sliding_window=False, sliding_window=8),
    "qwen2-window": lambda: hf.Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": lambda: hf.Qwen3Config(**COMMON, head_dim=16),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **COMMON, head_dim=16, sliding_window=8, layer_types=GEMMA_LAYERS, query_pre_attn_scalar=24
    ),
    # what a GGUF file can say: the query scale is that of the head size, and every sixth layer is full
    "gemma3-for-gguf": lambda: hf.Gemma3TextConfig(
        **(COMMON | dict(num_hidden_layers=7)), head_dim=16, sliding_window=8, query_pre_attn_scalar=16
    ),
    SHARDED: lambda: hf.LlamaConfig(**SMALL),
}


def make_config(name: str) -> hf.PreTrainedConfig:
    config = CONFIGS[name]()
    config.eos_token_id = None
    return config
