"""config.json against transformers' own reading of it, and what is refused."""

import json

import pytest
import transformers as hf

from xlaserve.errors import CheckpointError
from xlaserve.models.config import parse_config

CLASSES = {
    "llama": hf.LlamaConfig,
    "mistral": hf.MistralConfig,
    "qwen2": hf.Qwen2Config,
    "qwen3": hf.Qwen3Config,
    "gemma3_text": hf.Gemma3TextConfig,
}
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
LLAMA = SIZES | {"model_type": "llama", "num_key_value_heads": 2}
HF_LAYER_TYPES = {"full_attention": "full", "sliding_attention": "sliding"}


def parse(**keys):
    return parse_config(keys, "folder/config.json")


def saved(config):
    """The config as transformers 5 writes it to config.json."""
    return json.loads(config.to_json_string(use_diff=True))


def expect_refusal(*words, **keys):
    with pytest.raises(CheckpointError) as refusal:
        parse(**keys)
    for word in ("folder/config.json", *words):
        assert str(word) in str(refusal.value)


@pytest.mark.parametrize("model_type", CLASSES)
def test_absent_keys_mean_what_they_mean_in_transformers(model_type):
    heads = dict(SIZES, num_attention_heads=32, hidden_size=64 * 32, num_hidden_layers=30)
    reference = CLASSES[model_type](**heads)
    config = parse(model_type=model_type, **heads)
    assert config.num_kv_heads == reference.num_key_value_heads
    assert config.head_dim == getattr(reference, "head_dim", 64)
    assert config.rms_norm_eps == reference.rms_norm_eps
    assert config.tie_word_embeddings == reference.tie_word_embeddings
    assert config.max_position_embeddings == reference.max_position_embeddings
    assert config.hidden_act == getattr(reference, "hidden_activation", None) or reference.hidden_act
    assert config.eos_token_ids == ()  # a class default is no statement of the checkpoint
    if model_type == "gemma3_text":
        assert config.rope.theta == reference.rope_parameters["full_attention"]["rope_theta"]
        assert config.rope_sliding.theta == reference.rope_parameters["sliding_attention"]["rope_theta"]
        assert config.query_scale == reference.query_pre_attn_scalar**-0.5
        assert config.sliding_window == reference.sliding_window
        assert config.layer_types == tuple(HF_LAYER_TYPES[t] for t in reference.layer_types)
    else:
        assert config.rope == config.rope_sliding
        assert config.rope.theta == reference.rope_parameters["rope_theta"]
        assert config.query_scale == config.head_dim**-0.5


@pytest.mark.parametrize("model_type", CLASSES)
def test_a_config_saved_by_transformers_is_read_and_hashable(model_type):
    reference = CLASSES[model_type](**SIZES, num_key_value_heads=2, eos_token_id=[7, 9], bos_token_id=1)
    config = parse(**saved(reference))
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (256, 64, 96)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (4, 4, 2)
    assert config.eos_token_ids == (7, 9)
    assert config.bos_token_id == 1
    assert hash(config) == hash(parse(**saved(reference)))


@pytest.mark.parametrize(("keys", "expected"), [({"head_dim": 32}, 32), ({"head_dim": None}, 16), ({}, 16)])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_head_dim(keys, expected, num_kv_heads):
    config = parse(**LLAMA | {"num_key_value_heads": num_kv_heads} | keys)
    assert (config.head_dim, config.num_kv_heads) == (expected, num_kv_heads)


def test_absent_and_null_kv_heads():
    assert parse(**SIZES, model_type="llama").num_kv_heads == 4
    assert parse(**SIZES, model_type="qwen2", num_key_value_heads=None).num_kv_heads == 4


