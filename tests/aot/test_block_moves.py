"""Programs that move blocks, compiled for chips that are not here: none copies a pool, whatever they move of it."""

import pytest

from benchmarks.aot.block_moves import compile_block_moves
from benchmarks.aot.body import read_config
from benchmarks.aot.hlo import Program
from xlaserve.runner.host_blocks import STAGED_BLOCKS

pytestmark = pytest.mark.aot
LAYERS, NUM_BLOCKS = 2, 4097
BLOCK_BYTES = 2 * 8 * 16 * 128 * 2  # of one layer of Llama-3.1-8B
STAGED_BYTES, POOL_BYTES = LAYERS * STAGED_BLOCKS * BLOCK_BYTES, NUM_BLOCKS * BLOCK_BYTES


@pytest.mark.parametrize("target", ["h100", "v5e"])
def test_no_pool_is_copied(target):
    for name, compiled in compile_block_moves(read_config(num_layers=LAYERS), target, num_blocks=NUM_BLOCKS).items():
        memory = compiled.memory_analysis()
        assert memory is not None
        assert memory.temp_size_in_bytes <= 2 * STAGED_BYTES, name
        assert all(move.bytes <= STAGED_BYTES for move in Program(compiled.as_text()).movements()), name
        donated = 0 if name == "gather" else LAYERS * POOL_BYTES
        assert memory.alias_size_in_bytes == donated, name  # written in place
