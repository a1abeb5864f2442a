"""Chat templates over HTTP: a model without one, one that refuses, and one that must not run."""

import pytest

from tests import toys

ALTERNATING = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate, not so: ' ~ m.role) }}{% endif %}{{ m.content }}{% endfor %}"""


def message(role: str) -> dict:
    return {"role": role, "content": "x"}


@pytest.fixture
def with_template(make_live):
    """with_template(source) is a live server; afterwards it must still serve, with every block free."""
    servers = []

    def make(source: str | None):
        server = make_live(tokenizer=toys.byte_level_tokenizer(template=source))
        servers.append((server, server.service.free_blocks()))
        return server

    yield make
    for server, free_blocks in servers:
        assert server.complete().json["choices"][0]["text"] == "hello"
        assert server.service.free_blocks() == free_blocks


@pytest.mark.parametrize("stream", [True, False])
def test_report_71_chat_without_a_template_says_how_to_set_one(with_template, stream):
    answer = with_template(None).chat(stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert "--chat-template FILE" in answer.error["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("roles", ["system user", "user user", "assistant", "developer"])
def test_report_72_the_templates_own_refusal_is_the_answer(with_template, roles, stream):
    answer = with_template(ALTERNATING).chat(messages=[message(role) for role in roles.split()], stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert answer.error["message"].startswith("Roles must alternate, not so: ")


def test_report_72_what_the_template_takes_is_served_and_an_unknown_role_never_reaches_it(with_template):
    server = with_template(ALTERNATING)
    assert server.chat(messages=[message("user"), message("assistant"), message("user")]).status == 200
    answer = server.chat(messages=[message("foo")])
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert "Roles must alternate" not in answer.error["message"]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{{ messages.__class__.__mro__ }}", "__class__"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "ran for more than"),
        ("{% set x = 'a' * 10**6 %}{% for a in range(99999) %}{{ x }}{% endfor %}", "too much text"),
        ("{{ 'a' + messages }}", "TypeError"),
    ],
)
def test_report_72_a_template_that_must_not_run_harms_nobody(with_template, source, told, monkeypatch):
    monkeypatch.setattr("xlaserve.engine.template_sandbox.MAX_SECONDS", 0.2)
    server = with_template(source)
    for _ in range(2):
        answer = server.chat()
        assert (answer.status, answer.error["param"]) == (400, "messages")
        assert told in answer.error["message"]