@pytest.mark.parametrize(
    ("model_type", "keys", "biases"),
    [
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("llama", {"mlp_bias": True}, (False, False, True)),
        ("mistral", {"attention_bias": True}, (False, False, False)),  # transformers' Mistral has no such key
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {"num_key_value_heads": 2}, (False, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases(model_type, keys, biases):
    config = parse(**SIZES, model_type=model_type, **{"num_key_value_heads": 4} | keys)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == biases


FULL, SLIDING = ("full",) * 4, ("sliding",) * 4


@pytest.mark.parametrize(
    ("model_type", "keys", "layer_types", "window"),
    [
        ("mistral", {"sliding_window": 8}, SLIDING, 8),
        ("mistral", {"sliding_window": None}, FULL, None),
        ("llama", {"sliding_window": 8}, FULL, None),  # transformers' Llama does not look at it
        ("qwen2", {"sliding_window": 8}, FULL, None),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 8}, FULL, None),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            ("full", *SLIDING[1:]),
            8,
        ),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8}, FULL, None),  # the first 28 layers are full
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention"] * 4},
            FULL,
            None,
        ),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 2}, ("sliding", "full") * 2, 8),
        (
            "gemma3_text",
            {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 2},
            ("full", "sliding") * 2,
            8,
        ),
        ("gemma3_text", {"sliding_window": 8, "layer_types": ["full_attention"] * 4}, FULL, None),
    ],
)
def test_sliding_windows(model_type, keys, layer_types, window):
    config = parse(**SIZES, model_type=model_type, num_key_value_heads=2, **keys)
    assert (config.layer_types, config.sliding_window) == (layer_types, window)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "scaling",
    [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}, YARN, LLAMA3],
    ids=lambda scaling: scaling["rope_type"],
)
def test_old_and_new_rope_keys_agree(scaling):
    old_name = {"type": scaling["rope_type"]} | {k: v for k, v in scaling.items() if k != "rope_type"}
    new = parse(**LLAMA, rope_parameters=scaling | {"rope_theta": 5e5})
    assert new == parse(**LLAMA, rope_theta=5e5, rope_scaling=scaling)
    assert new == parse(**LLAMA, rope_theta=5e5, rope_scaling=old_name)
    assert new.rope.theta == 5e5
    assert new.rope.rope_type == scaling["rope_type"]
    assert new.rope.factor == scaling.get("factor", 1.0)


def test_yarn_never_extends_an_extended_length():
    config = parse(**LLAMA, max_position_embeddings=256, rope_scaling=YARN | {"attention_factor": 1.5, "mscale": 2})
    assert config.max_position_embeddings == 256
    assert config.rope.original_max_position_embeddings == 64
    assert (config.rope.attention_factor, config.rope.mscale) == (1.5, 2.0)


@pytest.mark.parametrize("scaling", [YARN, LLAMA3], ids=["yarn", "llama3"])
def test_the_original_length_defaults_to_the_whole_one(scaling):
    scaling = {key: value for key, value in scaling.items() if key != "original_max_position_embeddings"}
    reference = hf.LlamaConfig(**SIZES, max_position_embeddings=128, rope_parameters=dict(scaling, rope_theta=1e4))
    config = parse(**LLAMA, max_position_embeddings=128, rope_scaling=scaling)
    assert config.rope.original_max_position_embeddings == 128
    assert config.rope.original_max_position_embeddings == reference.rope_parameters["original_max_position_embeddings"]


def test_a_null_yarn_factor_is_the_ratio_of_the_lengths():
    assert parse(**LLAMA, max_position_embeddings=256, rope_scaling=YARN | {"factor": None}).rope.factor == 4.0


def test_gemma3_has_a_rope_per_layer_type():
    gemma = dict(SIZES, model_type="gemma3_text", num_key_value_heads=2)
    old = parse(**gemma, rope_theta=2e6, rope_local_base_freq=3e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    new = parse(
        **gemma,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        },
    )
    assert old == new
    assert (new.rope.rope_type, new.rope.theta, new.rope_sliding.rope_type) == ("linear", 2e6, "default")


