"""Kernels in C++ for the CPU, built with the system's compiler and called by XLA (`jax.ffi`)."""

from xlaserve_kernels.native.library import Library, NativeUnavailable, call, default_folder, levels, load, loaded
from xlaserve_kernels.native.products import matmul

__all__ = ["Library", "NativeUnavailable", "call", "default_folder", "levels", "load", "loaded", "matmul"]
