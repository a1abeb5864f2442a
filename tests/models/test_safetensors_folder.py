"""Safetensors folders, whole and broken: every error names the file and what is wrong, before any data is read."""

import json
import re
import shutil
import time

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import tiny_models
from xlaserve.errors import CheckpointError
from xlaserve.models.safetensors_folder import SafetensorsFolder

NORM = "model.norm.weight"


@pytest.fixture
def single(tmp_path):
    """One file, as transformers saved it in bfloat16."""
    return shutil.copytree(tiny_models.folder("llama"), tmp_path / "single")


@pytest.fixture
def sharded(tmp_path):
    """Four shards and their index."""
    return shutil.copytree(tiny_models.folder(tiny_models.SHARDED), tmp_path / "sharded")


def expect_refusal(folder, *words):
    started = time.monotonic()
    with pytest.raises(CheckpointError) as refusal:
        SafetensorsFolder(folder)
    assert time.monotonic() - started < 20
    for word in words:
        assert str(word) in str(refusal.value)


def write_raw(file, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("name", ["llama", tiny_models.SHARDED])
def test_reads_what_transformers_wrote(name):
    folder = tiny_models.folder(name)
    checkpoint = SafetensorsFolder(folder)
    reference = {}
    for file in folder.glob("*.safetensors"):
        reference |= load_file(file)
    assert checkpoint.tensors.keys() == reference.keys()
    for tensor_name, tensor in reference.items():
        assert checkpoint.tensors[tensor_name].shape == tensor.shape
        stored = checkpoint.read(tensor_name)
        assert stored.dtype == tensor.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(stored, tensor)
        np.testing.assert_array_equal(checkpoint.read(tensor_name, np.dtype(np.float32)), tensor.astype(np.float32))
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.folder == folder


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_casts_piecewise_as_numpy_does_at_once(tmp_path, dtype):
    values = np.random.default_rng(0).standard_normal((700, 901)).astype(dtype)  # several pieces, the last one short
    save_file({"w": values}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    checkpoint = SafetensorsFolder(tmp_path)
    for wanted in (np.float32, np.float16, ml_dtypes.bfloat16):
        np.testing.assert_array_equal(checkpoint.read("w", np.dtype(wanted)), values.astype(wanted))


def test_an_unsaid_dtype_is_that_of_the_largest_tensor(single):
    config = json.loads((single / "config.json").read_text())
    del config["dtype"]
    (single / "config.json").write_text(json.dumps(config))
    assert SafetensorsFolder(single).config["dtype"] == "bfloat16"


def test_generation_config_is_optional(single):
    (single / "generation_config.json").write_text('{"temperature": 0.6}')
    assert SafetensorsFolder(single).generation_config == {"temperature": 0.6}
    (single / "generation_config.json").unlink()
    assert SafetensorsFolder(single).generation_config == {}


def test_cut_by_one_byte(single):
    file = single / "model.safetensors"
    size = file.stat().st_size
    with open(file, "r+b") as stream:
        stream.truncate(size - 1)
    expect_refusal(single, file, f"{size - 1:,} bytes", f"expected {size:,}", "download")


def test_cut_in_the_middle_names_the_first_tensor_that_is_not_whole(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({name: np.ones((16, 16), np.float32) for name in ("a", "b", "c")}, tmp_path / "model.safetensors")
    with open(tmp_path / "model.safetensors", "r+b") as stream:
        stream.truncate((tmp_path / "model.safetensors").stat().st_size - 1500)
    expect_refusal(tmp_path, "not whole is b")


def test_longer_than_its_tensors(single):
    file = single / "model.safetensors"
    size = file.stat().st_size
    with open(file, "ab") as stream:
        stream.write(b"\0")
    expect_refusal(single, file, f"{size + 1:,} bytes", f"expected {size:,}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ("has 0 bytes", "download")),
        (b"\x10\0\0", ("has 3 bytes",)),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 5\n", ("Git LFS pointer", "git lfs pull")),
        ((2**60).to_bytes(8, "little") + b"{}", (f"{2**60:,} bytes long", "has 10", "download")),
        ((2).to_bytes(8, "little") + b"{}" + b"?", ("has 11 bytes", "expected 10")),
        ((9).to_bytes(8, "little") + b'{"a": {"d', ("not valid JSON", "download")),
        ((4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc", ("not valid JSON",)),
        ((2).to_bytes(8, "little") + b"[]", ("JSON list", "expected an object")),
    ],
    ids=["empty", "3 bytes", "lfs", "huge header", "trailing", "half a header", "no text", "list"],
)
def test_no_safetensors_file_at_all(single, content, words):
    (single / "model.safetensors").write_bytes(content)
    expect_refusal(single, single / "model.safetensors", *words)


def test_cut_in_the_header(single):
    file = single / "model.safetensors"
    with open(file, "r+b") as stream:
        stream.truncate(100)
    expect_refusal(single, file, "header says", "has 100", "download")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "BF17", "shape": [2], "data_offsets": [0, 4]}, ("dtype is 'BF17'", "F32, F16, BF16")),
        ({"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}, ("dtype is 'I32'",)),
        ({"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}, ("dtype is 'F8_E4M3'",)),
        ({"shape": [1], "data_offsets": [0, 4]}, ("dtype is None",)),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, ("shape is [-1]",)),
        ({"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}, ("shape is '1'",)),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0]}, ("data_offsets is [0]",)),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}, ("holds -4 bytes", "expected 4")),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, ("holds 4 bytes", "expected 8 for F32 [2]")),
        ({"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}, ("holds 4 bytes",)),
        ("F32", ("header entry is 'F32'",)),
    ],
)
def test_a_broken_header_entry_is_named(single, entry, words):
    write_raw(single / "model.safetensors", {"__metadata__": {"format": "pt"}, "some.weight": entry}, b"\0" * 4)
    expect_refusal(single, single / "model.safetensors", "some.weight", *words)


def test_a_missing_shard(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    expect_refusal(sharded, shard, "no such file", "index.json names it", "download")


def test_a_tensor_that_the_index_promises_but_no_shard_has(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first = sorted(set(content["weight_map"].values()))[0]
    index.write_text(json.dumps({"weight_map": content["weight_map"] | {"model.extra.weight": first}}))
    expect_refusal(sharded, sharded / first, "model.extra.weight", "index.json says")


def test_a_tensor_in_another_shard_than_the_index_says(sharded):
    index = sharded / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    other = next(shard for shard in weight_map.values() if shard != weight_map[NORM])
    index.write_text(json.dumps({"weight_map": weight_map | {NORM: other}}))
    expect_refusal(sharded, sharded / other, NORM)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("not valid JSON",)),
        ("{}", ("weight_map is None",)),
        ('{"weight_map": []}', ("weight_map is []",)),
        ('{"weight_map": {"a": "../b.safetensors"}}', ("'../b.safetensors'", "same folder")),
    ],
)
def test_a_broken_index(sharded, content, words):
    index = sharded / "model.safetensors.index.json"
    index.write_text(content)
    expect_refusal(sharded, index, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("no such file",)),
        ("", ("not valid JSON", "download")),
        ('{"hidden_size": 32,', ("not valid JSON", "line 1")),
        ("[" * 100_000, ("not valid JSON",)),
        ("[]", ("JSON list", "expected an object")),
    ],
)
def test_a_broken_config(single, content, words):
    if content is None:
        (single / "config.json").unlink()
    else:
        (single / "config.json").write_text(content)
    expect_refusal(single, single / "config.json", *words)


def test_pickled_weights_are_refused(single):
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    expect_refusal(single, single, "pickled (pytorch_model.bin)", "convert", "safetensors")


def test_no_weights_and_weights_under_another_name(single):
    (single / "model.safetensors").rename(single / "consolidated.safetensors")
    expect_refusal(single, single, "expected model.safetensors", "found consolidated.safetensors")
    (single / "consolidated.safetensors").unlink()
    expect_refusal(single, single, "found no weights")


def test_a_file_that_shrinks_while_it_is_read(single):
    checkpoint = SafetensorsFolder(single)
    file = single / "model.safetensors"
    with open(file, "r+b") as stream:
        stream.truncate(file.stat().st_size // 4)
    with pytest.raises(CheckpointError, match=re.escape(str(file)) + ".*became shorter"):
        [checkpoint.read(name) for name in checkpoint.tensors]
