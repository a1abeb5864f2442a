"""Attention shared by two devices, in a process of its own: here there is only one."""

import os
import subprocess
import sys

SCRIPT = """
import jax, numpy as np
from jax.sharding import Mesh
from xlaserve_kernels.paged_attention import KVPool, make_layout
from xlaserve.layers.attention import AttentionMetadata, AttentionOptions, attention_spec, self_attention
from xlaserve.layers.norm import rms_norm
from xlaserve.layers.params import map_specs
from xlaserve.layers.rotary import RopeConfig, rotary_table
from xlaserve.sharding import MESH_AXES, sharding_of

rng = np.random.default_rng(0)
tokens, hidden, heads, kv_heads, head_dim, block, num_blocks = 7, 32, 4, 2, 16, 4, 9
array = lambda *shape: rng.normal(size=shape).astype(np.float32)
spec = attention_spec(hidden, heads, kv_heads, head_dim)
weights = map_specs(lambda _, spec: array(*spec.shape), spec)
x, pools = array(tokens, hidden), array(2, num_blocks, 2, 1, block, head_dim)  # one pool per kv head
metadata = AttentionMetadata(  # a chunk of 5 behind 3 earlier tokens, a decode at 9, an idle row
    block_tables=np.array([[1, 2, 0], [3, 4, 5], [0, 0, 0]], np.int32),
    slot_mapping=np.array([7, 8, 9, 10, 11, 20, 0], np.int32),
    query_start_loc=np.array([0, 5, 6, 6], np.int32), seq_lens=np.array([8, 9, 0], np.int32))
rotary = rotary_table(np.arange(tokens, dtype=np.int32), RopeConfig(10000.0), head_dim)

def run(weights, pool, layout, mesh):
    options = AttentionOptions(heads, kv_heads, head_dim, 0.25, "xla", layout, mesh=mesh)
    step = jax.jit(lambda *a: self_attention(*a, options, lambda x, p: rms_norm(x, p, 1e-6)))
    out, pool = step(x, weights, KVPool(pool, None), rotary, metadata)
    return np.asarray(out), np.asarray(pool.pages)

def layout(kv_heads):
    return make_layout("xla", num_kv_heads=kv_heads, head_dim=head_dim, block_size=block, dtype="float32")

alone, pool = run(weights, np.concatenate(list(pools), axis=2), layout(2), None)
mesh = Mesh(np.array(jax.devices()).reshape(1, 2), MESH_AXES)
sharded = jax.tree.map(lambda w, s: jax.device_put(w, sharding_of(mesh, s.axes)), weights, spec,
                       is_leaf=lambda leaf: hasattr(leaf, "axes"))
shared, both = run(sharded, pools.reshape(2 * num_blocks, 2, 1, block, head_dim), layout(1), mesh)
# As exact as sums of the largest terms can be.
np.testing.assert_allclose(shared[:6], alone[:6], atol=1e-6 * np.abs(alone).max())
np.testing.assert_allclose(np.concatenate(np.split(both, 2), axis=2), pool, atol=1e-6 * np.abs(pool).max())
print(len(jax.devices()), float(np.abs(alone).max()) > 0.1)
"""


def test_two_devices_compute_what_one_does():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    shown = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert (shown.stdout.split(), shown.returncode) == (["2", "True"], 0), shown.stderr
