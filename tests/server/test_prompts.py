"""The forms a completion's prompt may have."""

import pytest

from tests.server.test_protocol import completion
from xlaserve.errors import InvalidRequest


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", ["hi"]),
        ("", [""]),
        (["a", ""], ["a", ""]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
    ids=str,
)
def test_prompt_forms(prompt, expected):
    assert completion(prompt=prompt).prompt == expected


@pytest.mark.parametrize(
    "prompt", [None, [], [[]], [1.5], [True], ["a", 1], [[1], "a"], [[1], []], [[1.0]], 5, {}], ids=str
)
def test_wrong_prompts(prompt):
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"
