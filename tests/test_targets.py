"""The table of chips and targets, and what is said where a compiler is not installed."""

import jax
import pytest

from xlaserve import targets
from xlaserve.errors import ConfigError
from xlaserve.targets import CHIPS, TARGETS, find_chip, find_target

GIB = 2**30


@pytest.mark.parametrize("name", CHIPS)
def test_a_chip_is_complete(name):
    chip = CHIPS[name]
    assert (chip.platform == "tpu") == bool(chip.usable_bytes) == bool(chip.cores)
    assert (chip.platform == "rocm") != bool(chip.topologies)
    assert (chip.platform == "cuda") == bool(chip.description)
    assert 16e9 <= chip.hbm_bytes <= 400e9
    assert 5e11 <= chip.hbm_bandwidth <= 1e13
    for rate in (chip.int8, chip.fp8):
        assert rate is None or 0.99 <= rate / chip.bf16 <= 2.01
    assert 100 <= chip.bf16 / chip.hbm_bandwidth <= 700  # operations per byte
    assert f'"{chip.kind}"' in chip.description or chip.platform != "cuda"
    assert list(chip.topologies) == sorted(chip.topologies)
    assert all(count % chip.devices_per_chip == 0 for count in chip.topologies)


def test_names_of_devices_are_distinct():
    kinds = [chip.kind for chip in CHIPS.values()]
    assert len(set(kinds)) == len(kinds)


def test_every_target_has_a_name_of_its_own():
    for family in ("tpu-v5e-1", "tpu-v5e-4", "tpu-v5e-8", "tpu-v5p-4", "tpu-v6e-8", "tpu-v7x-2", "tpu-v7x-8", "cpu"):
        assert find_target(family).name == family
    for gpu in ("a100", "h100", "h200", "b200"):
        assert [find_target(f"{gpu}x{count}").num_devices for count in (1, 2, 4, 8)] == [1, 2, 4, 8]
        assert find_target(gpu) is find_target(f"{gpu}x1")
    assert all(target.name == name for name, target in TARGETS.items())


@pytest.mark.parametrize("name", ["h300", "gfx942", "tpu-v5e-3", "h100x3", "v5e", "x1", ""])
def test_an_unknown_target_is_refused_with_the_choices(name):
    with pytest.raises(ConfigError, match=rf"target '{name}': must be one of cpu, tpu-v5e-1, .*b200x8"):
        find_target(name)
    with pytest.raises(ConfigError, match=r"chip 'h300': must be one of v5e, .*gfx950"):
        find_chip("h300")


def test_what_a_device_may_use():
    """Of a TPU less than its vendor says, of a GPU jax's share, of a CPU it is not known."""
    assert find_target("tpu-v5e-8").usable_bytes() == 15.75 * GIB  # of each device
    assert find_target("tpu-v7x-8").usable_bytes() == pytest.approx(94.74 * GIB)  # half a chip's 192 GiB, less a GiB
    assert find_target("h100").usable_bytes() == 0.75 * 84_942_979_072
    assert find_target("h100x8").usable_bytes(0.9) == int(0.9 * 84_942_979_072)
    assert find_target("tpu-v5e-8").usable_bytes(0.9) == 15.75 * GIB
    assert find_target("cpu").usable_bytes() is None


@pytest.mark.parametrize(("name", "compiler"), [("tpu-v5e-8", "libtpu"), ("h100x4", "jax's CUDA plugin")])
def test_a_missing_compiler_is_named_with_its_package(name, compiler, monkeypatch):
    monkeypatch.setattr(targets, "find_spec", lambda module: None)
    told = rf"{name}: its compiler is not installed here; .*{compiler}: .*xlaserve\[compilers\]"
    with pytest.raises(ConfigError, match=told):
        find_target(name).devices()


def test_more_devices_than_are_known():
    with pytest.raises(ConfigError, match="v7x: no topology of 16 devices is known"):
        targets.devices("v7x", find_chip("v7x"), 16)


def test_the_cpu_is_this_machines():
    assert find_target("cpu").devices() == jax.devices("cpu")[:1]
