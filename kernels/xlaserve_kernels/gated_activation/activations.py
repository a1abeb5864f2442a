"""Activation functions by their names in model configurations."""

import functools

import jax

ACTIVATIONS = {"silu": jax.nn.silu, "gelu_pytorch_tanh": functools.partial(jax.nn.gelu, approximate=True)}
