"""Several small int32 arrays in one: a step's inputs reach the device in a single transfer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array

DROPPED = np.iinfo(np.int32).max  # an index beyond every array: scatters drop it


@dataclass(frozen=True)
class Packing:
    """Names and shapes of the parts, in order."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes)

    def new(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """A zeroed host buffer [size] and a writable view of each part."""
        buffer = np.zeros(self.size, np.int32)
        return buffer, dict(self._split(buffer))

    def unpack(self, packed: Array) -> Mapping[str, Array]:
        """The parts again, inside a program."""
        return dict(self._split(packed))

    def _split(self, flat):
        start = 0
        for name, shape in self.shapes:
            size = math.prod(shape)
            yield name, flat[start : start + size].reshape(shape)
            start += size

    def abstract(self, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.size,), np.int32, sharding=sharding)
