"""Kernels in C++ for the CPU, built with the system's compiler and called by XLA (`jax.ffi`)."""

from xlaserve_kernels.native.library import (
    Library,
    NativeUnavailable,
    call,
    default_folder,
    is_usable,
    levels,
    load,
    loaded,
)
from xlaserve_kernels.native.norm import rms_norm
from xlaserve_kernels.native.products import Factor, int8_matmuls, matmuls

__all__ = [
    "Factor", "Library", "NativeUnavailable", "call", "default_folder", "int8_matmuls", "is_usable", "levels", "load",
    "loaded", "matmuls", "rms_norm",
]  # fmt: skip
