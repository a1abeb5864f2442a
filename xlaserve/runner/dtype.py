"""Which precision the model runs in."""

import statistics
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from xlaserve.layers.linear import project
from xlaserve.models.config import ModelConfig
from xlaserve.runner.compilations import LOG

_NAMES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
}
_ROWS = 16  # a decode step's
_WEIGHT_BYTES = 2**28  # of float32 weights, and half as much of bfloat16
_MARGIN = 1.1  # bfloat16 must win by this much: float32 is the more exact


def named_dtype(name: str) -> np.dtype:
    """By the names that settings have for them; int8 and fp8 are for keys and values."""
    return _NAMES[name]


def setting_of(dtype_name: str) -> str:
    """The setting of a dtype by numpy's name for it. Raises KeyError."""
    return {dtype.name: name for name, dtype in _NAMES.items()}[dtype_name]


def choose_dtype(name: str, config: ModelConfig, platform: str, *, quantized: bool = False) -> tuple[np.dtype, str]:
    """The dtype for a setting of auto or a name, and the reason.

    auto: the checkpoint's; on CPU whichever of float32 and bfloat16 decodes faster, by a measurement of tenths of a
    second, since that differs from one processor to the next. bfloat16 if the weights are quantised.
    """
    if name != "auto":
        return _NAMES[name], "model.dtype"
    if quantized:
        return _NAMES["bfloat16"], "of what quantised weights are multiplied with"
    if platform != "cpu":
        return _NAMES[config.checkpoint_dtype], "the checkpoint's"
    with LOG.expect("start-up"):
        times = _time_products(config)
    chosen = "bfloat16" if times["bfloat16"] * _MARGIN < times["float32"] else "float32"
    measured = ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())
    return _NAMES[chosen], f"the faster here: an MLP product of a decode step takes {measured}"


def _time_products(config: ModelConfig) -> dict[str, float]:
    """Median milliseconds of x [16, D] times weight [F, D] by dtype.

    The weights come from memory, as in a decode step: more of them take turns than a processor's cache holds. The
    dtypes take turns too, so that whatever else the machine does slows both.
    """
    shape = (config.intermediate_size, config.hidden_size)
    copies = max(2, _WEIGHT_BYTES // (4 * shape[0] * shape[1]))
    product = jax.jit(project)
    x, weights, times = {}, {}, {}
    for name in ("float32", "bfloat16"):
        x[name] = jnp.ones((_ROWS, config.hidden_size), name)
        weights[name] = [jnp.full(shape, 0.01, name) for _ in range(copies)]
        product(x[name], weights[name][0]).block_until_ready()  # compiles
        times[name] = []
    for index in range(copies):
        for name, measured in times.items():
            start = time.perf_counter()
            product(x[name], weights[name][index]).block_until_ready()
            measured.append(time.perf_counter() - start)
    return {name: statistics.median(measured) * 1e3 for name, measured in times.items()}
