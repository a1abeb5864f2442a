"""Interpreting Pallas kernels takes seconds a case: those tests are `make kernels`, apart from `make test`."""

from pathlib import Path

import pytest

_WHOLLY_INTERPRETED = ("test_kv_write.py", "test_traffic.py")


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here and ("interpret" in item.name or item.path.name in _WHOLLY_INTERPRETED):
            item.add_marker(pytest.mark.kernels)
