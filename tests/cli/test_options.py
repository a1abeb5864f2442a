"""How options become settings."""

from pathlib import Path

import pytest

from xlaserve.cli.options import resolve_config
from xlaserve.config import CacheSection
from xlaserve.errors import ConfigError


def cache_section(
    file: Path,
    *settings: str,
    kv_cache_memory: str | None = None,
    num_blocks: int | None = None,
    kv_cache_dtype: str | None = None,
) -> CacheSection:
    config = resolve_config(
        file,
        None,
        settings,
        None,
        None,
        None,
        kv_cache_memory=kv_cache_memory,
        num_blocks=num_blocks,
        kv_cache_dtype=kv_cache_dtype,
        server__port=9000,
    )
    assert config.server.port == 9000
    return config.cache


@pytest.mark.parametrize("in_file", ["num_blocks: 9", "memory: 1MiB", "memory_utilization: 0.5"])
def test_an_option_for_the_pools_size_replaces_the_files(in_file, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"cache:\n  block_size: 8\n  {in_file}\n")
    assert cache_section(file, num_blocks=7) == CacheSection(block_size=8, num_blocks=7)
    assert cache_section(file, kv_cache_memory="2MiB") == CacheSection(block_size=8, memory=2 * 2**20)
    assert cache_section(file) != CacheSection(block_size=8)
    with pytest.raises(ConfigError, match=r"cache.num_blocks \(7\) and cache.memory_utilization \(0.6\)"):
        cache_section(file, "cache.memory_utilization=0.6", num_blocks=7)


def test_an_option_for_the_pools_dtype(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("cache:\n  dtype: bfloat16\n")
    assert cache_section(file).dtype == "bfloat16"
    assert cache_section(file, kv_cache_dtype="fp8").dtype == "fp8"


def test_speculation_as_vllm_writes_it(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("speculative:\n  prompt_lookup_min: 2\n")
    asked = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
    found = resolve_config(file, *[None, ()], *[None] * 6, speculative_config=asked).speculative
    assert (found.method, found.num_drafts, found.lookup) == ("ngram", 5, (3, 4)), "in place of the whole section"
    with pytest.raises(ConfigError, match=r"unknown key 'speculative.model'"):
        resolve_config(file, *[None, ()], *[None] * 6, speculative_config='{"model": "x"}')
