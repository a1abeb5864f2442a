"""Which precision is chosen, and the reason that the banner gives."""

import numpy as np
import pytest

from tests.runner.test_programs import TINY
from xlaserve.models.config import parse_config
from xlaserve.runner import dtype
from xlaserve.runner.dtype import choose_dtype


def config(**keys):
    return parse_config(TINY | keys, "tiny")


def test_a_named_dtype_is_taken():
    assert choose_dtype("float16", config(), "cpu") == (np.float16, "model.dtype")


@pytest.mark.parametrize("stored", ["float16", "float32", "bfloat16"])
def test_accelerators_take_the_checkpoints(stored):
    chosen, reason = choose_dtype("auto", config(dtype=stored), "tpu")
    assert (chosen.name, reason) == (stored, "the checkpoint's")


@pytest.mark.parametrize(("bfloat16", "expected"), [(1.0, "bfloat16"), (1.9, "float32"), (3.0, "float32")])
def test_the_cpu_takes_the_faster_and_float32_where_it_is_close(bfloat16, expected, monkeypatch):
    monkeypatch.setattr(dtype, "_time_products", lambda config: {"float32": 2.0, "bfloat16": bfloat16})
    chosen, reason = choose_dtype("auto", config(dtype="float16"), "cpu")
    assert chosen.name == expected
    assert f"float32 2.00 ms, bfloat16 {bfloat16:.2f} ms" in reason


def test_the_cpu_is_measured(monkeypatch):
    monkeypatch.setattr(dtype, "_WEIGHT_BYTES", 2**16)
    chosen, reason = choose_dtype("auto", config(), "cpu")
    assert chosen.name in ("float32", "bfloat16")
    assert "the faster here" in reason
