"""Records what the programs that write quantised checkpoints store of a matrix, and what they read back of it.

    python -m tests.record_quantized        # into tests/data/quantized.npz

Needs torch, transformers, compressed-tensors, and the packages autoawq and auto-gptq, of which single modules are read:
they need not be importable as a whole.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import functools
import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.models.test_quantized_decoding import RECORDED

GROUP, SHAPE = 32, (32, 96)  # an odd number of groups


@functools.cache
def module_of(package: str, name: str) -> Any:
    """package.name, without what package's __init__ imports."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0])
    for part in [package, *(f"{package}.{parent}" for parent in parents_of(name))]:
        module = types.ModuleType(part)
        module.__path__ = [str(folder.joinpath(*part.split(".")[1:]))]
        sys.modules[part] = module
    return importlib.import_module(f"{package}.{name}")


def parents_of(name: str) -> list[str]:
    parts = name.split(".")[:-1]
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def grid(weight: torch.Tensor, *, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points [out, groups] of 4 bits."""
    groups = weight.reshape(len(weight), -1, GROUP)
    if symmetric:
        scales = groups.abs().amax(-1) / 7
        return scales, torch.full_like(scales, 8)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = (high - low) / 15
    return scales, torch.clamp(torch.round(-low / scales), 1, 15)  # AutoGPTQ cannot store 0


def awq(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    gemm = module_of("awq", "modules.linear.gemm")
    scales, zeros = grid(weight, symmetric=False)
    stored = gemm.WQLinear_GEMM.from_linear(linear_of(weight), 4, GROUP, scales=scales.T, zeros=zeros.T)
    parts = {name: getattr(stored, name) for name in ("qweight", "qzeros", "scales")}
    dequantize = sys.modules["awq.utils.packing_utils"].dequantize_gemm
    return parts | {"read": dequantize(*(parts[name] for name in ("qweight", "qzeros", "scales")), 4, GROUP).T}


def gptq(weight: torch.Tensor, *, symmetric: bool) -> dict[str, torch.Tensor]:
    module = module_of("auto_gptq", "nn_modules.qlinear.qlinear_cuda_old")
    scales, zeros = grid(weight, symmetric=symmetric)
    stored = module.QuantLinear(4, GROUP, weight.shape[1], weight.shape[0], bias=False)
    stored.pack(linear_of(weight), scales, zeros, None)
    read = stored(torch.eye(weight.shape[1])).T
    return {name: getattr(stored, name) for name in ("qweight", "qzeros", "scales", "g_idx")} | {"read": read}


def compressed(weight: torch.Tensor, bits: int, strategy: str, *, symmetric: bool) -> dict[str, torch.Tensor]:
    from compressed_tensors.compressors import PackedQuantizationCompressor as Compressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    size = GROUP if strategy == "group" else None
    weights = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy=strategy, group_size=size)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    if strategy == "group":
        scales, zeros = grid(weight, symmetric=symmetric)
    else:
        scales = weight.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
        zeros = torch.full_like(scales, 8)
    parts = {"weight": weight, "weight_scale": scales.bfloat16().float()}
    if not symmetric:
        parts["weight_zero_point"] = (zeros - 8).to(torch.int8)
    stored = Compressor.compress(parts, scheme)
    return stored | {"read": Compressor.decompress(stored, scheme)["weight"]}


def linear_of(weight: torch.Tensor) -> torch.nn.Linear:
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight.clone()
    return linear


def main() -> None:
    weight = torch.from_numpy(np.random.default_rng(0).normal(0, 0.05, SHAPE).astype(np.float32))
    weight = weight * torch.linspace(0.5, 2, SHAPE[0])[:, None]
    recorded = {
        "awq": awq(weight),
        "gptq": gptq(weight, symmetric=False),
        "gptq, symmetric": gptq(weight, symmetric=True),
        "packed": compressed(weight, 4, "group", symmetric=True),
        "packed, zero points": compressed(weight, 4, "group", symmetric=False),
        "packed, by output": compressed(weight, 4, "channel", symmetric=True),
        "packed, 8 bits": compressed(weight, 8, "channel", symmetric=True),
    }
    arrays = {f"{case}/{name}": part.numpy() for case, parts in recorded.items() for name, part in parts.items()}
    np.savez_compressed(RECORDED, **arrays, weight=weight.numpy())


if __name__ == "__main__":
    main()
