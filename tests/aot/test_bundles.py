"""Bundles for hardware that is not here, as `xlaserve build --target` makes them: two layers, some programs."""

from pathlib import Path

import pytest

from benchmarks.aot import gpu_code
from benchmarks.aot.body import LLAMA_8B, read_config
from tests.recording import RecordingReporter
from xlaserve.config import load_config
from xlaserve.engine import deployment
from xlaserve.engine.machine import Machine
from xlaserve.runner import compiler
from xlaserve.runner.bundle import read_manifest, save_bundle
from xlaserve.runner.manifest import manifest_of
from xlaserve.runner.programs import compile_all
from xlaserve.sharding import make_mesh, replicated
from xlaserve.targets import find_target

pytestmark = [pytest.mark.aot, pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")]
LAYERS, BLOCKS, SMALLEST_TILE = 2, 1025, 64
SMALLEST_HEAD = ("sample", (4, False))
SETTINGS = ["scheduler.max_num_seqs=128", "scheduler.max_num_batched_tokens=1024", "model.max_model_len=4096"]


@pytest.fixture
def build(monkeypatch):
    """build(target, kinds or keys): compiles the largest of each kind; (its Deployment, sharding, programs)."""

    def build(name: str, *wanted: str | tuple, num_layers: int = LAYERS, quantization: str = "none"):
        monkeypatch.setattr(deployment, "parse_config", lambda *_: read_config(num_layers=num_layers))
        source = f"model.source=random:{LLAMA_8B}"
        config = load_config(
            None, [source, f"model.quantization={quantization}", f"cache.num_blocks={BLOCKS}", *SETTINGS]
        )
        target = find_target(name)
        mesh = make_mesh(target.devices())
        decided = deployment.decide(config, Machine.of(target, 0.75), mesh, Path(), RecordingReporter())
        keys = [next(key for key in decided.jobs if each in (key, key[0])) for each in wanted]
        jobs = {key: decided.jobs[key] for key in keys}
        return decided, replicated(mesh), compile_all(jobs, replicated(mesh), lambda *_: None)

    return build


def too_small(programs) -> list[tuple[int, ...]]:
    tiles = [tile for program in programs.values() for tile in gpu_code.product_tiles(program.as_text())]
    return [tile for tile in tiles if min(tile) < SMALLEST_TILE]


def test_for_a_gpu_no_product_is_left_untuned(build, tmp_path):
    decided, sharding, programs = build("h100", "body", "sample", "prompt_logprobs", "copy_blocks")
    assert too_small(programs) == []
    products = {key[0]: gpu_code.cublaslt_products(program.as_text()) for key, program in programs.items()}
    assert products == {"body": 7 * LAYERS, "sample": 1, "prompt_logprobs": 1, "copy_blocks": 0}
    save_bundle(tmp_path / "bundle", manifest_of(decided.sizing.shapes, sharding), programs)
    manifest = read_manifest(tmp_path / "bundle")
    assert (manifest.platform, manifest.device_kind) == ("gpu", "NVIDIA H100 80GB HBM3")
    assert manifest.mesh == {"data": 1, "model": 1}
    assert manifest.shapes["backend"] == "pallas_gpu"
    assert {"jax-cuda13-plugin", "jax-cuda13-pjrt"} <= manifest.versions.keys()


def test_untuned_products_would_be_noticed(build, monkeypatch):
    monkeypatch.setattr(compiler, "UNMEASURED_OPTIONS", {})
    assert too_small(build("h100", "body", num_layers=1)[2])


def test_for_eight_tpus_each_has_its_share(build, tmp_path):
    decided, sharding, programs = build("tpu-v5e-8", "body", SMALLEST_HEAD, "copy_blocks", "initial_state")
    save_bundle(tmp_path / "bundle", manifest_of(decided.sizing.shapes, sharding), programs)
    manifest = read_manifest(tmp_path / "bundle")
    assert (manifest.device_kind, manifest.mesh) == ("TPU v5 lite", {"data": 1, "model": 8})
    assert manifest.shapes["backend"] == "pallas_tpu"
    assert "libtpu" in manifest.versions
    memory = {program.kind: program.memory for program in manifest.programs}
    pools = LAYERS * BLOCKS * 2 * 16 * 128 * 2  # of one kv head
    assert memory["copy_blocks"]["alias"] == pools
    layer = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) * 2 // 8
    embeddings = 128256 * 4096 * 2 // 8
    assert memory["body"]["arguments"] == pytest.approx(LAYERS * layer + embeddings + pools, rel=0.02)
    assert memory["body"]["temporaries"] < 128 * 2**20


@pytest.mark.parametrize(
    ("name", "quantization"),
    [("tpu-v5e-8", "int8"), ("h100x2", "fp8"), ("a100", "int8_weight_only")],
)
def test_quantised_weights(build, tmp_path, name, quantization):
    """Embeddings, layers and head, on one device and shared: the bundle can be written and names the way."""
    decided, sharding, programs = build(name, "body", ("sample", (4, True)), num_layers=1, quantization=quantization)
    save_bundle(tmp_path / "bundle", manifest_of(decided.sizing.shapes, sharding), programs)
    assert read_manifest(tmp_path / "bundle").shapes["quantization"]["name"] == quantization
    plain = decided.model.config.vocab_size * decided.model.config.hidden_size * 2 / decided.settings.num_devices
    found = programs["sample", (4, True)].memory_analysis()
    assert found.argument_size_in_bytes < 0.6 * plain
