"""Weights to the host's memory and back, compiled for TPUs. Of a GPU that is not here, XLA knows no such memory."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from xlaserve.runner.laid_aside import HOST
from xlaserve.sharding import make_mesh
from xlaserve.targets import find_target

pytestmark = pytest.mark.aot
SHAPE, NUM_BYTES = (4096, 1024), 4096 * 1024 * 2


@pytest.mark.parametrize(("target", "num_devices"), [("tpu-v5e-1", 1), ("tpu-v6e-4", 4)])
def test_weights_go_to_the_hosts_memory_and_back(target, num_devices):
    there = NamedSharding(make_mesh(find_target(target).devices()), PartitionSpec("model"))
    here = there.with_memory_kind(HOST)
    for source, destination, on_host in ((there, here, (0, 1)), (here, there, (1, 0))):
        weight = jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16, sharding=source)
        memory = jax.jit(lambda x: x, out_shardings=destination).lower(weight).compile().memory_analysis()
        assert memory is not None
        found = (memory.host_argument_size_in_bytes, memory.host_output_size_in_bytes)
        assert found == tuple(each * NUM_BYTES // num_devices for each in on_host)
        assert (memory.temp_size_in_bytes, memory.host_temp_size_in_bytes) == (0, 0)
