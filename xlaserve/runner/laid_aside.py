"""Weights in host memory, while the device's is wanted for something else. Transfers only: no program."""

from typing import Any

import jax

HOST = "pinned_host"  # as jax calls memory that a device can copy from at once


class LaidAside:
    """A tree of arrays, and where each came from."""

    def __init__(self, arrays: Any):
        """Copies them; their own memory is free when nobody else has them."""
        self._shardings = jax.tree.map(lambda x: x.sharding, arrays)
        self._arrays = jax.tree.map(lambda x: jax.device_put(x, x.sharding.with_memory_kind(HOST)), arrays)
        jax.block_until_ready(self._arrays)

    def take_up(self) -> Any:
        """The arrays, where they came from."""
        return jax.block_until_ready(jax.tree.map(jax.device_put, self._arrays, self._shardings))
