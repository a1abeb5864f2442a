"""Qwen3: Llama with an RMSNorm on each query and key head, before the rotary embedding."""

from functools import partial

from xlaserve.models import llama

param_specs = partial(llama.param_specs, qk_norm=True)
forward = llama.forward
