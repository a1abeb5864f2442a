"""Every family's forward pass against transformers with torch, float32: logits at every position, ragged batches."""

import copy
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers as hf
from safetensors.numpy import load_file, save_file
from xlaserve_kernels.paged_attention import make_layout, slot_mapping

from tests import tiny_models
from tests.kernels.ragged import full_of_nan
from tests.models.gguf_writing import write_model
from xlaserve.layers.attention import AttentionMetadata
from xlaserve.models.config import parse_config
from xlaserve.models.forward_batch import ForwardBatch, attention_plan
from xlaserve.models.gguf_file import GGUFFile
from xlaserve.models.kv_spec import kv_specs
from xlaserve.models.loader import load_params, untie_differing_head
from xlaserve.models.registry import FAMILIES, compute_logits, head_weight
from xlaserve.models.safetensors_folder import SafetensorsFolder

BLOCK = 16
LENGTHS = (1, 15, 16, 17, 40)


def load(name, dtype=np.float32):
    folder, model = tiny_models.make(name)
    return model, *load_checkpoint(SafetensorsFolder(folder), dtype)


def load_checkpoint(checkpoint, dtype=np.float32):
    config = untie_differing_head(parse_config(checkpoint.config, checkpoint.where), checkpoint)
    specs = FAMILIES[config.family].param_specs(config)
    place = lambda array, spec: jnp.asarray(array)  # noqa: E731
    params = load_params(specs, checkpoint, dtype=np.dtype(dtype), place=place, on_progress=lambda *_: None)
    return config, params


def changed(name, folder, tensors=None, **keys):
    """(the model as transformers loads it again, our config and params) after changes to the saved folder.

    A key of None is removed from config.json, one of "null" becomes null.
    """
    shutil.copytree(tiny_models.make(name)[0], folder)
    config = json.loads((folder / "config.json").read_text()) | keys
    config = {key: None if value == "null" else value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        file = folder / "model.safetensors"
        save_file(tensors(load_file(file)), file, metadata={"format": "pt"})
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()
    return model, *load_checkpoint(SafetensorsFolder(folder))


def expect_equal_logits(model, config, params, prompts):
    for prompt, logits in zip(prompts, forward_logits(config, params, prompts), strict=True):
        np.testing.assert_allclose(logits, tiny_models.reference_logits(model, prompt), atol=1e-4)


def forward_logits(config, params, prompts, dtype=jnp.float32):
    """Logits of every token of `prompts`, computed in one ragged batch over shuffled blocks; NaN in unused slots."""
    rows, width = len(prompts), 1 + max(map(len, prompts)) // BLOCK
    total = sum(map(len, prompts))
    tables = np.random.default_rng(0).permutation(rows * width).reshape(rows, width).astype(np.int32) + 1
    lens = np.array([len(p) for p in prompts], np.int32)
    starts = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    row = np.repeat(np.arange(rows), lens)
    positions = np.concatenate([np.arange(n) for n in lens]).astype(np.int32)
    layout = make_layout(
        "xla", num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, block_size=BLOCK, dtype=dtype
    )
    groups = len(kv_specs(config))
    plan = attention_plan(config, "xla", (layout,) * groups)
    pools = (full_of_nan(layout, rows * width + 1),) * config.num_layers
    slots = slot_mapping(jnp.asarray(tables), row, jnp.asarray(positions), np.ones(total, bool), BLOCK)
    metadata = AttentionMetadata(jnp.asarray(tables), slots, jnp.asarray(starts), jnp.asarray(lens))
    batch = ForwardBatch(
        jnp.asarray(np.concatenate(prompts), jnp.int32), jnp.asarray(positions), jnp.arange(total), (metadata,) * groups
    )
    logits = all_logits(params, config, plan, pools, batch)
    return np.split(np.asarray(logits), starts[1:-1])


@functools.partial(jax.jit, static_argnames=("config", "plan"))
def all_logits(params, config, plan, pools, batch):
    hidden, _ = FAMILIES[config.family].forward(params, config, plan, pools, batch)
    return compute_logits(head_weight(params), config, hidden)


def prompts_of(lengths):
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, n).tolist() for n in lengths]


