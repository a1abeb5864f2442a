"""Fixtures for all tests: the cache folder, and the real models where a test is marked `models`."""

import os
from collections import Counter
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported: the references are computed on the CPU


def pytest_addoption(parser):
    parser.addoption("--share", default="1/1", help="K/N: of each file every Nth test, from the Kth on")


def pytest_collection_modifyitems(config, items):
    first, step = map(int, config.getoption("--share").split("/"))
    of_file = Counter()
    kept, left_out = [], []
    for item in items:
        (kept if of_file[item.path] % step == first - 1 else left_out).append(item)
        of_file[item.path] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Models fetched once, and programs compiled once, serve later runs; beside what the user's own runs keep."""
    return Path(os.environ.get("XLASERVE_CACHE") or Path.home() / ".cache" / "xlaserve") / "tests"


@pytest.fixture(scope="session")
def demo_gguf(cache_dir) -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    from xlaserve.models.demo_model import fetch_demo

    return fetch_demo(cache_dir, print)


@pytest.fixture(scope="session")
def gemma_gguf(cache_dir) -> Path:
    """Gemma 3 270M, Q4_K_M."""
    from tests.fetch_models import fetch_gemma

    return fetch_gemma(cache_dir)
