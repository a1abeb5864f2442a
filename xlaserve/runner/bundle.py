"""A bundle: compiled programs as files, with a manifest of what they were compiled for.

A bundle is code: its programs run with the server's rights, and unpickling them already may run anything. Load only one
that you or somebody you trust has built. Digests tell of damage, not of malice: who can write the programs can write
the manifest.
"""

import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.stages import Compiled
from pydantic import ValidationError

from xlaserve.errors import XlaserveError
from xlaserve.runner.compilations import LOG
from xlaserve.runner.manifest import FORMAT, Manifest, ProgramFile, differences
from xlaserve.runner.programs import Key

MANIFEST = "manifest.json"
_NAMED = 5  # differences that an error names


class BundleMismatch(XlaserveError):
    """A bundle that cannot be used here; the message names its folder, what differs, found and expected."""


def save_bundle(folder: Path, manifest: Manifest, programs: Mapping[Key, Compiled]) -> None:
    """Writes the bundle as a whole or not at all, however it is interrupted.

    Raises FileExistsError where there is something already, OSError when it cannot be written.
    """
    if folder.exists():
        raise FileExistsError(f"{folder}: exists already; name another folder, or delete it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        files = tuple(_save_program(unfinished, key, program) for key, program in programs.items())
        _write(
            unfinished / MANIFEST, manifest.model_copy(update={"programs": files}).model_dump_json(indent=1).encode()
        )
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def read_manifest(folder: Path) -> Manifest:
    """Raises BundleMismatch naming the file and what is wrong with it."""
    file = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise BundleMismatch(f"{folder}: is no bundle: it has no {MANIFEST}") from None
    except OSError as error:
        raise BundleMismatch(f"{file}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise BundleMismatch(f"{file}: {place}: {first['msg']}; it is damaged, or of another version") from error
    if manifest.format != FORMAT:
        raise BundleMismatch(f"{file}: format is {manifest.format}; expected {FORMAT}")
    return manifest


def open_bundle(folder: Path, wanted: Manifest, keys: Iterable[Key]) -> dict[Key, Callable[[], Compiled]]:
    """What loads each program of `keys`, once all of them are what the manifest says, which is what is `wanted`.

    Nothing of the bundle is run before. Raises BundleMismatch, as does a function whose program cannot be loaded.
    """
    manifest = read_manifest(folder)
    if unlike := list(differences(manifest, wanted)):
        raise BundleMismatch(f"{folder}: " + "; ".join(unlike[:_NAMED]))
    files = {(each.kind, each.key): each for each in manifest.programs}
    missing = [key for key in keys if key not in files]
    if missing:
        raise BundleMismatch(f"{folder}: has no program {missing[0]}")
    return {key: partial(_load, folder / files[key].file, _read_program(folder, files[key])) for key in keys}


def _load(file: Path, data: bytes) -> Compiled:
    try:
        program = deserialize_and_load(*pickle.loads(data))
    except Exception as error:
        raise BundleMismatch(f"{file}: cannot be loaded: {error}") from error
    LOG.count_load()
    return program


def _save_program(folder: Path, key: Key, program: Compiled) -> ProgramFile:
    kind, number = key
    data = pickle.dumps(serialize(program))
    file = f"{kind}-{'-'.join(map(str, number)) if isinstance(number, tuple) else number}.program"
    _write(folder / file, data)
    return ProgramFile(
        kind=kind, key=number, file=file, sha256=_digest(data), num_bytes=len(data), memory=_memory(program)
    )


def _memory(program: Compiled) -> dict[str, int]:
    """Outputs hold donated arguments too; `alias` is what they share."""
    found: Any = program.memory_analysis()
    kinds = {"arguments": "argument", "outputs": "output", "alias": "alias", "temporaries": "temp"}
    sizes = {name: getattr(found, f"{kind}_size_in_bytes") for name, kind in kinds.items()}
    return sizes | {"code": found.generated_code_size_in_bytes}


def _write(file: Path, data: bytes) -> None:
    with file.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())


def _read_program(folder: Path, program: ProgramFile) -> bytes:
    if Path(program.file).name != program.file:
        raise BundleMismatch(f"{folder / MANIFEST}: {program.file!r} is no name of a file beside it")
    file = folder / program.file
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BundleMismatch(f"{file}: cannot be read: {error.strerror}") from error
    if _digest(data) != program.sha256:
        raise BundleMismatch(f"{file}: is not what was built: its sha256 is not that of the manifest")
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
