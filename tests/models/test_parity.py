"""Every family's forward pass against transformers with torch, float32: logits at every position, ragged batches."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xlaserve_kernels.paged_attention import make_layout, slot_mapping

from tests import tiny_models
from xlaserve.layers.attention import AttentionMetadata
from xlaserve.models.config import parse_config
from xlaserve.models.forward_batch import ForwardBatch, attention_plan
from xlaserve.models.kv_spec import kv_specs
from xlaserve.models.loader import load_params
from xlaserve.models.registry import FAMILIES, compute_logits, head_weight
from xlaserve.models.safetensors_folder import SafetensorsFolder

BLOCK = 16
LENGTHS = (1, 15, 16, 17, 40)


def load(name, dtype=np.float32):
    folder, model = tiny_models.make(name)
    checkpoint = SafetensorsFolder(folder)
    config = parse_config(checkpoint.config, str(folder))
    specs = FAMILIES[config.family].param_specs(config)
    place = lambda array, spec: jnp.asarray(array)  # noqa: E731
    params = load_params(specs, checkpoint, dtype=np.dtype(dtype), place=place, on_progress=lambda *_: None)
    return model, config, params


def forward_logits(config, params, prompts, dtype=jnp.float32):
    """Logits of every token of `prompts`, computed in one ragged batch over shuffled blocks; NaN in unused slots."""
    rows, width = len(prompts), 1 + max(map(len, prompts)) // BLOCK
    total = sum(map(len, prompts))
    tables = np.random.default_rng(0).permutation(rows * width).reshape(rows, width).astype(np.int32) + 1
    lens = np.array([len(p) for p in prompts], np.int32)
    starts = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    row = np.repeat(np.arange(rows), lens)
    positions = np.concatenate([np.arange(n) for n in lens]).astype(np.int32)
    layout = make_layout("xla", num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, block_size=BLOCK)
    groups = len(kv_specs(config))
    plan = attention_plan(config, "xla", (layout,) * groups)
    pools = tuple(jnp.full(layout.shape(rows * width + 1), np.nan, dtype) for _ in range(config.num_layers))
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
    model, config, params = load(name)
    prompts = prompts_of(LENGTHS)
    for prompt, logits in zip(prompts, forward_logits(config, params, prompts), strict=True):
        np.testing.assert_allclose(logits, tiny_models.reference_logits(model, prompt), atol=1e-4)


@pytest.mark.parametrize(
    "name", ["llama-linear", "llama-llama3", "llama-yarn", "llama-yarn-factor", "llama-yarn-mscale"]
)
def test_scaled_rope_far_beyond_the_original_context(name):
    model, config, params = load(name)
    (prompt,) = prompts_of([251])
    (logits,) = forward_logits(config, params, [prompt])
    np.testing.assert_allclose(logits, tiny_models.reference_logits(model, prompt), atol=1e-4)


@pytest.mark.parametrize("length", [7, 8, 9, 40])
@pytest.mark.parametrize("name", ["mistral-window", "qwen2-window", "gemma3"])
def test_around_the_sliding_window(name, length):
    model, config, params = load(name)
    (prompt,) = prompts_of([length])
    (logits,) = forward_logits(config, params, [prompt])
    np.testing.assert_allclose(logits, tiny_models.reference_logits(model, prompt), atol=1e-4)


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
