"""Fixtures for all tests: the cache folder, and the real models where a test is marked `models`."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported: the references are computed on the CPU


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
