"""Which precision the model runs in."""

import statistics
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from xlaserve.models.config import ModelConfig
from xlaserve.runner.compilations import LOG

_NAMES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_ROWS = 16  # a decode step's
_MARGIN = 1.1  # bfloat16 must win by this much: float32 is the more exact


def named_dtype(name: str) -> np.dtype:
    """float32, float16 or bfloat16."""
    return _NAMES[name]


def choose_dtype(name: str, config: ModelConfig, platform: str) -> tuple[np.dtype, str]:
    """The dtype for a setting of auto or a name, and the reason.

    auto: the checkpoint's; on CPU whichever of float32 and bfloat16 this machine multiplies faster, by a measurement of
    some milliseconds, since that differs from one processor to the next.
    """
    if name != "auto":
        return _NAMES[name], "model.dtype"
    if platform != "cpu":
        return _NAMES.get(config.checkpoint_dtype, _NAMES["bfloat16"]), "the checkpoint's"
    with LOG.expect("start-up"):
        times = {name: _time_product(_NAMES[name], config) * 1e3 for name in ("float32", "bfloat16")}
    chosen = "bfloat16" if times["bfloat16"] * _MARGIN < times["float32"] else "float32"
    measured = ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())
    return _NAMES[chosen], f"the faster here: an MLP product of {_ROWS} rows takes {measured}"


def _time_product(dtype: np.dtype, config: ModelConfig) -> float:
    """Median seconds of x [16, D] times weight [F, D], over weights that do not all fit in the cache."""
    x = jnp.ones((_ROWS, config.hidden_size), dtype)
    weights = [jnp.full((config.intermediate_size, config.hidden_size), 0.01, dtype) for _ in range(8)]
    product = jax.jit(lambda x, w: jnp.einsum("ti,oi->to", x, w, preferred_element_type=jnp.float32).astype(dtype))
    times = []
    for weight in weights[:1] + weights * 3:  # the first run compiles
        start = time.perf_counter()
        product(x, weight).block_until_ready()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
