"""Checks of arguments that all operations share: errors that name the argument, what it is and what is allowed."""

from jax import Array


def expect_shape(name: str, array: Array, ok: bool, allowed: str) -> None:
    """Raises ValueError unless `ok`."""
    if not ok:
        raise ValueError(f"{name} has shape {list(array.shape)}: must be {allowed}")
