"""The native library: how it is made and found, and that every set of instructions computes the same."""

import functools
import shutil

import jax
import numpy as np
import pytest
from xlaserve_kernels import native
from xlaserve_kernels.native import library

from tests.kernels import ragged
from tests.kernels.conftest import needs_native
from tests.kernels.test_paged_attention import NAMED


def test_they_are_there():
    """Without them nothing below, nor any case of cpu_native, is tested."""
    if not any(map(shutil.which, library.COMPILERS)):
        pytest.skip("there is no C++ compiler")
    assert native.loaded() is not None


@pytest.fixture
def whole() -> native.Library:
    found = native.loaded()
    assert found is not None
    return found


@pytest.fixture
def anew(monkeypatch):
    """As in a process that has loaded none, and cannot tell XLA of any."""
    monkeypatch.setattr(library, "_libraries", {})
    monkeypatch.setattr(library, "_current", None)
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *args, **kwargs: None)


@pytest.fixture
def level(request, whole):
    """Kernels of this set of instructions, for programs traced meanwhile."""
    yield native.load(whole.file.parent, request.param)
    native.load(whole.file.parent, whole.level)


@needs_native
@pytest.mark.parametrize("level", native.levels(), indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        *("a huge prompt beside decodes", "sinks, soft cap and window", "heads of more than half a register"),
        *("int8, edges", "float8_e4m3fn, one huge row", "blocks of one token"),
    ],
)
def test_every_set_of_instructions(name, level, monkeypatch):
    assert level.target("attention").startswith(f"xlaserve_attention_{level.level}_")
    names = ("backend", "layout", "scale", "sliding_window", "soft_cap")
    monkeypatch.setattr(ragged, "_attend", jax.jit(functools.partial(ragged.paged_attention), static_argnames=names))
    ragged.assert_close(NAMED[name], "cpu_native")


@needs_native
@pytest.mark.parametrize("level", native.levels(), indirect=True)
@pytest.mark.parametrize(("kv_dtype", "bits"), [("float8_e4m3fn", np.uint8), ("float16", np.uint16)])
def test_every_float_of_few_bits(kv_dtype, bits, level):
    """A row of one key is its value, whatever the key is."""
    numbers = np.arange(np.iinfo(bits).max + 1).astype(bits)
    stored = numbers.view(jax.numpy.dtype(kv_dtype))
    numbers, stored = (x[np.isfinite(stored.astype(np.float32))] for x in (numbers, stored))
    size = 64
    count = -(-len(stored) // size)
    values = np.zeros((count, size), stored.dtype)
    values.reshape(-1)[: len(stored)] = stored
    layout = ragged.make_layout("cpu_native", num_kv_heads=1, head_dim=size, block_size=1, dtype=kv_dtype)
    pages = np.stack([np.zeros_like(values), values], 1).reshape(count, 2, 1, 1, size).view(layout.storage_dtype)
    scales = jax.numpy.ones((count, 2, 1, 1)) if layout.quantized else None
    out = ragged.paged_attention(
        jax.numpy.ones((count, 1, size)), ragged.KVPool(jax.numpy.asarray(pages), scales),
        np.arange(count, dtype=np.int32)[:, None], np.arange(count + 1, dtype=np.int32), np.ones(count, np.int32),
        backend="cpu_native", layout=layout, scale=1.0,
    )  # fmt: skip
    np.testing.assert_array_equal(out[:, 0], values.astype(np.float32))


def test_no_compiler_is_told_in_a_line(anew, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(native.NativeUnavailable, match=r"^no C\+\+ compiler: none of c\+\+, g\+\+, clang\+\+ is on"):
        native.load(tmp_path)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            "echo 'a.cc:1: note' >&2; echo 'ffi.h:3: fatal error: gone' >&2; exit 1",
            "failed: ffi.h:3: fatal error: gone",
        ),
        ("exit 1", "failed: it says nothing"),
        ("sleep 9", "took longer than 1 s"),
    ],
)
def test_a_compiler_that_fails_is_told_in_a_line(script, told, anew, tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(compiler))
    monkeypatch.setattr(library, "_TIMEOUT", 1.0)
    with pytest.raises(native.NativeUnavailable, match=told) as refused:
        native.load(tmp_path / "cache")
    assert "\n" not in str(refused.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_made(anew, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(native.NativeUnavailable, match="file/cache: Not a directory"):
        native.load(tmp_path / "file" / "cache")


@needs_native
def test_a_damaged_file_is_compiled_again(whole, anew, tmp_path, monkeypatch):
    monkeypatch.setattr(library, "_compile", lambda file, level: shutil.copy(whole.file, file))
    (tmp_path / whole.file.name).write_bytes(whole.file.read_bytes()[:1000])
    assert native.load(tmp_path, whole.level).compiled
    monkeypatch.setattr(library, "_libraries", {})
    assert not native.load(tmp_path, whole.level).compiled


def test_an_unknown_level_is_named(anew, tmp_path):
    with pytest.raises(ValueError, match=r"level 'mmx': this processor has .*plain"):
        native.load(tmp_path, "mmx")


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ({"sse2"}, "plain"), ({"avx2", "fma"}, "avx2"), ({"avx2"}, "plain"), ({"avx2", "fma", "avx512f"}, "avx2"),
        ({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}, "avx512"),
        ({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}, "avx512_vnni"),
    ],
)  # fmt: skip
def test_the_level_is_what_the_processor_has(flags, best, monkeypatch):
    monkeypatch.setattr(library, "flags", lambda: flags)
    assert library.best_level() == best