@pytest.mark.parametrize("name", tiny_models.CONFIGS)
def test_logits_equal_transformers(name):
    expect_equal_logits(*load(name), prompts_of(LENGTHS))


@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "gemma3"])
@pytest.mark.parametrize("scale", [1.0, 1.5], ids=["equal", "different"])
def test_a_head_stored_beside_tied_embeddings(name, scale, tmp_path):
    """One that equals them changes nothing; another is used, as transformers does."""

    def add_head(tensors):
        return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] * np.float32(scale)}

    model, config, params = changed(name, tmp_path / "model", add_head, tie_word_embeddings=True)
    assert config.tie_word_embeddings == (scale == 1.0)
    expect_equal_logits(model, config, params, prompts_of(LENGTHS))


@pytest.mark.parametrize("head_dim", [None, "null"])
@pytest.mark.parametrize("name", ["llama", "llama-mqa"])
def test_an_unsaid_head_size(name, head_dim, tmp_path):
    expect_equal_logits(*changed(name, tmp_path / "model", head_dim=head_dim), prompts_of(LENGTHS))


@pytest.mark.parametrize(
    "name", ["llama-linear", "llama-llama3", "llama-yarn", "llama-yarn-factor", "llama-yarn-mscale"]
)
def test_scaled_rope_far_beyond_the_original_context(name):
    expect_equal_logits(*load(name), prompts_of([251]))


AROUND_THE_WINDOW = (7, 8, 9, 40)


@pytest.mark.parametrize("name", ["mistral-window", "mistral", "qwen2", "qwen2-window", "gemma3"])
def test_around_the_sliding_window(name):
    expect_equal_logits(*load(name), prompts_of(AROUND_THE_WINDOW))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("qwen2-window", {"layer_types": ["full_attention"] * 3}),
        ("gemma3", {"layer_types": ["full_attention"] * 3}),
        ("gemma3", {"layer_types": ["sliding_attention"] * 3}),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 2}),
        ("mistral-window", {"sliding_window": "null"}),
    ],
    ids=str,
)
def test_which_layers_have_the_window(name, keys, tmp_path):
    expect_equal_logits(*changed(name, tmp_path / "model", **keys), prompts_of(AROUND_THE_WINDOW))


@pytest.mark.parametrize("name", ["llama-wide-heads", "qwen2", "qwen3", "gemma3-for-gguf"])
def test_a_gguf_file_gives_the_logits_it_was_made_from(name, tmp_path):
    """q and k permuted in Llama's, Gemma's norms stored with their 1."""
    _, model = tiny_models.make(name)
    write_model(tmp_path / "model.gguf", model)
    expect_equal_logits(model, *load_checkpoint(GGUFFile(tmp_path / "model.gguf")), prompts_of(LENGTHS))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_bfloat16_errs_no_more_than_torch_in_bfloat16(name):
    model, config, params = load(name, jnp.bfloat16)
    prompts = prompts_of(LENGTHS)
    logits = np.concatenate(forward_logits(config, params, prompts, jnp.bfloat16))
    reference = np.concatenate([tiny_models.reference_logits(model, prompt) for prompt in prompts])
    in_bfloat16 = copy.deepcopy(model).bfloat16()
    peer = np.concatenate([tiny_models.reference_logits(in_bfloat16, prompt) for prompt in prompts])
    error, peer_error = (np.abs(x - reference).max(axis=-1) for x in (logits, peer))
    assert np.median(error) <= 1.5 * np.median(peer_error)
    assert error.max() <= 2 * peer_error.max()
    right, peer_right = ((x.argmax(-1) == reference.argmax(-1)).mean() for x in (logits, peer))
    assert right >= peer_right - 0.05  # near ties fall either way
    assert right > 0.8
