"""Blocks of one layer group on their way between the KV pools and slots of host memory.

A fixed number travels at once, in all layers of the group, as one array: so one program each way serves any number.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from xlaserve_kernels.paged_attention import KVLayout, KVPool

from xlaserve.models.kv_spec import KVSpec
from xlaserve.runner.packing import Packing

STAGED_BLOCKS = 16  # that travel at once
PACKING = Packing((("count", ()), ("blocks", (STAGED_BLOCKS,))))

Blocks = tuple[tuple[int, int, int], ...]  # (group, block, host slot)


def pack_blocks(blocks: tuple[int, ...]) -> np.ndarray:
    """Places beyond them name the null block."""
    buffer, parts = PACKING.new()
    parts["count"][...] = len(blocks)
    parts["blocks"][: len(blocks)] = blocks
    return buffer


def staged_spec(spec: KVSpec, layout: KVLayout) -> KVPool:
    """Of what travels at once: [STAGED_BLOCKS, layers, ...]."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((STAGED_BLOCKS, len(spec.layers), *x.shape[1:]), x.dtype), layout.pool_spec(1)
    )


def gather_blocks(pools: tuple[KVPool, ...], packed: Array) -> KVPool:
    """The program of OffloadBlocks. pools: of one group, a layer each."""
    blocks = PACKING.unpack(packed)["blocks"]
    return jax.tree.map(lambda *parts: jnp.stack([jnp.take(x, blocks, axis=0, mode="clip") for x in parts], 1), *pools)


def scatter_blocks(pools: tuple[KVPool, ...], staged: KVPool, packed: Array) -> tuple[KVPool, ...]:
    """The program of RestoreBlocks: one after the other, in place. Donates the pools."""
    parts = PACKING.unpack(packed)

    def restore(index: Array, pools: tuple[KVPool, ...]) -> tuple[KVPool, ...]:
        block = parts["blocks"][index]
        arrived = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False), staged)
        return tuple(
            jax.tree.map(lambda x, new, n=layer: lax.dynamic_update_index_in_dim(x, new[n], block, 0), pool, arrived)
            for layer, pool in enumerate(pools)
        )

    return lax.fori_loop(jnp.int32(0), parts["count"], restore, pools)


class HostSlots:
    """The slots' memory, which the system gives as it is written to."""

    def __init__(self, specs: tuple[KVSpec, ...], layouts: tuple[KVLayout, ...], num_slots: tuple[int, ...]):
        self._specs = [staged_spec(*pair) for pair in zip(specs, layouts, strict=True)]
        self._slots = [
            jax.tree.map(lambda x, n=n: np.empty((n, *x.shape[1:]), x.dtype), spec)
            for spec, n in zip(self._specs, num_slots, strict=True)
        ]

    def write(self, group: int, slots: tuple[int, ...], staged: KVPool) -> None:
        """Waits for `staged` to be here. Raises what the program that made it raised."""
        for memory, part in zip(jax.tree.leaves(self._slots[group]), jax.tree.leaves(staged), strict=True):
            memory[list(slots)] = np.asarray(part)[: len(slots)]

    def read(self, group: int, slots: tuple[int, ...]) -> KVPool:
        """A copy, ready to travel: the slots may be written to while it does."""

        def staged(memory: np.ndarray) -> np.ndarray:
            array = np.zeros((STAGED_BLOCKS, *memory.shape[1:]), memory.dtype)
            array[: len(slots)] = memory[list(slots)]
            return array

        return jax.tree.map(staged, self._slots[group])


@dataclass(frozen=True)
class Arrival:
    """Blocks on their way to the host."""

    host: HostSlots
    group: int
    slots: tuple[int, ...]
    staged: KVPool

    def complete(self) -> None:
        """Waits for them and puts them into their slots."""
        self.host.write(self.group, self.slots, self.staged)


def rounds(blocks: Blocks) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """(group, blocks, slots) of each round; of one group in the order given."""
    for group in sorted({group for group, _, _ in blocks}):
        pairs = [(block, slot) for of, block, slot in blocks if of == group]
        for start in range(0, len(pairs), STAGED_BLOCKS):
            here = pairs[start : start + STAGED_BLOCKS]
            yield group, tuple(block for block, _ in here), tuple(slot for _, slot in here)
