"""The host tier's size, and the rule that says when it pays: decided here, once, when the engine starts.

Bringing a prefix of n tokens back takes START_SECONDS and its bytes over the link; computing it anew takes two
operations per token and weight, and four per pair of tokens, head dimension and layer of attention. A prefix is brought
back from the length on at which that is faster; if there is no such length within the context, there is no tier.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import jax

from xlaserve.config import CacheSection
from xlaserve.core.host_pool import HostTier
from xlaserve.engine.kv_budget import STEP_TRANSFER_BYTES, mib
from xlaserve.engine.reporter import Reporter
from xlaserve.engine.sizing import Sizing
from xlaserve.errors import ConfigError

START_SECONDS = 0.5e-3  # launches, and the first bytes


@dataclass(frozen=True)
class Rates:
    """Per second."""

    link_bytes: float
    operations: float


# Worked out, not measured: 80% of PCIe 4.0 x16 and 40% of an H100's peak; 80% of PCIe 3.0 x16 and half a v5e's peak. On
# a CPU both are its memory's copies and a few cores' products.
RATES = {"gpu": Rates(25e9, 400e12), "tpu": Rates(12e9, 100e12), "cpu": Rates(5e9, 100e9)}


def host_tier(
    section: CacheSection, sizing: Sizing, weights: Any, platform: str, reporter: Reporter
) -> HostTier | None:
    """None: not wanted, or it would never pay. Raises ConfigError for a memory that holds no block of each group."""
    if section.host_memory is None:
        return None
    pool = sizing.pool
    demand = pool.demand
    num_slots = tuple(n * section.host_memory // pool.num_bytes for n in pool.num_blocks)
    if not all(num_slots):
        raise ConfigError(
            f"cache.host_memory: {section.host_memory} bytes hold no block of every layer group; "
            f"{-(-pool.num_bytes // min(pool.num_blocks))} do"
        )
    bytes_per_block = sum(group.bytes_per_block for group in demand.groups)
    config = sizing.shapes.config
    attention = config.num_layers * config.num_heads * config.head_dim
    num_weights = sum(x.size for x in jax.tree.leaves(weights))
    rates = RATES.get(platform, RATES["gpu"])

    def pays(num_tokens: int) -> bool:
        restore = START_SECONDS + num_tokens * bytes_per_block / demand.block_size / rates.link_bytes
        return restore <= 2 * num_tokens * (num_weights + attention * num_tokens) / rates.operations

    lengths = range(1, sizing.max_model_len + 1)
    min_tokens = 1 + bisect_left(lengths, True, key=pays)  # what pays for some length pays for all greater ones
    if min_tokens > sizing.max_model_len:
        reporter.info("host tier", "off", "to compute any prefix anew is faster than to bring it back")
        return None
    most = max(1, STEP_TRANSFER_BYTES // bytes_per_block)
    size = (
        f"{mib(section.host_memory)}, {', '.join(map(str, num_slots))} blocks; prefixes of {min_tokens} tokens or more"
    )
    reporter.info("host tier", size, f"at {rates.link_bytes / 1e9:g} GB/s and {rates.operations / 1e12:g} TFLOP/s")
    return HostTier(num_slots, min_tokens, most)
