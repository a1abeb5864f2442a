"""The page of the API: all of the OpenAPI document, nothing from elsewhere, and examples that work as they stand."""

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from tests.server.harness import LiveServer
from xlaserve.server.examples import Examples
from xlaserve.server.openapi import OPERATIONS, document
from xlaserve.server.unsupported import CHAT

VOID = {"meta"}


class Page(HTMLParser):
    """Its text by section: that of a `details`, by what its summary says first. Tags must be closed in order."""

    def __init__(self, html: str):
        super().__init__()
        self.sections: dict[str, str] = {}
        self.tags: list[tuple[str, dict]] = []
        self.style = ""
        self._open: list[str] = []
        self._text = ""
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "details":
            self._text = ""
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self._text += " " if tag in ("td", "th") else ""
        if tag == "details":
            words = self._text.split()
            name = " ".join(words[:2]) if words[0] in ("GET", "POST", "DELETE") else words[0]
            assert name not in self.sections
            self.sections[name] = self._text

    def handle_data(self, data):
        self._text += data
        if self._open and self._open[-1] == "style":
            self.style += data


@pytest.fixture
def page(live) -> Page:
    answer = live.get("/docs")
    assert answer.headers["Content-Type"].startswith("text/html")
    return Page(answer.body.decode())


def test_every_path_and_every_field_is_there(page):
    found = document()
    operations = {
        f"{method.upper()} {path}": each for path, of in found["paths"].items() for method, each in of.items()
    }
    schemas = found["components"]["schemas"]
    assert page.sections.keys() == operations.keys() | schemas.keys()
    for name, operation in operations.items():
        assert operation["summary"] in page.sections[name]
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] == "path" or parameter["name"] in page.sections[name].split()
    for name, schema in schemas.items():
        words = page.sections[name].split()
        for field, told in schema.get("properties", {}).items():
            assert field in words, (name, field)
            assert told.get("x-extension") is None or {"extension", "OpenAI"} & {*words}
            assert " ".join(told.get("description", "").split()) in " ".join(words)


def test_ranges_defaults_and_what_is_refused_are_there(page):
    chat = " ".join(page.sections["ChatRequest"].split())
    assert "top_logprobs integer 0 to 20 OpenAI" in chat
    assert "skip_special_tokens boolean true extension" in chat
    assert "messages list of Message 1 or more items required OpenAI" in chat
    for name, how in CHAT.items():
        assert f"{name} " in chat
        assert how.advice in chat
    assert {"href": "#ChatRequest"} in [attributes for tag, attributes in page.tags if tag == "a"]


def test_links_lead_to_something(page):
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        if tag == "a":
            assert attributes["href"] == "/openapi.json" or attributes["href"][1:] in targets


def test_the_page_needs_no_other_host(live, page):
    answer = live.get("/docs")
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "form", "object"}
    assert not [attributes for _, attributes in page.tags if attributes.keys() & {"src", "style", "onclick"}]
    assert not re.search(r"url\(|@import", page.style)
    hosts = set(re.findall(r"[a-z]+://([^/\s\"'<&]+)", answer.body.decode()))
    assert hosts == {f"127.0.0.1:{live.port}"}
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_is_there_while_the_model_loads():
    server = LiveServer()
    try:
        assert b"MODEL" in server.get("/docs").body
    finally:
        server.close()


def test_names_from_outside_are_only_text(make_live):
    server = make_live()
    answer = server.request("GET", "/docs", headers={"Host": "<script>x</script>"})
    assert b"<script" not in answer.body


def test_a_key_is_asked_for_where_one_is_needed(make_live):
    server = make_live(api_keys={"a": "key"})
    assert "$API_KEY" in server.get("/docs").body.decode()


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("with_key", [False, True])
def test_every_example_works_as_it_is_pasted(keep, with_key):
    server = keep(api_keys={"a": "key'\""} if with_key else None, toy={"step_seconds": 0.01})
    examples = Examples(server.url, "toy", with_key=with_key)
    for operation in OPERATIONS:
        example = examples.of(operation.method, operation.path)
        if example is None:
            assert operation.path.startswith("/admin/") or operation.path == "/v1/responses/{response_id}/cancel"
            continue
        # -f: an error's status is curl's own
        command = f"set -e\n{example.replace('curl -s', 'curl -sSf --max-time 10')}"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "API_KEY": "key'\""}
        )
        assert (done.returncode, done.stderr) == (0, ""), (example, done.stdout)
        assert done.stdout
