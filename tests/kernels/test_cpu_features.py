"""What is read of the host's processor."""

import pytest
from xlaserve_kernels.cpu_features import multiplies_bfloat16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model name : Old\nflags\t\t: fpu avx2 fma\n", False),
        ("flags\t\t: fpu avx512f avx512_vnni\n", False),
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("flags\t\t: amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16\n", True),  # Arm: left to XLA
    ],
)
def test_instructions_for_bfloat16(text, expected, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert multiplies_bfloat16(file) == expected


def test_a_system_that_does_not_tell(tmp_path):
    assert multiplies_bfloat16(tmp_path / "missing")
