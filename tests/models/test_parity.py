"""Every family's forward pass against transformers with torch, float32: logits at every position, ragged batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.paged_attention import make_layout, slot_mapping

from tests import tiny_models
from tests.kernels.ragged import full_of_nan
from tests.models.gguf_writing import write_model
from tests.tiny_models import AROUND_THE_WINDOW, FAR_BEYOND, LENGTHS
from xlaserve.layers.attention import AttentionMetadata
from xlaserve.models.config import parse_config
from xlaserve.models.forward_batch import ForwardBatch, attention_plan
from xlaserve.models.gguf_file import GGUFFile
from xlaserve.models.kv_spec import kv_specs
from xlaserve.models.loader import load_params, untie_differing_head
from xlaserve.models.registry import FAMILIES, compute_logits, head_weight
from xlaserve.models.safetensors_folder import SafetensorsFolder

BLOCK = 16


def load(name, dtype=np.float32, quantization=None):
    return load_checkpoint(SafetensorsFolder(tiny_models.folder(name)), dtype, quantization)


def load_checkpoint(checkpoint, dtype=np.float32, quantization=None):
    config = untie_differing_head(parse_config(checkpoint.config, checkpoint.where), checkpoint)
    specs = FAMILIES[config.family].param_specs(config)
    if quantization is not None:
        specs = quantization.stored(specs, np.dtype(dtype))
    place = lambda array, spec: jnp.asarray(array)  # noqa: E731
    params = load_params(specs, checkpoint, dtype=np.dtype(dtype), place=place, on_progress=lambda *_: None)
    return config, params


def expect_equal_logits(name, lengths, config, params):
    found = forward_logits(config, params, tiny_models.prompts(lengths))
    for logits, expected in zip(found, tiny_models.logits(name, lengths), strict=True):
        np.testing.assert_allclose(logits, expected, atol=1e-4)


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


@pytest.mark.parametrize("name", [*tiny_models.FOLDERS, *tiny_models.ROPES, "gemma3-softcap"])
def test_logits_equal_transformers(name):
    expect_equal_logits(name, LENGTHS, *load(name))


@pytest.mark.parametrize("base", tiny_models.WITH_HEADS)
@pytest.mark.parametrize("head", ["equal", "different"])
def test_a_head_stored_beside_tied_embeddings(base, head):
    """One that equals them changes nothing; another is used, as transformers does."""
    config, params = load(name := f"{base}-{head}-head")
    assert config.tie_word_embeddings == (head == "equal")
    expect_equal_logits(name, LENGTHS, config, params)


@pytest.mark.parametrize("how", ["null", "absent"])
@pytest.mark.parametrize("base", ["llama", "llama-mqa"])
def test_an_unsaid_head_size(base, how):
    expect_equal_logits(name := f"{base}-{how}-head-size", LENGTHS, *load(name))


@pytest.mark.parametrize("name", tiny_models.ROPES)
def test_scaled_rope_far_beyond_the_original_context(name):
    expect_equal_logits(name, FAR_BEYOND, *load(name))


@pytest.mark.parametrize("name", ["mistral-window", "mistral", "qwen2", "qwen2-window", "gemma3"])
def test_around_the_sliding_window(name):
    expect_equal_logits(name, AROUND_THE_WINDOW, *load(name))


@pytest.mark.parametrize("name", tiny_models.WINDOWED)
def test_which_layers_have_the_window(name):
    expect_equal_logits(name, AROUND_THE_WINDOW, *load(name))


@pytest.mark.parametrize("name", ["llama-wide-heads", "qwen2", "qwen3", "gemma3-for-gguf"])
def test_a_gguf_file_gives_the_logits_it_was_made_from(name, tmp_path):
    """q and k permuted in Llama's, Gemma's norms stored with their 1."""
    write_model(tmp_path / "model.gguf", *tiny_models.read(name))
    expect_equal_logits(name, LENGTHS, *load_checkpoint(GGUFFile(tmp_path / "model.gguf")))


@pytest.mark.parametrize("name", tiny_models.BFLOAT16)
def test_bfloat16_errs_no_more_than_torch_in_bfloat16(name):
    logits = np.concatenate(forward_logits(*load(name, jnp.bfloat16), tiny_models.prompts(LENGTHS), jnp.bfloat16))
    median, largest, right = tiny_models.errors(logits, np.concatenate(tiny_models.logits(name, LENGTHS)))
    peer_median, peer_largest, peer_right = tiny_models.load(tiny_models.BFLOAT16_FILE)[name]
    assert median <= 1.5 * peer_median
    assert largest <= 2 * peer_largest
    assert right >= peer_right - 0.05  # near ties fall either way
    assert right > 0.8
