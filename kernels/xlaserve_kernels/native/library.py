"""The shared library of the native kernels: compiled at first use, loaded, and made known to XLA by name.

It is compiled where it runs, not when the package is installed: against the headers of the very jaxlib that calls it,
with just the instructions that this processor has, and without making the package one for each platform. It is kept in
a folder of the user's, under a name that changes with the sources, the options, jaxlib and the level of instructions.

XLA knows the kernels by names that hold that version. So a program compiled with others is never mistaken for one of
these: neither in jax's compilation cache, nor in a bundle.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jax

from xlaserve_kernels.cpu_features import flags

COMPILERS = ("c++", "g++", "clang++")
_FOLDER = Path(__file__).parent
_OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")
_TIMEOUT = 300.0  # seconds; it takes about ten
_HANDLERS = ("attention", "int8_matmul", "matmul", "rms_norm")
_DIGEST_SIZE = 32  # bytes


@dataclass(frozen=True)
class Level:
    """A set of instructions: what the processor must have, and the compiler is to use."""

    needs: frozenset[str]  # as /proc/cpuinfo calls them
    options: tuple[str, ...]


_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_AVX2_OPTIONS = ("-mavx2", "-mfma")
_AVX512_OPTIONS = (*_AVX2_OPTIONS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
LEVELS = {  # the best first
    "avx512_vnni": Level(_AVX512 | {"avx512_vnni"}, (*_AVX512_OPTIONS, "-mavx512vnni")),
    "avx512": Level(_AVX512, _AVX512_OPTIONS),
    "avx2": Level(_AVX2, _AVX2_OPTIONS),
    "plain": Level(frozenset(), ()),
}


class NativeUnavailable(Exception):
    """There are no native kernels here; the message says why, in one line."""


@dataclass(frozen=True)
class Library:
    level: str  # one of LEVELS
    version: str  # of all that decides what the kernels compute
    file: Path
    compiled: bool  # by this process, else it was there

    def target(self, name: str) -> str:
        """XLA's name of a kernel."""
        return f"xlaserve_{name}_{self.version}"


_lock = threading.Lock()
_libraries: dict[str, Library] = {}  # by level: XLA forgets no name, so neither does this process
_current: Library | None = None


def loaded() -> Library | None:
    """The library that kernels use from now on, if there is one."""
    return _current


def is_usable() -> bool:
    """Whether layers may call the kernels: not where several devices share arrays, as XLA does not know how to cut what
    it cannot look into."""
    return _current is not None and jax.device_count() == 1


def load(folder: Path, level: str = "auto") -> Library:
    """Makes the kernels available, compiling them unless `folder` has them.

    level: one of LEVELS, or auto for the best that the processor has. A later call may choose another one: programs
    that are compiled keep theirs. Raises ValueError for a level that is none or not this processor's, NativeUnavailable
    where it cannot be compiled or loaded.
    """
    global _current
    level = best_level() if level == "auto" else _checked(level)
    with _lock:
        if level not in _libraries:
            _libraries[level] = _open(folder, level)
        _current = _libraries[level]
        return _current


def default_folder() -> Path:
    """For benchmarks and tests; an engine is told its own."""
    return Path.home() / ".cache" / "xlaserve" / "native"


def call(kernel: str, results: jax.ShapeDtypeStruct | Sequence[jax.ShapeDtypeStruct]) -> Callable:
    """The kernel as a function of arrays and, by name, of numpy scalars. Raises RuntimeError where none are loaded."""
    if _current is None:
        raise RuntimeError("the native kernels are not loaded: call xlaserve_kernels.native.load first")
    return jax.ffi.ffi_call(_current.target(kernel), results)


def levels() -> tuple[str, ...]:
    """Those of this processor, the best first."""
    return tuple(name for name, level in LEVELS.items() if level.needs <= flags())


def best_level() -> str:
    return levels()[0]


def _checked(level: str) -> str:
    if level not in levels():
        raise ValueError(f"level {level!r}: this processor has {', '.join(levels())}")
    return level


def _open(folder: Path, level: str) -> Library:
    name = f"{level}_{_digest(level)}"
    file = folder / f"{name}.so"
    compiled = not _is_whole(file)
    if compiled:
        _compile(file, level)
    try:
        opened = ctypes.CDLL(str(file))
    except OSError as error:
        raise NativeUnavailable(f"{file}: cannot be loaded: {error}") from error
    library = Library(level, name, file, compiled)
    for kernel in _HANDLERS:
        handler = jax.ffi.pycapsule(opened[f"xlaserve_{kernel}"])
        jax.ffi.register_ffi_target(library.target(kernel), handler, platform="cpu")
    return library


def _is_whole(file: Path) -> bool:
    """A file that a full disk has cut off would end the process when it is loaded."""
    try:
        content = file.read_bytes()
    except OSError:
        return False
    return content[-_DIGEST_SIZE:] == hashlib.sha256(content[:-_DIGEST_SIZE]).digest()


def _digest(level: str) -> str:
    digest = hashlib.sha256(" ".join((*_command("", level, ""), version("jaxlib"), platform.machine())).encode())
    for source in sorted(file for file in _FOLDER.iterdir() if file.suffix in (".cc", ".h")):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:12]


def _command(compiler: str, level: str, out: str) -> list[str]:
    sources = sorted(file.name for file in _FOLDER.glob("*.cc"))
    return [compiler, *_OPTIONS, *LEVELS[level].options, "-o", out, *sources]


def _compile(file: Path, level: str) -> None:
    """As a whole or not at all: another process may do the same at the same time."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeUnavailable(f"no C++ compiler: none of {', '.join(COMPILERS)} is on the path")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=file.parent) as building:
            out = Path(building) / file.name
            command = [*_command(compiler, level, str(out)), "-isystem", jax.ffi.include_dir()]
            done = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, timeout=_TIMEOUT)
            if done.returncode:
                raise NativeUnavailable(f"{compiler} failed: {_first_error(done.stderr)}")
            with out.open("ab") as opened:  # loaders do not look at what stands behind
                opened.write(hashlib.sha256(out.read_bytes()).digest())
            os.replace(out, file)
    except OSError as error:
        raise NativeUnavailable(f"{file.parent}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailable(f"{compiler} took longer than {_TIMEOUT:.0f} s") from error


def _first_error(output: str) -> str:
    lines = output.strip().splitlines() or ["it says nothing"]
    return next((line for line in lines if "error" in line), lines[0])[:200]
