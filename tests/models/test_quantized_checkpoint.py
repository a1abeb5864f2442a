"""Folders with quantised weights: what is read of them, and what is refused by name."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.models.quantized_writing import FORMS, write_folder
from xlaserve.errors import CheckpointError
from xlaserve.models.config import parse_config
from xlaserve.models.loader import check_tensors
from xlaserve.models.quantized_checkpoint import QuantizedCheckpoint
from xlaserve.models.registry import FAMILIES
from xlaserve.models.sources import open_local

Q_PROJ = "model.layers.1.self_attn.q_proj"


def opened(folder) -> QuantizedCheckpoint:
    checkpoint = open_local(folder, str(folder))
    assert isinstance(checkpoint, QuantizedCheckpoint)
    config = parse_config(checkpoint.config, checkpoint.where)
    check_tensors(FAMILIES[config.family].param_specs(config), checkpoint)  # complete both ways
    return checkpoint


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_what_was_stored(form, tmp_path):
    exact = write_folder(tmp_path, form)
    checkpoint = opened(tmp_path)
    assert checkpoint.tensors.keys() == exact.keys()
    assert {name for name in exact if ".layers." in name and exact[name].ndim == 2} == checkpoint.schemes.keys()
    assert {scheme.mode for scheme in checkpoint.schemes.values()} == {FORMS[form][2]}
    for name, tensor in exact.items():
        np.testing.assert_allclose(checkpoint.read(name), tensor, rtol=1e-6, atol=1e-7)
        assert checkpoint.read(name, np.dtype(np.float16)).dtype == np.float16


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("awq", {"modules_to_not_convert": ["o_proj", "lm_head"]}),
        ("gptq", {}),
        ("fp8", {"ignored_layers": ["model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"]}),
        ("int8", {"ignore": ["lm_head", "re:.*o_proj$"]}),
        ("packed", {"ignore": ["lm_head", *(f"model.layers.{layer}.self_attn.o_proj" for layer in range(2))]}),
    ],
)
def test_modules_that_are_left_out_are_plain(form, changes, tmp_path):
    plain = tuple(f"model.layers.{layer}.self_attn.o_proj" for layer in range(2))
    exact = write_folder(tmp_path, form, plain=("lm_head", "model.embed_tokens", *plain), changes=changes)
    checkpoint = opened(tmp_path)
    assert len(checkpoint.schemes) == 12
    for module in plain:
        assert f"{module}.weight" not in checkpoint.schemes
        np.testing.assert_array_equal(checkpoint.read(f"{module}.weight"), exact[f"{module}.weight"])


def test_a_quantised_head(tmp_path):
    exact = write_folder(tmp_path, "gptq", plain=("model.embed_tokens",), changes={"lm_head": True})
    checkpoint = opened(tmp_path)
    assert checkpoint.schemes["lm_head.weight"].mode == "w4a16"
    np.testing.assert_allclose(checkpoint.read("lm_head.weight"), exact["lm_head.weight"], rtol=1e-6, atol=1e-7)


def test_scales_of_what_the_engine_scales_itself_are_passed_over(tmp_path):
    scale = np.float32(0.1).reshape(1)
    scales = {f"model.layers.{layer}.self_attn.{name}": scale for layer in range(2) for name in ("k_scale", "v_scale")}
    scales |= {f"{Q_PROJ}.input_scale": scale, "model.layers.0.self_attn.k_proj.k_scale": scale}
    write_folder(tmp_path, "float8", changes={"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, more=scales)
    assert not any("scale" in name for name in opened(tmp_path).tensors)


REFUSED = {
    "bitsandbytes": ("awq", {"quant_method": "bitsandbytes"}, r"quant_method is 'bitsandbytes'; expected one of compr"),
    "no method": ("awq", {"quant_method": None}, r"quant_method is None; expected one of"),
    "gemv": ("awq", {"version": "gemv"}, r"version is 'gemv'; expected gemm"),
    "3 bits": ("gptq", {"bits": 3}, r"bits is 3; expected 4"),
    "groups of 16": ("gptq", {"group_size": 16}, r"group_size is 16; expected -1, 32, 64, 128 or a multiple"),
    "marlin": (
        "gptq",
        {"checkpoint_format": "marlin"},
        r"checkpoint_format is 'marlin'; expected one of gptq, gptq_v2",
    ),
    "rules by module": ("gptq", {"dynamic": {"-:.*up.*": {}}}, r"dynamic is .*; expected nothing"),
    "blocks": ("fp8", {"weight_block_size": [128, 128]}, r"weight_block_size is \[128, 128\]; expected nothing"),
    "fp4": ("packed", {"format": "nvfp4-pack-quantized"}, r"format is 'nvfp4-pack-quantized'; expected one of int-qu"),
    "sparsity": ("int8", {"sparsity_config": {"format": "sparse-24"}}, r"sparsity_config.format is 'sparse-24'; expec"),
    "rotations": ("int8", {"transform_config": {"config_groups": {"u": {}}}}, r"transform_config is .*; expected noth"),
    "no groups": ("int8", {"config_groups": {}}, r"config_groups is \{\}; expected one group at least"),
}


@pytest.mark.parametrize(("form", "changes", "told"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_computed_is_refused_by_key(form, changes, told, tmp_path):
    write_folder(tmp_path, form, changes=changes)
    with pytest.raises(CheckpointError, match=rf"config\.json: quantization_config\.{told}"):
        opened(tmp_path)


OF_A_GROUP = {
    "activation order": ("packed", "weights", {"actorder": "group"}, r"group_0.weights.actorder is 'group'; expected"),
    "8 bits in groups": ("packed, 8 bits", "weights", {"strategy": "group"}, r"weights.strategy is 'group'; expected"),
    "6 bits": ("packed", "weights", {"num_bits": 6}, r"weights.num_bits is 6; expected 4 or 8"),
    "fp8 in blocks": ("float8", "weights", {"strategy": "block"}, r"weights.strategy is 'block'; expected one of"),
    "int8 with zero points": ("int8", "weights", {"symmetric": False}, r"weights.symmetric is False; expected true"),
    "4-bit activations": ("int8", "input_activations", {"num_bits": 4}, r"input_activations.num_bits is 4; expected 8"),
    "activations with zero points": (
        "int8",
        "input_activations",
        {"symmetric": False},
        r"symmetric is False; expected",
    ),
    "other activations": ("int8", "input_activations", {"type": "float"}, r"input_activations.type is 'float'; expect"),
}


@pytest.mark.parametrize(("form", "section", "keys", "told"), OF_A_GROUP.values(), ids=OF_A_GROUP)
def test_what_a_group_of_modules_asks_for_is_refused_by_key(form, section, keys, told, tmp_path):
    (group,) = FORMS[form][0]["config_groups"].values()
    groups = {"config_groups": {"group_0": group | {section: group[section] | keys}}}
    write_folder(tmp_path, form, changes=groups)
    with pytest.raises(CheckpointError, match=told):
        opened(tmp_path)


def with_parts(**parts: np.ndarray):
    return {f"{Q_PROJ}.{name}": part for name, part in parts.items()}


@pytest.mark.parametrize(
    ("form", "change", "told"),
    [
        ("gptq", lambda t: t.pop(f"{Q_PROJ}.qzeros"), r"q_proj.qzeros: missing; expected shape \[2, 8\]"),
        ("awq", lambda t: t.pop(f"{Q_PROJ}.scales"), r"q_proj.scales: missing; expected shape \[2, 64\]"),
        ("packed", lambda t: t.pop(f"{Q_PROJ}.weight_shape"), r"q_proj.weight_shape: missing"),
        ("int8", lambda t: t.pop(f"{Q_PROJ}.weight_scale"), r"q_proj.weight_scale: missing"),
        ("awq", lambda t: t.update(with_parts(scales=np.ones((1, 64), np.float16))), r"F16 \[1, 64\] in .*; exp"),
        ("gptq", lambda t: t.update(with_parts(qweight=np.ones((8, 64), np.int8))), r"I8 \[8, 64\] in .*; exp"),
        ("int8", lambda t: t.update(with_parts(surplus=np.ones(3, np.float32))), r"surplus: in .* no such parameter"),
        ("int8", lambda t: t.update({"model.layers.7.input_scale": np.ones(1, np.float32)}), r"7.input_scale: in"),
        ("int8", lambda t: t.update(with_parts(weight=np.ones((64, 64), np.float32))), r"q_proj.*says so"),
        ("int8", lambda t: t.update({"model.embed_tokens.weight": np.ones((96, 64), np.int8)}), r"embeddings that are"),
        ("int8", lambda t: t.update({"lm_head.weight": np.ones((96, 64), np.int8)}), r"lm_head: .*leaves it out"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(form, change, told, tmp_path):
    write_folder(tmp_path, form)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=told):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("form", "parts", "told"),
    [
        ("gptq", {"g_idx": np.arange(64, dtype=np.int32)[::-1] // 32}, r"q_proj: g_idx: .*desc_act"),
        ("gptq, symmetric", {"qzeros": np.zeros((2, 8), np.int32)}, r"q_proj: qzeros are not all 8, but .*sym is true"),
        ("gptq", {"qzeros": np.full((2, 8), -1, np.int32)}, r"q_proj: a zero point is stored as 15"),
        ("packed", {"weight_shape": np.array([64, 60])}, r"q_proj: weight_shape is \[64, 60\]; expected \[64, 64\]"),
    ],
)
def test_contents_that_contradict_the_config_are_refused_when_they_are_read(form, parts, told, tmp_path):
    write_folder(tmp_path, form)
    stored = {name: np.ascontiguousarray(part) for name, part in with_parts(**parts).items()}
    save_file(load_file(tmp_path / "model.safetensors") | stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"model.safetensors: .*{told}"):
        opened(tmp_path).read(f"{Q_PROJ}.weight")


def test_nothing_quantised_in_the_files(tmp_path):
    every = tuple(name.removesuffix(".weight") for name in write_folder(tmp_path, "awq"))
    write_folder(tmp_path, "awq", plain=every)
    with pytest.raises(CheckpointError, match="holds no weights as awq stores them"):
        opened(tmp_path)
