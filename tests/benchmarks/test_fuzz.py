"""The fuzz script: what it tries, that a sound server passes, and that it finds what is wrong with another."""

import json
from collections import Counter

import pytest

from benchmarks import fuzz
from benchmarks.fuzz_requests import ENDPOINTS, FuzzRequest, Generator
from tests.server.conftest import make_live, workers  # noqa: F401
from xlaserve.errors import InvalidRequest
from xlaserve.server.protocol.chat import parse_chat
from xlaserve.server.validation import validate


def test_the_generator_repeats_itself_and_tries_everything():
    requests, again = ([generator.next() for _ in range(2000)] for generator in (Generator(1, "m"), Generator(1, "m")))
    assert requests == again
    assert Counter(one.kind for one in requests).keys() == {"fields", "junk", "leaves", "routes"}
    accepted = Counter()
    for endpoint in ENDPOINTS:
        tried = set()
        for one in requests:
            if one.kind == "fields" and one.path == endpoint.path:
                fields = json.loads(one.body)
                tried |= set(fields)
                try:
                    validate(endpoint.model, fields, endpoint.unsupported)
                    accepted[True] += 1
                except InvalidRequest:
                    accepted[False] += 1
        assert tried >= set(endpoint.model.model_fields), endpoint.path
    assert 0.2 < accepted[True] / accepted.total() < 0.9  # both kinds of values


def test_the_base_requests_are_fine():
    chat = next(endpoint for endpoint in ENDPOINTS if endpoint.path == "/v1/chat/completions")
    assert parse_chat({"model": "m"} | chat.base).max_tokens == 4


def run(server, count: int) -> list[str]:
    return fuzz.fuzz(server.url, None, count=count, warm_up=20, threads=4, seed=3)


def test_a_sound_server_has_no_faults(make_live, capsys):  # noqa: F811
    assert run(make_live(), 300) == []
    assert "| fields | " in capsys.readouterr().out


def test_a_server_error_is_found(make_live, monkeypatch):  # noqa: F811
    server = make_live()

    def fail(*_):
        raise KeyError("a bug")

    monkeypatch.setattr("xlaserve.server.utility.chat_ids", fail)
    monkeypatch.setattr(server.service.tokenizer, "decode", fail)
    faults = run(server, 300)
    assert any("status 500" in fault for fault in faults)


@pytest.mark.parametrize(
    ("status", "content_type", "body", "fault"),
    [
        (200, "application/json", b"{}", None),
        (400, "application/json", b'{"error": {"message": "m", "type": "t", "param": null, "code": null}}', None),
        (400, "application/json", b'{"error": {"message": "", "type": "t", "param": null, "code": null}}', "shape"),
        (404, "text/html", b"<html>", "shape"),
        (400, "application/json", b"null", "shape"),
        (500, "application/json", b"", "status 500"),
        (504, "application/json", b"", "status 504"),
        (200, "text/event-stream", b"data: {}\n\ndata: [DONE]\n\n", None),
        (200, "text/event-stream", b"data: {}\n\n", "no end"),
        (200, "text/event-stream", b'data: {"error": {"type": "server_error"}}\n\ndata: [DONE]\n\n', "server error"),
    ],
)
def test_what_is_a_fault(status, content_type, body, fault):
    found = fuzz.find_fault(FuzzRequest("fields", "POST", "/", b"{}"), status, content_type, body)
    assert (found is None) if fault is None else (found is not None and fault in found)


def test_only_who_asked_for_a_timeout_may_have_a_504():
    request = FuzzRequest("fields", "POST", "/", b'{"timeout": 0.01}')
    error = b'{"error": {"message": "m", "type": "t", "param": null, "code": null}}'
    assert fuzz.find_fault(request, 504, "application/json", error) is None
    assert fuzz.find_fault(request, 500, "application/json", error) is not None
