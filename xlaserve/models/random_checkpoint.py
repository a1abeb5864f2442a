"""Random weights for a config.json: what tests and planning use where the numbers do not matter."""

import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from xlaserve.layers.params import ArraySpec, named_specs
from xlaserve.models.checkpoint import TensorInfo
from xlaserve.models.safetensors_folder import read_json

_STD = 0.02
_CHUNK_VALUES = 2**20
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


class RandomCheckpoint:
    """`config` is a config.json or its folder, whose tokenizer is used when it has one.

    It holds the tensors of the specs it is given by `with_specs`: none before. Raises CheckpointError.
    """

    gguf_metadata: dict[str, Any] | None = None

    def __init__(self, config: Path, seed: int, specs: Mapping[str, ArraySpec] | None = None):
        file = config / "config.json" if config.is_dir() else config
        self.source = f"random:{config}"
        self.where = str(file)
        self.config: dict[str, Any] = read_json(file, required=True)
        self.generation_config = read_json(file.parent / "generation_config.json", required=False)
        self.folder = file.parent if any((file.parent / name).exists() for name in _TOKENIZER_FILES) else None
        self._path = config
        self._seed = seed
        self._specs = dict(specs or {})
        self.tensors = {name: TensorInfo(spec.shape, "random", file) for name, spec in self._specs.items()}

    def with_specs(self, specs: Any) -> "RandomCheckpoint":
        """The same checkpoint, holding the weights that a tree of specs describes."""
        return RandomCheckpoint(self._path, self._seed, dict(named_specs(specs)))

    def read(self, name: str, dtype: np.dtype | None = None) -> np.ndarray:
        """Each tensor has a generator of its own, seeded by (seed, name): the order of reading does not matter."""
        spec = self._specs[name]
        if spec.init != "normal":
            return np.full(spec.shape, 1.0 if spec.init == "ones" else 0.0, dtype or np.float32)
        generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        out = np.empty(prod(spec.shape), dtype or np.float32)
        for first in range(0, out.size, _CHUNK_VALUES):
            piece = out[first : first + _CHUNK_VALUES]
            piece[:] = generator.standard_normal(piece.size, np.float32) * np.float32(_STD)
        return out.reshape(spec.shape)