def test_gemma3_rope_keys_that_say_nothing_are_passed_over():
    """As transformers 5.0 to 5.2 save them: what the older keys left behind stands beside the two ropes."""
    gemma = dict(SIZES, model_type="gemma3_text", num_key_value_heads=2)
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    saved = parse(**gemma, rope_parameters=ropes | {"rope_theta": None, "rope_type": "default", "factor": None})
    assert saved == parse(**gemma, rope_parameters=ropes)
    expect_refusal("rope_parameters.rope_type is 'linear'", **gemma, rope_parameters=ropes | {"rope_type": "linear"})


def test_gemma3_scales_and_soft_caps():
    config = parse(**SIZES, model_type="gemma3_text", query_pre_attn_scalar=24, final_logit_softcapping=30.0)
    assert config.query_scale == 24**-0.5
    assert config.final_logit_softcap == 30.0


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [({"dtype": "bfloat16"}, "bfloat16"), ({"torch_dtype": "float16"}, "float16"), ({"dtype": None}, "float32")],
)
def test_the_checkpoint_dtype(keys, dtype):
    assert parse(**LLAMA, **keys).checkpoint_dtype == dtype


@pytest.mark.parametrize(("eos", "expected"), [(3, (3,)), ([3, 5], (3, 5)), (None, ())])
def test_eos_ids(eos, expected):
    assert parse(**LLAMA, eos_token_id=eos).eos_token_ids == expected


def test_the_architecture_stands_in_for_a_missing_model_type():
    keys = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert parse(**keys, architectures=["Qwen2ForCausalLM"]).qkv_bias
    expect_refusal("model_type is missing", "llama, mistral, qwen2", **keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "gpt2"}, ("model_type is 'gpt2'", "llama, mistral, qwen2, qwen3, gemma3_text")),
        ({"model_type": "gemma3", "text_config": {}}, ("only the text models",)),
        ({"architectures": ["LlamaForSequenceClassification"]}, ("architectures", "LlamaForCausalLM")),
        ({"hidden_size": None}, ("hidden_size is None", "integer >= 1")),
        ({"hidden_size": "64"}, ("hidden_size is '64'",)),
        ({"hidden_size": True}, ("hidden_size is True",)),
        ({"num_hidden_layers": 0}, ("num_hidden_layers is 0",)),
        ({"vocab_size": -1}, ("vocab_size is -1",)),
        ({"num_key_value_heads": 3}, ("num_key_value_heads is 3", "divisor of num_attention_heads, 4")),
        ({"hidden_size": 65}, ("head_dim is missing", "65")),
        ({"head_dim": 15}, ("head_dim is 15", "even")),
        ({"rms_norm_eps": 0}, ("rms_norm_eps is 0", "> 0")),
        ({"rms_norm_eps": float("nan")}, ("rms_norm_eps is nan",)),
        ({"hidden_act": "relu"}, ("hidden_act is 'relu'", "silu, gelu_pytorch_tanh")),
        ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings is 'yes'", "true or false")),
        ({"torch_dtype": "int8"}, ("torch_dtype is 'int8'", "bfloat16")),
        ({"eos_token_id": "</s>"}, ("eos_token_id is '</s>'",)),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, ("rope_scaling.rope_type is 'dynamic'", "yarn")),
        ({"rope_parameters": {"rope_type": "longrope"}}, ("rope_parameters.rope_type is 'longrope'", "yarn")),
        ({"rope_parameters": 3}, ("rope_parameters is 3", "mapping")),
        ({"rope_parameters": {"rope_type": "linear"}}, ("rope_parameters.factor is missing",)),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}}, ("high_freq_factor is 4.0", "more than")),
        ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor is 0.5",)),
        ({"rope_theta": -1}, ("rope_theta is -1",)),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, ("layer_types", "4 times")),
        ({"model_type": "qwen2", "layer_types": ["chunked_attention"] * 4}, ("layer_types", "sliding_attention")),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 4}, ("sliding_window is missing",)),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, ("use_bidirectional_attention",)),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, ("attn_logit_softcapping is 50.0", "null")),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}}, ("rope_parameters.rope_theta",)),
    ],
)
def test_what_cannot_be_served_is_refused_by_key(keys, words):
    expect_refusal(*words, **LLAMA | keys)
