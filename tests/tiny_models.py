"""Random tiny models saved by transformers, one per family and per trap; the reference is transformers with torch."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import torch
import transformers as hf

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
LLAMA3_ROPE = dict(
    rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)  # fmt: skip
YARN_ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
GEMMA_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

CONFIGS = {
    "llama": lambda: hf.LlamaConfig(**COMMON, head_dim=8),
    "llama-tied": lambda: hf.LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama-biases": lambda: hf.LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": lambda: hf.LlamaConfig(**COMMON, head_dim=32),
    "llama-mqa": lambda: hf.LlamaConfig(**(COMMON | dict(num_key_value_heads=1))),
    "llama-linear": lambda: hf.LlamaConfig(
        **COMMON, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
    ),
    "llama-llama3": lambda: hf.LlamaConfig(**COMMON, rope_parameters=LLAMA3_ROPE),
    "llama-yarn": lambda: hf.LlamaConfig(**(COMMON | dict(max_position_embeddings=256)), rope_parameters=YARN_ROPE),
    "llama-yarn-factor": lambda: hf.LlamaConfig(
        **(COMMON | dict(max_position_embeddings=256)), rope_parameters=YARN_ROPE | dict(attention_factor=1.5)
    ),
    "llama-yarn-mscale": lambda: hf.LlamaConfig(
        **(COMMON | dict(max_position_embeddings=256)),
        rope_parameters=YARN_ROPE | dict(mscale=1.2, mscale_all_dim=0.7, beta_fast=16.0, beta_slow=2.0),
    ),
    "mistral": lambda: hf.MistralConfig(**COMMON, head_dim=8, sliding_window=None),
    "mistral-window": lambda: hf.MistralConfig(**COMMON, head_dim=8, sliding_window=8),
    "qwen2": lambda: hf.Qwen2Config(**COMMON, use_sliding_window=False, sliding_window=8),
    "qwen2-window": lambda: hf.Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": lambda: hf.Qwen3Config(**COMMON, head_dim=16),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **COMMON, head_dim=16, sliding_window=8, layer_types=GEMMA_LAYERS, query_pre_attn_scalar=24
    ),
    "gemma3-softcap": lambda: hf.Gemma3TextConfig(
        **COMMON, head_dim=16, sliding_window=8, layer_types=GEMMA_LAYERS, query_pre_attn_scalar=16,
        final_logit_softcapping=3.0,
    ),
    # what a GGUF file can say: the query scale is that of the head size, and every sixth layer is full
    "gemma3-for-gguf": lambda: hf.Gemma3TextConfig(
        **(COMMON | dict(num_hidden_layers=7)), head_dim=16, sliding_window=8, query_pre_attn_scalar=16
    ),
}  # fmt: skip


@functools.cache
def _scratch() -> Path:
    """A folder that goes with the process."""
    folder = tempfile.mkdtemp(prefix="tiny-models-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def make(name: str) -> tuple[Path, hf.PreTrainedModel]:
    """The folder of the model called `name` and the torch model itself, float32; every parameter random."""
    torch.manual_seed(sum(name.encode()))
    config = CONFIGS[name]()
    config.eos_token_id = None
    config._attn_implementation = "eager"
    model = hf.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases start at 0 and norms at 1, where mistakes do not show
                parameter.add_(torch.randn_like(parameter) * 0.3)
    folder = _scratch() / name
    model.save_pretrained(folder)
    return folder, model


def reference_logits(model: hf.PreTrainedModel, token_ids: list[int]):
    """float32 [T, V]"""
    with torch.no_grad():
        return model(torch.tensor([token_ids]), use_cache=False).logits[0].float().numpy()


def reference_greedy(model: hf.PreTrainedModel, token_ids: list[int], num_tokens: int) -> list[int]:
    with torch.no_grad():
        out = model.generate(
            torch.tensor([token_ids]), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0, eos_token_id=None
        )
    return out[0, len(token_ids) :].tolist()
