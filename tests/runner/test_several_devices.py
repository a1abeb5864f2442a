"""Programs for two devices that share a model, against those for one; in a process that has two."""

import os
import subprocess
import sys

SCRIPT = """
import pickle
import numpy as np, jax
from tests.runner.test_model_runner import PROMPT, chunks_of, make_runner, reset, step
from xlaserve.runner.commands import CopyBlocks, RowTokens
from xlaserve.layers.quantized import Quantization
from xlaserve.runner.program_memory import tree_bytes

def trace(num_devices):
    runner = make_runner("llama", num_devices)
    found, num_tokens = [], len(PROMPT)
    reset(runner, 0), reset(runner, 1)
    for piece in chunks_of(0, PROMPT, 16):
        found.append(step(runner, piece, sampled=(0,)))
    for position in range(num_tokens, num_tokens + 4):
        found.append(step(runner, RowTokens(0, position, 1, None), sampled=(0,)))
    tables = np.asarray(runner._state.block_tables[0])
    for pair in zip(tables[0].tolist(), tables[1].tolist()):
        runner.execute(CopyBlocks(((0, *pair),)))
    for row in (0, 1):  # the same token after a past that is copied
        found.append(step(runner, RowTokens(row, num_tokens + 4, 1, (7,)), sampled=(row,)))
    kinds = {len(pool.pages.sharding.device_set) for pool in runner._kv_caches}
    return found, kinds, tree_bytes(runner._weights[0].params), tree_bytes(runner._kv_caches), runner._weights[0].params

def tied(num_devices):
    runner = make_runner("llama-tied", num_devices, Quantization("int8_weight_only", "w8a16", "xla"))
    reset(runner, 0)
    params = runner._weights[0].params
    tree = jax.tree.structure(params)
    assert pickle.loads(pickle.dumps(tree)) == tree  # as bundles keep it
    return step(runner, *chunks_of(0, PROMPT, 48), sampled=(0,)), tree_bytes(params.model.embed_tokens)

one, two = tied(1), tied(2)  # embeddings and head are one array, cut by rows
np.testing.assert_allclose(two[0].top_logprobs, one[0].top_logprobs, atol=1e-4)
assert two[1] == one[1] / 2

alone, shared = trace(1), trace(2)
for one, two in zip(alone[0], shared[0], strict=True):
    np.testing.assert_array_equal(two.tokens, one.tokens)
    np.testing.assert_allclose(two.top_logprobs, one.top_logprobs, atol=1e-4)
np.testing.assert_array_equal(shared[0][-1].top_logprobs, shared[0][-2].top_logprobs)
layer = lambda params: tree_bytes(params.model.layers[0].mlp)
print(alone[1], shared[1], shared[3] / alone[3], layer(shared[4]) / layer(alone[4]), len({int(r.tokens[0]) for r in shared[0]}) > 3)
"""  # noqa: E501


def test_two_devices_sample_what_one_does():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    shown = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=480)
    assert (shown.stdout.split(), shown.returncode) == (["{1}", "{2}", "0.5", "0.5", "True"], 0), shown.stderr
