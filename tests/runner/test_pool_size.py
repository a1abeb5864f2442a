"""How a budget is divided into blocks: what requests need, and that nothing is promised that does not fit."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xlaserve.models.config import parse_config
from xlaserve.models.kv_spec import kv_specs
from xlaserve.runner.kv_cache import block_bytes, make_layouts
from xlaserve.runner.pool_size import TYPICAL_LENGTH, GroupDemand, KVDemand, PoolSize

MIB = 2**20
GEMMA_3_1B = {
    "model_type": "gemma3_text",
    "vocab_size": 262144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 32768,
}


def gemma(rows: int = 16, step_tokens: int = 256) -> KVDemand:
    specs = kv_specs(parse_config(GEMMA_3_1B, "config.json"))
    layouts = make_layouts(specs, "xla", 16, np.dtype(jnp.bfloat16))
    groups = [GroupDemand(block_bytes(*pair), pair[0].sliding_window) for pair in zip(specs, layouts, strict=True)]
    assert [group.bytes_per_block for group in groups] == [4 * 16 * 2 * 256 * 2, 22 * 16 * 2 * 256 * 2]
    return KVDemand(tuple(groups), 16, rows, step_tokens)


def test_gemma_3_at_32k_takes_the_memory_of_its_full_layers():
    """And of small windows: 16 rows of 512 tokens and two blocks, and two steps' tokens, however long the context."""
    demand = gemma()
    full, sliding = demand.most(32768)
    assert (full, sliding) == (1 + 16 * 2048, 1 + 16 * (32 + 2) + 2 * 16)
    windows = sliding * demand.groups[1].bytes_per_block
    assert demand.bytes_of((full, sliding)) == full * demand.groups[0].bytes_per_block + windows
    assert windows < 0.1 * full * demand.groups[0].bytes_per_block
    all_full = full * sum(group.bytes_per_block for group in demand.groups)
    assert demand.bytes_of((full, sliding)) < 0.17 * all_full  # 4 of 26 layers are full


def test_a_window_of_requests_shorter_than_it_costs_what_they_have():
    assert gemma().most(256) == (1 + 16 * 16, 1 + 16 * 16)


def test_a_small_budget_is_divided_for_as_many_typical_requests_as_fit():
    """Windows for all rows alone are more than that."""
    demand = gemma(rows=128)
    budget = 256 * MIB
    size = PoolSize(demand, demand.divide(budget, 4096))
    assert 0 <= budget - size.num_bytes < demand.groups[0].bytes_per_block
    assert demand.most(4096)[1] * demand.groups[1].bytes_per_block > budget
    assert size.requests(TYPICAL_LENGTH) == 15
    assert demand.bytes_of(demand.num_blocks(16, TYPICAL_LENGTH)) > budget


def test_a_larger_budget_serves_all_rows_at_the_greatest_length():
    demand = gemma()
    size = PoolSize(demand, demand.divide(1024 * MIB, 32768))
    assert size.num_blocks[1] == demand.most(32768)[1]
    length = (size.num_blocks[0] - 1) // 16 * 16
    assert length > 4096
    assert size.holds(16, length)
    assert not size.holds(16, length + 1)


def test_blocks_that_are_given_are_the_full_groups():
    assert gemma().given(5000, 32768) == (5000, 577)
    assert gemma().given(9, 32768) == (9, 9)


GROUPS = st.lists(st.builds(GroupDemand, st.integers(1, 5000), st.none() | st.integers(1, 300)), min_size=1, max_size=3)
DEMANDS = st.builds(
    lambda groups, *rest: KVDemand(tuple(groups), *rest),
    GROUPS, st.sampled_from([1, 4, 16]), st.integers(1, 40), st.integers(1, 300),
)  # fmt: skip


@given(demand=DEMANDS, budget=st.integers(1, 10**8), wanted=st.integers(1, 5000))
def test_a_division_keeps_its_budget_and_its_promises(demand, budget, wanted):
    longest = demand.longest(budget, wanted)
    if longest < wanted:
        assert demand.bytes_of(demand.num_blocks(1, longest + 1)) > budget
    if longest == 0:
        return
    size = PoolSize(demand, demand.divide(budget, longest))
    assert size.num_bytes <= budget
    assert size.holds(1, longest)
    assert size.longest(longest) == longest
    grows = [g.bytes_per_block for g in demand.groups if g.sliding_window is None]
    assert budget - size.num_bytes < sum(grows or [g.bytes_per_block for g in demand.groups])  # all of it is used
    length = min(TYPICAL_LENGTH, longest)
    rows = size.requests(length)
    assert size.holds(rows, length)
    assert not size.holds(rows + 1, length)
    if rows < demand.max_num_seqs:  # no other division serves more
        assert demand.bytes_of(demand.num_blocks(rows + 1, length, longest)) > budget


@given(
    window=st.integers(1, 100),
    block_size=st.sampled_from([1, 4, 16]),
    steps=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=8),
)
def test_a_window_holds_what_two_steps_under_way_can_need(window, block_size, steps):
    """Each row has `start` computed tokens, and tokens in each of two steps, which no block may be missing for."""
    budget = max(1, *(sum(step[i] for step in steps) for i in (1, 2)))
    demand = KVDemand((GroupDemand(1, window),), block_size, len(steps), budget)
    held = 0
    for start, first, second in steps:
        oldest = max(0, start - window + 1)  # seen by the first of the new tokens
        end = start + first + second
        held += 0 if end == 0 else (end - 1) // block_size - oldest // block_size + 1
    length = max(start + first + second for start, first, second in steps)
    assert held <= demand.most(length)[0] - 1
