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


def prompt(server, **fields) -> str:
    ids = server.chat(**fields, return_token_ids=True).json["prompt_token_ids"]
    return server.post("/detokenize", {"tokens": ids}).json["prompt"]


def test_the_generation_prompt_may_be_left_out_and_the_final_message_continued(with_template):
    server = with_template(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}.{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    messages = [message("user"), {"role": "assistant", "content": "It is"}]
    assert prompt(server, messages=messages) == "[user]x.[assistant]It is.[assistant]"
    assert prompt(server, messages=messages, add_generation_prompt=False) == "[user]x.[assistant]It is."
    continued = {"add_generation_prompt": False, "continue_final_message": True}
    assert prompt(server, messages=messages, **continued) == "[user]x.[assistant]It is"
    answer = server.chat(messages=messages, continue_final_message=True)
    assert (answer.status, answer.error["param"]) == (400, "continue_final_message")


def test_variables_of_the_template(with_template):
    server = with_template("{{ style | default('plain') }} {{ messages[0].content }} {{ documents | tojson }}")
    assert prompt(server) == "plain hi null"
    assert prompt(server, chat_template_kwargs={"style": {"a": [1]}}, documents=[{"text": "d"}]) == (
        '{\'a\': [1]} hi [{"text": "d"}]'
    )
    for name in ("other", "messages", "bos_token", "tokenize", "add_generation_prompt"):
        answer = server.chat(chat_template_kwargs={name: "x"})
        assert (answer.status, answer.error["param"]) == (400, "chat_template_kwargs")
        assert name in answer.error["message"]


def test_documents_need_a_template_that_takes_them(with_template):
    answer = with_template("{{ messages[0].content }}").chat(documents=[{"text": "d"}])
    assert (answer.status, answer.error["param"]) == (400, "documents")
