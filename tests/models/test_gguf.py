"""GGUF files against what they were written from, and broken ones."""

import math
import struct
import time

import gguf
import ml_dtypes
import numpy as np
import pytest

from tests import tiny_models
from tests.models.gguf_writing import llama_permute, write_minimal, write_model
from xlaserve.errors import CheckpointError
from xlaserve.models.config import parse_config
from xlaserve.models.gguf_file import GGUFFile
from xlaserve.models.gguf_reader import read_header

Type = gguf.GGMLQuantizationType


def expect_refusal(file, *words):
    started = time.monotonic()
    with pytest.raises(CheckpointError) as refusal:
        GGUFFile(file)
    assert time.monotonic() - started < 20
    for word in (file, *words):
        assert str(word) in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["llama-wide-heads", "llama-tied-biases", "mistral", "qwen2", "qwen3", "gemma3-for-gguf"]
)
def test_a_converted_model_comes_back(name, tmp_path):
    config, tensors = tiny_models.read(name)
    write_model(tmp_path / "model.gguf", config, tensors)
    checkpoint = GGUFFile(tmp_path / "model.gguf")
    assert checkpoint.tensors.keys() == tensors.keys()
    for tensor_name, tensor in tensors.items():
        assert checkpoint.tensors[tensor_name].shape == tensor.shape
        np.testing.assert_allclose(checkpoint.read(tensor_name), tensor, atol=1e-6)  # 1 + w - 1 rounds
    said = {"dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}  # by the writer
    if name == "mistral":
        said["model_type"] = "llama"  # the format does not tell them apart
    theirs, ours = parse_config(config | said, "saved"), parse_config(checkpoint.config, "gguf")
    assert theirs.rms_norm_eps == pytest.approx(ours.rms_norm_eps)
    assert {**vars(theirs), "rms_norm_eps": 0} == {**vars(ours), "rms_norm_eps": 0}


def test_norms_of_gemma3_lose_their_one_before_they_are_rounded(tmp_path):
    config, tensors = tiny_models.read("gemma3-for-gguf")
    tensors["model.norm.weight"][:] = 0.0123  # 1.0123 in bfloat16 has three digits
    write_model(tmp_path / "model.gguf", config, tensors)
    norm = GGUFFile(tmp_path / "model.gguf").read("model.norm.weight", np.dtype(ml_dtypes.bfloat16))
    np.testing.assert_allclose(norm.astype(np.float32), 0.0123, rtol=2**-8)


def test_llama_permutation_round_trip(tmp_path):
    rows = np.arange(128, dtype=np.float32)[:, None] + np.zeros((1, 64), np.float32)
    write_minimal(tmp_path / "m.gguf", "blk.0.attn_q.weight", llama_permute(rows, 4))
    with pytest.raises(CheckpointError, match=r"token_embd\.weight"):
        GGUFFile(tmp_path / "m.gguf")
    write_model(tmp_path / "model.gguf", *tiny_models.read("llama"))
    checkpoint = GGUFFile(tmp_path / "model.gguf")
    stored = gguf.GGUFReader(tmp_path / "model.gguf")
    by_name = {tensor.name: tensor.data for tensor in stored.tensors}
    for theirs, ours, heads in (("attn_q", "q_proj", 6), ("attn_k", "k_proj", 2)):
        halves = checkpoint.read(f"model.layers.0.self_attn.{ours}.weight")
        assert not np.array_equal(halves, by_name[f"blk.0.{theirs}.weight"])
        np.testing.assert_array_equal(llama_permute(halves, heads), by_name[f"blk.0.{theirs}.weight"])


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0])
def test_quantised_values_are_those_of_the_gguf_package(kind, tmp_path):
    values = np.random.default_rng(0).standard_normal((70, 4096)).astype(np.float32)  # more than one piece
    packed = gguf.quantize(values, kind)
    checkpoint = GGUFFile(write_minimal(tmp_path / "m.gguf", values=packed, kind=kind))
    expected = gguf.dequantize(packed, kind)
    name = "model.embed_tokens.weight"
    assert checkpoint.tensors[name].dtype == kind.name
    assert checkpoint.tensors[name].shape == (70, 4096)
    np.testing.assert_array_equal(checkpoint.read(name).astype(np.float32), expected)
    np.testing.assert_array_equal(checkpoint.read(name, np.dtype(np.float16)), expected.astype(np.float16))
    assert np.abs(checkpoint.read(name).astype(np.float32) - values).max() < 0.6


