"""The bench of single operations, on the device that is here."""

import re
import sys

import pytest
from xlaserve_kernels import bench

TIMED = r"\| [1-9]\d* \| \d+\.\d \|"  # microseconds and GB/s


def run(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments, "--repeats", "1"])
    bench.main()


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("paged_attention", "smollm2-135m; decode"),
        ("kv_write", "smollm2-135m"),
        ("quantized_matmul", "smollm2-135m o, w8a8 by group; decode"),
        ("fused_norm", "smollm2-135m, int8; decode"),
        ("gated_activation", "smollm2-135m, int8; decode"),
    ],
)
def test_a_case_is_timed(op, shape, monkeypatch, capsys):
    run(monkeypatch, "--op", op, "--shape", shape)
    assert re.search(rf"^\| {shape}.* {TIMED}$", capsys.readouterr().out, re.M)


def test_a_backend_is_timed_beside_another(monkeypatch, capsys):
    run(monkeypatch, "--op", "fused_norm", "--shape", "smollm2-135m, int8; decode", "--compare", "xla")
    assert re.search(rf"^\| smollm2.* {TIMED[:-3]} {TIMED} \d+\.\d\d \|$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--op", "kv_write", "--shape", "gpt-5"), "no case of kv_write has 'gpt-5' in its name: llama-3.1-8b"),
        (("--op", "grouped_matmul", "--backend", "pallas_tpu_interpret"), "grouped_matmul has no pallas_tpu_interpret"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, *arguments)
    assert message in capsys.readouterr().err
