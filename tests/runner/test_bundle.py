"""Bundles: what one process has compiled another runs, and what is not just that is refused by name."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.runner.test_programs import tiny
from xlaserve.runner import bundle
from xlaserve.runner.bundle import MANIFEST, BundleMismatch, open_bundle, read_manifest, save_bundle
from xlaserve.runner.compilations import use_no_persistent_cache
from xlaserve.runner.dtype import named_dtype
from xlaserve.runner.manifest import Build, architecture_digest, manifest_of, processor
from xlaserve.runner.programs import compile_all, lowerings

SHAPES, *ARGUMENTS = tiny(named_dtype("float32"))
SHARDING = ARGUMENTS[-1]
JOBS = dict(lowerings(SHAPES, *ARGUMENTS))
SOME = ("reset_row", "set_rules", "copy_blocks")  # quick to compile
WANTED = manifest_of(SHAPES, SHARDING)


@pytest.fixture(scope="module")
def programs():
    use_no_persistent_cache()  # earlier tests of this process may have used one, and what is read from it
    jax.clear_caches()  # stays in memory: written down again, it could not be run
    return compile_all({key: job for key, job in JOBS.items() if key[0] in SOME}, SHARDING, lambda *_: None)


@pytest.fixture
def saved(tmp_path, programs) -> Path:
    save_bundle(tmp_path / "bundle", WANTED, programs)
    return tmp_path / "bundle"


def load(folder: Path, programs, wanted=WANTED):
    return {key: make() for key, make in open_bundle(folder, wanted, programs).items()}


def test_what_is_loaded_does_the_same(saved, programs):
    loaded = load(saved, programs)
    assert loaded.keys() == programs.keys()
    (key,) = (key for key in programs if key[0] == "copy_blocks")
    packed = np.zeros(SHAPES.copy_packing.size, np.int32)
    for program in (programs[key], loaded[key]):
        pools, _ = jax.device_put(SHAPES.state(), SHARDING)
        assert len(jax.tree.leaves(program(pools, packed))) == len(jax.tree.leaves(pools))


def test_another_process_loads_it_without_compiling(saved, programs):
    script = f"""
from pathlib import Path
from tests.runner.test_bundle import JOBS, SOME, load
from xlaserve.runner.compilations import LOG
assert len(load(Path({str(saved)!r}), [key for key in JOBS if key[0] in SOME])) == {len(programs)}
print(sum(LOG.compiled().values()), LOG.loaded() == {len(programs)})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "0 True", done.stderr


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_blocks": (3,)}, "shapes.num_blocks is [2], here it is [3]"),
        ({"max_num_seqs": 5}, "shapes.max_num_seqs is 4, here it is 5"),
        ({"backend": "pallas_gpu"}, "shapes.backend is 'xla', here it is 'pallas_gpu'"),
        ({"dtype": named_dtype("bfloat16")}, "shapes.dtype is 'float32', here it is 'bfloat16'"),
        ({"kv_dtype": named_dtype("int8")}, "shapes.kv_dtype is 'float32', here it is 'int8'"),
        ({"config": replace(SHAPES.config, hidden_size=64)}, "shapes.config.hidden_size is 32, here it is 64"),
    ],
    ids=["blocks", "rows", "backend", "dtype", "kv_dtype", "model"],
)
def test_other_shapes_are_named(saved, programs, changes, told):
    with pytest.raises(BundleMismatch) as refused:
        load(saved, programs, manifest_of(replace(SHAPES, **changes), SHARDING))
    assert str(saved) in str(refused.value)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"versions": WANTED.versions | {"jax": "0.1"}}, "versions.jax is"),
        ({"device_kind": "TPU v5 lite"}, "device_kind is"),
        ({"mesh": {"data": 1, "model": 8}}, "mesh.model is 1, here it is 8"),
    ],
    ids=["version", "device", "mesh"],
)
def test_another_machine_is_named(saved, programs, changes, told):
    with pytest.raises(BundleMismatch, match=told):
        load(saved, programs, WANTED.model_copy(update=changes))


def test_a_changed_byte_is_found_before_anything_runs(saved, programs, monkeypatch):
    monkeypatch.setattr(bundle.pickle, "loads", lambda _: pytest.fail("a program was loaded"))
    file = saved / read_manifest(saved).programs[-1].file
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleMismatch, match=f"{file.name}: is not what was built"):
        load(saved, programs)


