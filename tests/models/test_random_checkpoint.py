"""Random weights: the same for a seed and a name, whatever else is read and in whatever order."""

import json

import ml_dtypes
import numpy as np
import pytest

from xlaserve.errors import CheckpointError
from xlaserve.layers.params import ArraySpec
from xlaserve.models.config import parse_config
from xlaserve.models.loader import load_params
from xlaserve.models.random_checkpoint import RandomCheckpoint
from xlaserve.models.registry import FAMILIES

SPECS = {
    "a": ArraySpec((1500, 1000), (None, None)),
    "b": ArraySpec((1500, 1000), (None, None)),
    "bias": ArraySpec((7,), (None,), "zeros"),
    "norm": ArraySpec((7,), (None,), "ones"),
}
CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def config_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "config.json"


def test_each_tensor_depends_on_seed_and_name_alone(config_file):
    first = RandomCheckpoint(config_file, seed=1).with_specs(SPECS)
    again = RandomCheckpoint(config_file, seed=1).with_specs({"b": SPECS["b"]})
    other = RandomCheckpoint(config_file, seed=2).with_specs(SPECS)
    a, b = first.read("a"), first.read("b")
    np.testing.assert_array_equal(b, again.read("b"))
    np.testing.assert_array_equal(a, first.read("a"))
    assert not np.array_equal(a, b)
    assert not np.array_equal(a, other.read("a"))
    np.testing.assert_array_equal(first.read("a", np.dtype(ml_dtypes.bfloat16)), a.astype(ml_dtypes.bfloat16))


def test_each_init_is_what_its_name_says(config_file):
    checkpoint = RandomCheckpoint(config_file, seed=0).with_specs(SPECS)
    normal = checkpoint.read("a")
    assert normal.dtype == np.float32
    assert abs(normal.mean()) < 1e-4
    assert normal.std() == pytest.approx(0.02, rel=1e-2)
    assert checkpoint.read("bias").tolist() == [0.0] * 7
    assert checkpoint.read("norm", np.dtype(np.float16)).tolist() == [1.0] * 7


def test_loads_like_any_checkpoint(config_file):
    checkpoint = RandomCheckpoint(config_file, seed=0)
    config = parse_config(checkpoint.config, checkpoint.where)
    specs = FAMILIES[config.family].param_specs(config)
    arguments = {"dtype": np.dtype(np.float32), "place": lambda array, spec: array, "on_progress": lambda *_: None}
    params = load_params(specs, checkpoint, **arguments)
    assert params.model.embed_tokens.weight.shape == (64, 32)
    np.testing.assert_array_equal(params.model.norm.weight, np.ones(32))


def test_the_folder_counts_only_with_a_tokenizer_in_it(config_file):
    assert RandomCheckpoint(config_file, seed=0).folder is None
    (config_file.parent / "tokenizer.json").write_text("{}")
    for path in (config_file, config_file.parent):
        assert RandomCheckpoint(path, seed=0).folder == config_file.parent


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.json: no such file"):
        RandomCheckpoint(tmp_path / "none.json", seed=0)
