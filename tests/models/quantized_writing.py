"""Writes a small random Llama as a folder with quantised weights, in each of the forms that such checkpoints have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

Tensors = dict[str, np.ndarray]

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "vocab_size": 96,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 128,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": False,
}  # fmt: skip
LAYER = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
}  # fmt: skip
GROUP = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_LINEAR = {"targets": ["Linear"], "output_activations": None}
_BY_TOKEN = {"dynamic": True, "strategy": "token", "symmetric": True, "num_bits": 8}


def random_tensors(seed: int) -> Tensors:
    """float32, of the plain model."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 0.2, (rows, columns)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(96, 64), "lm_head.weight": matrix(96, 64)}
    tensors["model.norm.weight"] = np.ones(64, np.float32)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(64, np.float32)
        tensors |= {f"{prefix}{name}.weight": matrix(*shape) for name, shape in LAYER.items()}
    return tensors


def pack(values: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Values below 16 [..., 8n] -> int32 [..., n], value order[i] of each eight in the i-th place from the lowest."""
    eights = values.reshape(*values.shape[:-1], -1, 8).astype(np.uint32)
    words = np.zeros(eights.shape[:-1], np.uint32)
    for place, index in enumerate(order):
        words |= eights[..., index] << np.uint32(4 * place)
    return words.view(np.int32)


def four_bits(weight: np.ndarray, group: int, *, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values [out, in], scales float16-exact [out, groups], zeros [out, groups])"""
    groups = weight.reshape(len(weight), -1, group)
    if symmetric:
        scales, zeros = np.abs(groups).max(-1) / 7, np.full(groups.shape[:2], 8.0)
        scales = scales.astype(np.float16).astype(np.float32)
    else:
        low, high = groups.min(-1), groups.max(-1)
        scales = ((high - low) / 15).astype(np.float16).astype(np.float32)
        zeros = np.clip(np.rint(-low / scales), 1, 15)
    values = np.clip(np.rint(groups / scales[..., None]) + zeros[..., None], 0, 15)
    return values.reshape(weight.shape).astype(np.uint8), scales, zeros.astype(np.uint8)


def widened(values: np.ndarray, scales: np.ndarray, zeros: np.ndarray | float = 0.0) -> np.ndarray:
    """What they stand for, float64."""
    group = values.shape[1] // scales.shape[1]
    zeros = np.broadcast_to(np.asarray(zeros, np.float64), scales.shape)
    by_input = [np.repeat(part.astype(np.float64), group, axis=1) for part in (scales, zeros)]
    return (values.astype(np.float64) - by_input[1]) * by_input[0]


def awq(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
    values, scales, zeros = four_bits(weight, GROUP, symmetric=False)
    parts = {
        "qweight": pack(np.ascontiguousarray(values.T), _AWQ_ORDER), "qzeros": pack(zeros.T.copy(), _AWQ_ORDER),
        "scales": scales.T.astype(np.float16),
    }  # fmt: skip
    return parts, widened(values, scales, zeros)


def gptq(weight: np.ndarray, *, symmetric: bool, offset: int = 1) -> tuple[Tensors, np.ndarray]:
    values, scales, zeros = four_bits(weight, GROUP, symmetric=symmetric)
    parts = {
        "qweight": np.ascontiguousarray(pack(values).T), "qzeros": pack((zeros - offset).T.copy()),
        "scales": scales.T.astype(np.float16), "g_idx": np.arange(weight.shape[1], dtype=np.int32) // GROUP,
    }  # fmt: skip
    return parts, widened(values, scales, zeros)


def packed(weight: np.ndarray, *, symmetric: bool = True, by_output: bool = False) -> tuple[Tensors, np.ndarray]:
    group = weight.shape[1] if by_output else GROUP
    values, scales, zeros = four_bits(weight, group, symmetric=symmetric)
    parts = {"weight_packed": pack(values), "weight_scale": scales, "weight_shape": np.array(weight.shape)}
    if not symmetric:
        parts["weight_zero_point"] = np.ascontiguousarray(pack(zeros.T.copy()).T)
    return parts, widened(values, scales, zeros)


def eight_bits(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scales = (np.abs(weight).max(-1, keepdims=True) / 127).astype(np.float32)
    return np.rint(weight / scales).astype(np.int8), scales


def int8(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
    values, scales = eight_bits(weight)
    return {"weight": values, "weight_scale": scales}, widened(values, scales)


def packed_int8(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
    values, scales = eight_bits(weight)
    words = np.ascontiguousarray(values.astype(np.int16) + 128).astype(np.uint8).view(np.int32)
    parts = {"weight_packed": words, "weight_scale": scales, "weight_shape": np.array(weight.shape)}
    return parts, widened(values, scales)


def fp8(weight: np.ndarray, *, by_output: bool) -> tuple[Tensors, np.ndarray]:
    largest = np.abs(weight).max(-1, keepdims=True) if by_output else np.abs(weight).max().reshape(1, 1)
    scales = (largest / 448).astype(np.float32)
    values = (weight / scales).astype(ml_dtypes.float8_e4m3fn)
    exact = widened(values, np.broadcast_to(scales, (len(weight), 1)))
    if by_output:
        return {"weight": values, "weight_scale": scales}, exact
    return {"weight": values, "weight_scale": scales.reshape(()), "input_scale": np.float32(0.5).reshape(())}, exact


def compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = _LINEAR | {"weights": {"symmetric": True, "dynamic": False} | weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "quantization_status": "compressed", "kv_cache_scheme": None, "sparsity_config": {},
    }  # fmt: skip


_AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False, "lm_head": False}
_GROUPS = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": GROUP}
_INT8 = {"type": "int", "num_bits": 8, "strategy": "channel"}
_FP8 = {"type": "float", "num_bits": 8, "strategy": "channel"}
FORMS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], tuple[Tensors, np.ndarray]], str]] = {
    # quantization_config, what stores a matrix and tells what it stands for, the kernels' mode
    "awq": (_AWQ, awq, "w4a16"),
    "gptq": (_GPTQ, lambda weight: gptq(weight, symmetric=False), "w4a16"),
    "gptq, symmetric": (_GPTQ | {"sym": True}, lambda weight: gptq(weight, symmetric=True), "w4a16"),
    "gptq_v2": (
        _GPTQ | {"checkpoint_format": "gptq_v2"}, lambda weight: gptq(weight, symmetric=False, offset=0), "w4a16"
    ),
    "packed": (compressed("pack-quantized", _GROUPS), packed, "w4a16"),
    "packed, zero points": (
        compressed("pack-quantized", _GROUPS | {"symmetric": False}),
        lambda weight: packed(weight, symmetric=False), "w4a16",
    ),
    "packed, by output": (
        compressed("pack-quantized", {"type": "int", "num_bits": 4, "strategy": "channel", "group_size": None}),
        lambda weight: packed(weight, by_output=True), "w4a16",
    ),
    "packed, 8 bits": (compressed("pack-quantized", _INT8), packed_int8, "w8a16"),
    "int8": (compressed("int-quantized", _INT8, _BY_TOKEN | {"type": "int"}), int8, "w8a8"),
    "int8, weights only": (compressed("int-quantized", _INT8), int8, "w8a16"),
    "float8": (
        compressed("float-quantized", _FP8, _BY_TOKEN | {"type": "float"}),
        lambda weight: fp8(weight, by_output=True), "fp8_w8a8",
    ),
    "fp8": (
        {"quant_method": "fp8", "activation_scheme": "static"}, lambda weight: fp8(weight, by_output=False), "fp8_w8a8"
    ),
}  # fmt: skip


def write_folder(
    folder: Path,
    form: str,
    *,
    plain: tuple[str, ...] = ("lm_head", "model.embed_tokens"),
    changes: dict[str, Any] | None = None,
    more: Tensors | None = None,
    scales: type | None = None,
    seed: int = 0,
) -> Tensors:
    """Writes the model; `plain` modules stay bfloat16. Returns what all its tensors stand for, float64.

    changes: keys of quantization_config. more: further tensors. scales: a dtype that theirs is rounded to.
    """
    quantization, store, _ = FORMS[form]
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {"quantization_config": quantization | (changes or {})}
    (folder / "config.json").write_text(json.dumps(config))
    stored, exact = dict(more or {}), {}
    for name, tensor in random_tensors(seed).items():
        module = name.removesuffix(".weight")
        if tensor.ndim == 1 or module in plain:
            stored[name] = tensor.astype(ml_dtypes.bfloat16)
            exact[name] = stored[name].astype(np.float64)
        else:
            parts, exact[name] = store(tensor)
            stored |= {f"{module}.{suffix}": np.ascontiguousarray(part) for suffix, part in parts.items()}
    if scales is not None:
        stored = {name: part.astype(scales) if "scale" in name else part for name, part in stored.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return exact