def test_what_is_missing_is_named(saved, programs):
    manifest = read_manifest(saved)
    with pytest.raises(BundleMismatch, match="has no program"):
        load(saved, JOBS)
    (saved / manifest.programs[0].file).unlink()
    with pytest.raises(BundleMismatch, match=manifest.programs[0].file):
        load(saved, programs)
    (saved / MANIFEST).unlink()
    with pytest.raises(BundleMismatch, match="is no bundle"):
        load(saved, programs)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"format": 1}'], ids=repr)
def test_a_damaged_manifest_is_named(saved, programs, content):
    (saved / MANIFEST).write_bytes(content)
    with pytest.raises(BundleMismatch, match=MANIFEST):
        load(saved, programs)


def test_another_format_and_paths_that_lead_out_are_refused(saved, programs):
    file = saved / MANIFEST
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {"format": 1}))
    with pytest.raises(BundleMismatch, match="format is 1; expected 3"):
        load(saved, programs)
    manifest["programs"][0]["file"] = "../elsewhere.program"
    file.write_text(json.dumps(manifest))
    with pytest.raises(BundleMismatch, match="is no name of a file"):
        load(saved, programs)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"])
def test_no_half_bundle_is_left(tmp_path, programs, monkeypatch, error):
    written = []

    def write(file: Path, data: bytes) -> None:
        written.append(file)
        if len(written) == len(programs):
            raise error
        file.write_bytes(data)

    monkeypatch.setattr(bundle, "_write", write)
    with pytest.raises(type(error)):
        save_bundle(tmp_path / "bundle", WANTED, programs)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(saved, programs):
    before = sorted(saved.iterdir())
    with pytest.raises(FileExistsError, match="exists already"):
        save_bundle(saved, WANTED, programs)
    assert sorted(saved.iterdir()) == before


def test_the_manifest_tells_what_was_built(saved):
    manifest = read_manifest(saved)
    assert (manifest.mesh, manifest.device_kind) == ({"data": 1, "model": 1}, processor())
    assert manifest.versions.keys() == {"jax", "jaxlib"}  # which holds the CPU's compiler
    assert [manifest.shapes[name] for name in ("num_blocks", "max_num_seqs", "table_width")] == [[2], 4, 32]
    (layout,) = SHAPES.layouts
    (copy,) = (program for program in manifest.programs if program.kind == "copy_blocks")
    pools = 3 * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(layout.pool_spec(2)))
    assert copy.memory["alias"] == pools <= copy.memory["arguments"]
    assert copy.memory.keys() == {"arguments", "outputs", "alias", "temporaries", "code"}


def test_how_it_was_built_is_told_and_never_compared(tmp_path, programs):
    built = Build(
        target="h100x1", flags={"XLA_FLAGS": "--xla_something"}, options={"xla_gpu_enable_triton_gemm": False}
    )
    save_bundle(tmp_path / "bundle", WANTED.model_copy(update={"build": built}), programs)
    assert read_manifest(tmp_path / "bundle").build == built
    assert len(load(tmp_path / "bundle", programs)) == len(programs)


def test_an_architecture_is_what_programs_depend_on(saved, programs):
    tuned = replace(SHAPES.config, eos_token_ids=(7, 8), bos_token_id=1, checkpoint_dtype="bfloat16")
    assert architecture_digest(tuned) == architecture_digest(SHAPES.config)
    assert len(load(saved, programs, manifest_of(replace(SHAPES, config=tuned), SHARDING))) == len(programs)
    untied = replace(SHAPES.config, tie_word_embeddings=True)
    assert architecture_digest(untied) != architecture_digest(SHAPES.config)
    with pytest.raises(BundleMismatch, match=r"architecture is '\w{16}', here it is '\w{16}'; shapes.config.tie"):
        load(saved, programs, manifest_of(replace(SHAPES, config=untied), SHARDING))


def test_a_processor_is_known_by_what_it_can_do(tmp_path):
    file = tmp_path / "cpuinfo"
    names = []
    for flags in ("sse avx", "sse avx amx", "sse avx"):
        processors = f"model name\t: A Processor\nflags\t\t: {flags}\n\nmodel name : B\n"
        file.write_text("processor : 0\n" + processors)
        names.append(processor(file))
    assert names[0] == names[2] != names[1]
    assert all(name.startswith("A Processor (") for name in names)
    assert processor(tmp_path / "none") == "cpu"