def test_every_type_is_read_as_the_gguf_package_does_or_refused_by_name(tmp_path):
    generator = np.random.default_rng(0)
    readable = []
    for kind, (block_values, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        packed = generator.integers(0, 60, (3, 512 // block_values * block_bytes), np.uint8)
        file = write_minimal(tmp_path / f"{kind.name}.gguf", values=packed, kind=kind)
        try:
            expected = gguf.dequantize(packed, kind)
        except NotImplementedError:
            expect_refusal(file, "token_embd.weight", kind.name)
            continue
        found = GGUFFile(file).read("model.embed_tokens.weight", np.dtype(np.float32))
        np.testing.assert_array_equal(found, expected)
        readable.append(kind.name)
    assert {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "Q8_0", "MXFP4"} <= set(readable)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Type.F32, "float32"), (Type.F16, "float16"), (Type.BF16, "bfloat16"), (Type.Q8_0, "bfloat16")],
)
def test_the_dtype_that_most_matrices_call_for(kind, dtype, tmp_path):
    """By their bytes; vectors do not count."""

    def add(writer):
        writer.add_tensor("blk.0.attn_q.weight", np.zeros((8, 64), np.float32))
        writer.add_tensor("output_norm.weight", np.zeros(8192, np.float32))

    values = gguf.quantize(np.zeros((64, 64), np.float32), kind)
    file = write_minimal(tmp_path / "model.gguf", values=values, kind=kind, extra=[add])
    assert GGUFFile(file).config["dtype"] == dtype


def test_metadata_of_every_kind(tmp_path):
    def add(writer):
        writer.add_array("tokenizer.ggml.scores", [0.5, -1.5])
        writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
        writer.add_array("tokenizer.ggml.merges", ["Ġ a", "é ü"])
        writer.add_bool("tokenizer.ggml.add_bos_token", False)
        writer.add_string("tokenizer.chat_template", "{{ messages }}")
        writer.add_int64("test.negative", -(2**40))
        writer.add_uint8("test.small", 200)
        writer.add_float64("test.float", 0.1)
        writer.add_array("general.tags", ["a"])
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 20)

    write_model(tmp_path / "model.gguf", *tiny_models.read("llama"), extra=[add])
    checkpoint = GGUFFile(tmp_path / "model.gguf")
    metadata = checkpoint.gguf_metadata
    assert metadata["tokenizer.ggml.tokens"] == [f"token {i}" for i in range(256)]
    assert metadata["tokenizer.ggml.merges"] == ["Ġ a", "é ü"]
    assert metadata["tokenizer.ggml.scores"].tolist() == [0.5, -1.5]
    assert metadata["tokenizer.ggml.token_type"].tolist() == [1, 2, 3]
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert (metadata["test.negative"], metadata["test.small"], metadata["test.float"]) == (-(2**40), 200, 0.1)
    assert checkpoint.generation_config == {"temperature": 0.5, "top_k": 20}
    assert (checkpoint.config["bos_token_id"], checkpoint.config["eos_token_id"]) == (1, 2)


def test_a_large_vocabulary_opens_fast(tmp_path):
    tokens = [f"token {i}" for i in range(262_144)]
    write_minimal(tmp_path / "m.gguf", **{"tokenizer.ggml.tokens": tokens})
    started = time.thread_time()  # what else the machine does is not counted
    checkpoint = GGUFFile(tmp_path / "m.gguf")
    assert time.thread_time() - started < 2
    assert checkpoint.gguf_metadata["tokenizer.ggml.tokens"] == tokens


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {"rope_theta": 1e4}),
        ({"rope.freq_base": 5e5}, {"rope_theta": 5e5}),
        ({"rope.scale_linear": 4.0}, {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0},
        ),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 16,
                "rope.scaling.yarn_attn_factor": 1.5,
                "rope.scaling.yarn_beta_fast": 16.0,
            },
            {
                "rope_theta": 1e4,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "attention_factor": 1.5,
                "beta_fast": 16.0,
            },
        ),
        ({"rope.scaling.type": "none"}, {"rope_theta": 1e4}),
    ],
)
def test_rope_scaling(metadata, expected, tmp_path):
    config = GGUFFile(write_minimal(tmp_path / "m.gguf", architecture="qwen3", **metadata)).config
    assert config["rope_parameters"] == expected
    parse_config(config, "gguf")


