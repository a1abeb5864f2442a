"""Loading into a parameter tree: what fits, what does not, and how much memory it takes."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from xlaserve.errors import CheckpointError
from xlaserve.layers.params import ArraySpec, named_specs
from xlaserve.models.loader import load_params
from xlaserve.models.safetensors_folder import SafetensorsFolder

SPECS = {
    "model": {
        "embed": {"weight": ArraySpec((8, 4), ("vocab", "embed"))},
        "layers": [{"norm": {"weight": ArraySpec((4,), ("embed",), "ones")}} for _ in range(3)],
    }
}
NAMES = ["model.embed.weight", *(f"model.layers.{i}.norm.weight" for i in range(3))]


def weights():
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(spec.shape).astype(np.float32) for name, spec in named_specs(SPECS)}


def save(folder, tensors):
    (folder / "config.json").write_text("{}")
    save_file(tensors, folder / "model.safetensors")
    return SafetensorsFolder(folder)


def load(checkpoint, specs=SPECS, dtype=np.float32, place=lambda array, spec: array, on_progress=lambda *_: None):
    return load_params(specs, checkpoint, dtype=np.dtype(dtype), place=place, on_progress=on_progress)


def refusal(checkpoint, specs=SPECS):
    with pytest.raises(CheckpointError) as error:
        load(checkpoint, specs)
    return str(error.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_leaf_is_the_tensor_of_its_name_in_the_wanted_precision(tmp_path, dtype):
    tensors = weights()
    params = load(save(tmp_path, tensors), dtype=dtype)
    leaves = [params["model"]["embed"]["weight"], *(layer["norm"]["weight"] for layer in params["model"]["layers"])]
    for name, leaf in zip(NAMES, leaves, strict=True):
        assert leaf.dtype == dtype
        np.testing.assert_array_equal(leaf, tensors[name].astype(dtype))


def test_places_by_spec_and_reports_bytes_of_the_wanted_precision(tmp_path):
    placed, progress = [], []
    load(
        save(tmp_path, weights()),
        dtype=np.float16,
        place=lambda array, spec: placed.append((array.shape, spec.axes)),
        on_progress=lambda *step: progress.append(step),
    )
    assert placed == [((8, 4), ("vocab", "embed")), *[((4,), ("embed",))] * 3]
    assert progress == [(64, 88, NAMES[0]), (72, 88, NAMES[1]), (80, 88, NAMES[2]), (88, 88, NAMES[3])]


def test_all_differences_are_told_at_once_and_before_anything_is_read(tmp_path, monkeypatch):
    tensors = weights()
    tensors["model.embed.weigth"] = tensors.pop("model.embed.weight")
    tensors["model.layers.1.norm.weight"] = np.ones((5,), np.float32)
    checkpoint = save(tmp_path, tensors)
    monkeypatch.setattr(SafetensorsFolder, "read", lambda *_: pytest.fail("read"))
    message = refusal(checkpoint)
    assert str(tmp_path / "config.json") in message
    assert "model.embed.weight: missing; expected shape [8, 4]" in message
    assert "model.layers.1.norm.weight: shape [5] in model.safetensors; expected [4]" in message
    assert "model.embed.weigth: in model.safetensors with shape [8, 4], but the model has no such parameter" in message


def test_a_long_list_of_differences_is_cut(tmp_path):
    message = refusal(save(tmp_path, weights() | {f"extra.{i}": np.ones(1, np.float32) for i in range(25)}))
    assert message.count("no such parameter") == 10
    assert "and 15 more" in message


HEAD = {"lm_head": {"weight": ArraySpec((8, 4), ("vocab", "embed"))}}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_tied_and_stored_heads(tmp_path, tied, stored):
    head = {"lm_head.weight": np.ones((8, 4), np.float32)} if stored else {}
    checkpoint = save(tmp_path, weights() | head)
    specs = SPECS if tied else SPECS | HEAD
    if tied or stored:
        params = load(checkpoint, specs)
        assert ("lm_head" in params) == (not tied)
    else:
        assert "lm_head.weight: missing" in refusal(checkpoint, specs)


def test_rotary_tables_of_old_checkpoints_may_stay_unused(tmp_path):
    load(save(tmp_path, weights() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}))


def test_memory_holds_one_tensor_in_the_wanted_precision(tmp_path):
    specs = {f"w{i}": ArraySpec((1024, 1024), (None, None)) for i in range(6)}
    checkpoint = save(tmp_path, {name: np.ones((1024, 1024), np.float32) for name in specs})
    tracemalloc.start()
    try:
        load(checkpoint, specs, dtype=np.float16, place=lambda array, spec: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20 + 3 * 2**20  # the tensor, and a piece of it in both precisions
