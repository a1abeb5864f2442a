"""xlaserve: a portable LLM serving engine on JAX/XLA."""

from typing import TYPE_CHECKING

from xlaserve.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from xlaserve.engine.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "BeamSearchParams", "SamplingParams", "__version__"]


def __getattr__(name: str):
    # LLM pulls in jax (about a second): imported on first use, so that `import xlaserve` and the CLI's help stay quick.
    if name == "LLM":
        from xlaserve.engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'xlaserve' has no attribute {name!r}")