def llama3_divisors(factor, original=8192, low=1.0, high=4.0, head_dim=128):
    """As llama.cpp's converter computes them."""
    divisors = []
    for frequency in 5e5 ** -(np.arange(0, head_dim, 2) / head_dim):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def write_with_rope_freqs(file, divisors):
    def add(writer):
        writer.add_tensor("rope_freqs.weight", divisors)

    keys = {"attention.key_length": 128, "attention.value_length": 128, "rope.freq_base": 5e5}
    return write_minimal(file, extra=[add], **keys)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_its_divisors(factor, tmp_path):
    checkpoint = GGUFFile(write_with_rope_freqs(tmp_path / "m.gguf", llama3_divisors(factor)))
    rope = parse_config(checkpoint.config, "gguf").rope
    assert (rope.rope_type, rope.theta, rope.factor) == ("llama3", 5e5, pytest.approx(factor))
    assert (rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings) == (1.0, 4.0, 8192)
    assert "rope_freqs.weight" not in checkpoint.tensors


@pytest.mark.parametrize(
    "divisors",
    [
        llama3_divisors(8.0, original=4096),
        llama3_divisors(8.0, high=8.0),
        np.ones(3, np.float32),
        np.zeros(64, np.float32),
    ],
    ids=["original", "high", "shape", "zeros"],
)
def test_other_divisors_are_refused(divisors, tmp_path):
    expect_refusal(write_with_rope_freqs(tmp_path / "m.gguf", divisors), "rope_freqs.weight", "llama3")


def test_gemma3_defaults_that_the_file_leaves_out(tmp_path):
    keys = {"architecture": "gemma3", "attention.sliding_window": 8, "attention.key_length": 32}
    config = GGUFFile(write_minimal(tmp_path / "a.gguf", **keys, block_count=12)).config
    assert config["layer_types"] == (["sliding_attention"] * 5 + ["full_attention"]) * 2
    assert config["query_pre_attn_scalar"] == 32
    assert config["rope_parameters"]["sliding_attention"] == {"rope_theta": 10_000.0}
    assert config["rope_parameters"]["full_attention"] == {"rope_theta": 1_000_000.0}
    largest = GGUFFile(write_minimal(tmp_path / "b.gguf", **keys, block_count=62)).config
    assert largest["query_pre_attn_scalar"] == 64 // 4
    stated = {"rope.freq_base_swa": 5000.0, "attention.sliding_window_pattern": [True, False], "block_count": 2}
    config = GGUFFile(write_minimal(tmp_path / "c.gguf", **keys | stated)).config
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["rope_parameters"]["sliding_attention"] == {"rope_theta": 5000.0}
    no_window = {"attention.sliding_window": None, "block_count": 2}
    config = GGUFFile(write_minimal(tmp_path / "d.gguf", **keys | no_window)).config
    assert config["layer_types"] == ["full_attention"] * 2


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"architecture": "mamba"}, ("general.architecture is 'mamba'", "llama, qwen2, qwen3, gemma3")),
        ({"embedding_length": None}, ("llama.embedding_length is missing",)),
        ({"expert_count": 8}, ("llama.expert_count is 8",)),
        ({"attention.value_length": 8}, ("attention.value_length is 8", "16")),
        ({"rope.dimension_count": 8}, ("rope.dimension_count is 8", "16")),
        ({"attention.head_count": [4, 4]}, ("attention.head_count",)),
        ({"rope.scaling.type": "longrope"}, ("rope.scaling.type is 'longrope'", "yarn")),
        ({"split.count": 3}, ("one of 3 parts", "join")),
        ({"general.alignment": 48}, ("general.alignment is 48",)),
        ({"name": "blk.0.ssm_in.weight"}, ("token_embd.weight",)),
    ],
)
def test_a_file_for_another_kind_of_model_is_refused(metadata, words, tmp_path):
    alignment = metadata.get("general.alignment")
    file = write_minimal(tmp_path / "m.gguf", **{k: v for k, v in metadata.items() if k != "general.alignment"})
    if alignment:
        file = write_raw(
            tmp_path / "raw.gguf", [raw_string("general.alignment") + struct.pack("<II", 4, alignment)], []
        )
    expect_refusal(file, *words)


