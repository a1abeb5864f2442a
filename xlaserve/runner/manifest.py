"""What a bundle's programs were compiled for, as it stands in its manifest, and how two of these differ."""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import NamedSharding
from pydantic import BaseModel, ConfigDict
from xlaserve_kernels import native

from xlaserve.layers.params import named_specs
from xlaserve.models.config import ModelConfig
from xlaserve.models.registry import FAMILIES
from xlaserve.runner.programs import ProgramShapes
from xlaserve.sharding import mesh_of

FORMAT = 3
_NOT_COMPILED = ("eos_token_ids", "bos_token_id", "checkpoint_dtype")  # of a ModelConfig
_COMPILERS = {  # packages that hold the platform's compiler; jaxlib holds the CPU's
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda13-plugin", "jax-cuda13-pjrt", "jax-cuda12-plugin", "jax-cuda12-pjrt"),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProgramFile(_Strict):
    kind: str
    key: int | tuple[int, bool]
    file: str
    sha256: str
    num_bytes: int
    memory: dict[str, int]  # bytes on a device, by the compiler's account: see _memory


class Build(_Strict):
    """How a bundle was made: told, never compared."""

    target: str | None = None  # None: for the device of the machine that it was made on
    flags: dict[str, str] = {}  # environment variables that compilers read
    options: dict[str, int | bool] = {}  # of the compiler, for each program


class Manifest(_Strict):
    """All that must be alike where a bundle is loaded; `build` and `programs` aside."""

    format: int = FORMAT
    architecture: str  # a digest of shapes.config, and of the weights' names and shapes
    platform: str
    device_kind: str
    mesh: dict[str, int]  # devices, by axis
    versions: dict[str, str]  # of jax, jaxlib the packages that hold the platform's compiler, native kernels if used
    shapes: dict[str, Any]  # of ProgramShapes, as JSON
    build: Build = Build()
    programs: tuple[ProgramFile, ...] = ()


def manifest_of(shapes: ProgramShapes, sharding: NamedSharding) -> Manifest:
    """Of programs compiled for `shapes` and these devices by this process; without the programs."""
    first = mesh_of(sharding).devices.flat[0]
    return Manifest(
        architecture=architecture_digest(shapes.config),
        platform=first.platform,
        device_kind=processor() if first.platform == "cpu" else first.device_kind,
        mesh={str(axis): size for axis, size in sharding.mesh.shape.items()},
        versions=_versions(first.platform, shapes.backend),
        shapes=_as_json(shapes),
    )


def architecture_digest(config: ModelConfig) -> str:
    """Alike for models that the same programs serve, whatever their weights."""
    weights = {name: spec.shape for name, spec in named_specs(FAMILIES[config.family].param_specs(config))}
    return _digest([_architecture(config), weights])


def _digest(described: Any) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def differences(found: Manifest, wanted: Manifest) -> Iterator[str]:
    """As texts, by the path of the field."""
    mine, theirs = (dict(_flat(each.model_dump(exclude={"build", "programs"}), "")) for each in (wanted, found))
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            yield f"{name} is {theirs.get(name)!r}, here it is {mine.get(name)!r}"


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(each, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _as_json(shapes: ProgramShapes) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return value.name if isinstance(value, np.dtype) else str(value)

    found = json.loads(json.dumps(dataclasses.asdict(shapes) | {"config": _architecture(shapes.config)}, default=plain))
    if found["quantization"]:  # of each weight, which is too much to be told where it differs
        found["quantization"]["formats"] = _digest(found["quantization"]["formats"])
    return found


def _architecture(config: ModelConfig) -> dict[str, Any]:
    """Without what programs do not depend on."""
    values = dataclasses.asdict(config)
    return {name: value for name, value in values.items() if name not in _NOT_COMPILED}


def _versions(platform: str, backend: str) -> dict[str, str]:
    """Of the packages; those that are not installed are left out."""
    found = {}
    for package in ("jax", "jaxlib", *_COMPILERS.get(platform, ())):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    if backend == "cpu_native" and (library := native.loaded()):
        found["native_kernels"] = library.version
    return found


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Its name, and a digest of what it can do: programs for a CPU use all of it."""
    try:
        found = re.search(r"^model name\s*: *(.*)$(?s:.*?)^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return f"{found[1]} ({hashlib.sha256(found[2].encode()).hexdigest()[:8]})" if found else "cpu"
