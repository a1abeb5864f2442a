"""Single functions, lowered or compiled for chips that are not here. jax must look for no device: see the package."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from xlaserve.runner.compiler import UNMEASURED_OPTIONS
from xlaserve.targets import abstract_mesh, devices, find_chip, jax_platform


def lower(function: Callable, arguments: Sequence[Any], chip: str) -> jax.stages.Lowered:
    """The program before the chip's own compiler sees it. `arguments`: trees of ShapeDtypeStruct. Needs no plugin."""
    with jax.sharding.use_abstract_mesh(abstract_mesh(find_chip(chip))):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=(find_chip(chip).platform,))


def compile(
    function: Callable, arguments: Sequence[Any], chip: str, *, donate: Sequence[int] = (), out_shardings: Any = None,
    options: Mapping[str, Any] = MappingProxyType({}), dump_to: str | None = None,
) -> jax.stages.Compiled:  # fmt: skip
    """Machine code for one device of `chip`, or for those that the arguments' shardings name.

    `arguments`: trees of ShapeDtypeStruct; those without a sharding are on the chip's first device, and so are then
    the results. `donate`: positions. `options`: of XLA. `dump_to`: a folder for what XLA tells of GPU code.
    """
    known = find_chip(chip)
    here = SingleDeviceSharding(devices(chip, known)[0])
    placed = jax.tree.map(lambda x: x if x.sharding else x.update(sharding=here), tuple(arguments))
    jitted = jax.jit(function, donate_argnums=tuple(donate), out_shardings=out_shardings or here)
    with _known_chip(chip, placed):
        lowered = jitted.lower(*placed)
    dump = {"xla_dump_to": dump_to, "xla_dump_emitter_re": "ptx"} if dump_to and known.platform == "cuda" else {}
    return lowered.compile(compiler_options={**UNMEASURED_OPTIONS.get(jax_platform(known), {}), **options, **dump})


def _known_chip(chip: str, arguments: Any) -> AbstractContextManager:
    """Where no mesh of several devices tells Pallas the chip, an abstract one has to."""
    several = any(len(x.sharding.device_set) > 1 for x in jax.tree.leaves(arguments))
    return nullcontext() if several else jax.sharding.use_abstract_mesh(abstract_mesh(find_chip(chip)))