def test_an_unknown_tensor_is_named(tmp_path):
    write_minimal(
        tmp_path / "m.gguf",
        extra=[lambda writer: writer.add_tensor("blk.0.ssm_in.weight", np.ones(2, np.float32))],
    )
    expect_refusal(tmp_path / "m.gguf", "blk.0.ssm_in.weight", "no llama model")


def raw_string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def raw_tensor(name, dims=(8,), kind=0, offset=0):
    return raw_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def write_raw(file, metadata, tensors, *, version=3, num_tensors=None, num_values=None, data=b"\0" * 64):
    counts = struct.pack(
        "<QQ",
        len(tensors) if num_tensors is None else num_tensors,
        len(metadata) if num_values is None else num_values,
    )
    head = b"GGUF" + struct.pack("<I", version) + counts + b"".join([*metadata, *tensors])
    file.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return file


KEY = raw_string("key")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"version": 1}, ("version 1",)),
        ({"version": 3 << 24}, ("big-endian",)),
        ({"num_values": 2**60}, (f"{2**60} metadata values",)),
        ({"num_tensors": 2**60}, (f"{2**60} tensors",)),
        ({"num_values": 3}, ("metadata key is ''",)),
        ({"num_values": 8}, ("says it has",)),
        ({"metadata": [struct.pack("<Q", 2**60)]}, ("cut short or damaged",)),
        ({"metadata": [KEY + struct.pack("<I", 99)]}, ("key", "value type 99")),
        ({"metadata": [KEY + struct.pack("<IQ", 8, 2**63)]}, ("cut short or damaged",)),
        ({"metadata": [KEY + struct.pack("<IIQ", 9, 6, 2**61)]}, ("cut short or damaged",)),
        ({"metadata": [KEY + struct.pack("<IIQ", 9, 8, 2**61)]}, ("cut short or damaged",)),
        ({"metadata": [KEY + struct.pack("<IIQ", 9, 9, 1)]}, ("key", "value type 9")),
        ({"metadata": [KEY + struct.pack("<IB", 0, 1)] * 2}, ("key key twice",)),
        ({"metadata": [raw_string(b"\xff\xfe") + struct.pack("<IB", 0, 1)]}, ("metadata key is",)),
        ({"tensors": [raw_tensor("t", kind=999)]}, ("t: has the unknown tensor type 999",)),
        ({"tensors": [raw_tensor("t", dims=(1,) * 5)]}, ("t: has 5 dimensions",)),
        ({"tensors": [raw_tensor("t", dims=())]}, ("t: has 0 dimensions",)),
        ({"tensors": [raw_tensor("t", dims=(33,), kind=2)]}, ("t: has rows of 33", "Q4_0", "32")),
        ({"tensors": [raw_tensor("t", dims=(17,))]}, ("t ends at", "cut short", "download")),
        ({"tensors": [raw_tensor("t", dims=(2**40, 2**40))]}, ("t ends at",)),
        ({"tensors": [raw_tensor("t", offset=2**62)]}, ("t ends at",)),
        ({"tensors": [raw_tensor("t")] * 2}, ("two tensors of one name",)),
    ],
)
def test_a_damaged_header(content, words, tmp_path):
    arguments = {"metadata": [], "tensors": []} | content
    expect_refusal(
        write_raw(tmp_path / "m.gguf", arguments.pop("metadata"), arguments.pop("tensors"), **arguments), *words
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ("b''", "download")),
        (b"GGUF\3\0\0\0", ("cut short: 8 bytes", "download")),
        (b"PK\3\4" + b"\0" * 40, ("starts with b'PK",)),
        (b"version https://git-lfs.github.com/spec/v1\n", ("Git LFS pointer",)),
    ],
)
def test_no_gguf_file_at_all(content, words, tmp_path):
    (tmp_path / "m.gguf").write_bytes(content)
    expect_refusal(tmp_path / "m.gguf", *words)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    write_model(tmp_path / "whole.gguf", *tiny_models.read("llama"))
    whole = (tmp_path / "whole.gguf").read_bytes()
    header_end = min(tensor.offset for tensor in read_header(tmp_path / "whole.gguf").tensors.values())
    for size in [*range(0, header_end, 211), header_end, header_end + 1, len(whole) - 64]:
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        expect_refusal(tmp_path / "cut.gguf")
