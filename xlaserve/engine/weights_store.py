"""Where a running engine's weights come from: checkpoints of its own architecture, read and checked beside it."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from xlaserve.engine.quantization import keeps_formats
from xlaserve.errors import CheckpointError
from xlaserve.layers.params import ArraySpec, spec_bytes
from xlaserve.layers.quantized import Quantization
from xlaserve.models import sources
from xlaserve.models.checkpoint import Checkpoint
from xlaserve.models.config import ModelConfig, parse_config
from xlaserve.models.loader import check_tensors, load_params, untie_differing_head
from xlaserve.models.random_checkpoint import RandomCheckpoint
from xlaserve.models.registry import FAMILIES
from xlaserve.runner.memory import available_host_memory, device_memory
from xlaserve.runner.model_runner import ModelRunner
from xlaserve.sharding import sharding_of

_NO_ARCHITECTURE = ("eos_token_ids", "bos_token_id", "checkpoint_dtype")  # what no program depends on
_HOST_LEEWAY = 1.1  # of the host's memory, for what is read beside the weights themselves


class Store(Protocol):
    """What `ModelAdmin` needs of it. All may be called from any thread, one at a time."""

    current: Any  # the checkpoint whose weights the newest version is

    def open(self, path: Path) -> Any:
        """A checkpoint. Raises CheckpointError where it does not fit, telling how."""
        ...

    def fits_beside(self) -> bool:
        """Whether there is memory for two sets of weights."""
        ...

    def load(self, checkpoint: Any, version: int) -> None:
        """Reads all of it into the runner, under a version of its own. Raises CheckpointError."""
        ...

    def reload(self, version: int) -> None:
        """The same, of the current checkpoint as it is now."""
        ...


class WeightsStore:
    """The weights that a ModelRunner's programs take."""

    def __init__(
        self, runner: ModelRunner, config: ModelConfig, specs: Any, dtype: np.dtype, mesh: Mesh, current: Checkpoint,
        quantization: Quantization | None = None,
    ):  # fmt: skip
        """specs: of the weights as they are kept, in a model of `dtype`."""
        self.current = current
        self._runner = runner
        self._config = config
        self._specs = specs
        self._dtype = dtype
        self._mesh = mesh
        self._quantization = quantization

    def open(self, path: Path) -> Checkpoint:
        checkpoint = sources.open_local(path, str(path))
        config = parse_config(checkpoint.config, checkpoint.where)
        check_tensors(FAMILIES[config.family].param_specs(config), checkpoint)
        config = untie_differing_head(config, checkpoint)
        names = [field.name for field in fields(ModelConfig) if field.name not in _NO_ARCHITECTURE]
        differing = [name for name in names if getattr(config, name) != getattr(self._config, name)]
        if differing:
            told = (f"{name} is {getattr(config, name)}, here {getattr(self._config, name)}" for name in differing)
            raise CheckpointError(f"{checkpoint.where}: another architecture than the one served: {'; '.join(told)}")
        if not keeps_formats(self._quantization, checkpoint):
            raise CheckpointError(f"{checkpoint.where}: its weights are quantised otherwise than those served")
        return checkpoint

    def fits_beside(self) -> bool:
        num_bytes = spec_bytes(self._specs, self._dtype)
        memory = device_memory(self._mesh.devices.flat[0])
        if memory is not None:
            return num_bytes <= memory.total - memory.in_use
        available = available_host_memory()
        return available is None or num_bytes * _HOST_LEEWAY <= available

    def load(self, checkpoint: Checkpoint, version: int) -> None:
        def place(array: np.ndarray, spec: ArraySpec) -> jax.Array:
            if not np.isfinite(array).all():
                raise CheckpointError(f"{checkpoint.where}: weights of shape {list(spec.shape)} hold NaN or infinity")
            return jax.device_put(array, sharding_of(self._mesh, spec.axes))

        params = load_params(self._specs, checkpoint, dtype=self._dtype, place=place, on_progress=lambda *_: None)
        jax.block_until_ready(params)
        self._runner.add_weights(version, params)

    def reload(self, version: int) -> None:
        checkpoint = self.current
        if not isinstance(checkpoint, RandomCheckpoint):  # whose files may have been written anew
            checkpoint = self.open(checkpoint.folder or Path(checkpoint.where))
        self.load(checkpoint, version)
