"""Writes a model as llama.cpp's converter does: what is read back can be compared with the original."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.tiny_models import Tensors

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}


def llama_permute(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """How llama.cpp's converter orders the rows of each head of Llama's q and k."""
    halves = weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def write_model(file: Path, config: dict[str, Any], tensors: Tensors, extra=()) -> None:
    """In float32; `extra` are functions that add to the writer."""
    arch = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    add_metadata(writer, config)
    for add in extra:
        add(writer)
    for name, values in tensors.items():
        if arch == gguf.MODEL_ARCH.LLAMA and "q_proj" in name:
            values = llama_permute(values, config["num_attention_heads"])
        if arch == gguf.MODEL_ARCH.LLAMA and "k_proj" in name:
            values = llama_permute(values, config["num_key_value_heads"])
        if arch == gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
            values = values + 1
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), np.ascontiguousarray(values))
    finish(writer)


def write_minimal(file, name="token_embd.weight", values=None, kind=None, architecture="llama", extra=(), **metadata):
    """A file whose metadata is complete and that holds one tensor, and what the functions `extra` add to the writer."""
    writer = gguf.GGUFWriter(file, architecture)
    keys = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 64,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    for key, value in (keys | metadata).items():
        if value is None:
            continue
        full = key if key.startswith(("split", "general", "tokenizer")) else f"{architecture}.{key}"
        adders = {float: writer.add_float32, str: writer.add_string, bool: writer.add_bool, list: writer.add_array}
        adders.get(type(value), writer.add_uint32)(full, value)
    for add in extra:
        add(writer)
    values = np.zeros((8, 64), np.float32) if values is None else values
    writer.add_tensor(name, values, raw_dtype=kind)
    finish(writer)
    return file


def add_metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    rope = config["rope_parameters"].get("full_attention", config["rope_parameters"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
    writer.add_token_list([f"token {i}" for i in range(config["vocab_size"])])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
