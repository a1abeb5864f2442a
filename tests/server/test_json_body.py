"""Bodies that are not one JSON object in UTF-8 are refused, each with a reason."""

import pytest

from xlaserve.errors import InvalidRequest
from xlaserve.server.json_body import parse_json_object

JSON = "application/json"


def test_an_object_is_read_as_it_stands():
    body = '{"a": [1, 2.5, null, true, "é 🌶 \\ud83c\\udf36"]}'.encode()
    assert parse_json_object(body, "application/json; charset=utf-8") == {"a": [1, 2.5, None, True, "é 🌶 🌶"]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"[]", "array"),
        (b"null", "null"),
        (b'"x"', "string"),
        (b"123", "number"),
        (b"true", "boolean"),
        (b'{"a": ', "could not parse"),
        (b"{'a': 1}", "could not parse"),
        (b'{"a": 1} x', "could not parse"),
        (b'{"a": "\xff"}', "UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": [-Infinity]}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": 1' + b"0" * 10_000 + b"}", "could not parse"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' stands twice"),
        (b'{"a": {"b": 1, "b": 1}}', "'b' stands twice"),
        (b'{"a": ["\\ud83d"]}', "surrogate"),
        (b'{"\\udf36": 1}', "surrogate"),
        (b'{"a": ' + b"[" * 200_000 + b"}", "nested too deeply"),
    ],
)
def test_report_77_anything_else_is_refused_with_its_reason(body, reason):
    with pytest.raises(InvalidRequest, match=reason) as caught:
        parse_json_object(body, JSON)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/json"]
)
def test_report_77_another_content_type_is_refused(content_type):
    with pytest.raises(InvalidRequest, match="application/json"):
        parse_json_object(b"{}", content_type)
