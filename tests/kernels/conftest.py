"""Interpreting Pallas kernels takes seconds a case: those tests are `make kernels`, apart from `make test`."""

import contextlib
import shutil
from pathlib import Path

import jax
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from xlaserve_kernels import native
from xlaserve_kernels.native.library import COMPILERS

needs_native = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler")
_WHOLLY_INTERPRETED = ("test_kv_write.py", "test_traffic.py", "test_traffic_around.py")


@pytest.fixture(scope="session", autouse=True)
def native_kernels():
    """When the tests run, not when they are collected: others compute with what is loaded, too."""
    with contextlib.suppress(native.NativeUnavailable):  # test_native.py tells of it
        native.load(native.default_folder())


@pytest.fixture
def uncached():
    """Kernels are traced anew, with what is patched, and not used after."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def no_race():
    """jax 0.10 prints the races that its TPU interpreter finds, and goes on; later ones raise."""
    yield
    races = getattr(interpret_pallas_call, "races", None)
    assert races is None or not races.races_found


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here and ("interpret" in item.name or item.path.name in _WHOLLY_INTERPRETED):
            item.add_marker(pytest.mark.kernels)
