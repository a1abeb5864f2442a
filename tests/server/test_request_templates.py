"""Chat templates that come with a request: refused unless the server allows them, and then they harm nobody."""

import threading
import time

import pytest

from tests import toys
from tests.server.test_templates import prompt
from xlaserve.engine import child, request_template

GREETING = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ style }}"


@pytest.fixture
def allowing(make_live):
    """A server without a template of its own; afterwards it must still serve, with every block free."""
    vocabulary = toys.byte_level_vocabulary(template=None)
    server = make_live(tokenizer=toys.as_tokenizer(vocabulary), takes_chat_template=True)
    free_blocks = server.service.free_blocks()
    yield server
    assert server.complete().json["choices"][0]["text"] == "hello"
    assert server.service.free_blocks() == free_blocks


@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_does_not_allow_it_says_how_it_would(live, stream):
    answer = live.chat(chat_template=GREETING, stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "chat_template")
    assert "server.allow_chat_template: true" in answer.error["message"]
    assert live.chat(chat_template=None).status == 200


def test_a_request_may_bring_its_template(allowing):
    asked = {"chat_template": GREETING, "chat_template_kwargs": {"style": "plain"}}
    assert prompt(allowing, **asked) == "<s><user>hiplain"
    assert prompt(allowing, chat_template="{% if add_generation_prompt %}a{% endif %}{{ reasoning_effort }}b",
                  add_generation_prompt=False, reasoning_effort="low") == "lowb"  # fmt: skip
    assert allowing.chat(**asked, stream=True).events
    assert allowing.chat().error["param"] == "messages"  # the model has none


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
WRONG = {
    "no template": ("{% for %}", "not valid Jinja"),
    "its own refusal": ("{{ raise_exception('Never.') }}", "Never."),
    "a range for ever": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    "loops for ever": (ENDLESS, "than"),  # by the sandbox's clock or by ours
    "one call for ever": ("{{ ('a' * 5000000) | wordwrap(1) }}", "takes longer than 2 seconds"),
    "text without end": ("{% set x = 'a' * 10**6 %}{% for a in range(999) %}{{ x }}{% endfor %}", "too much text"),
    "a huge text": ("{{ 'a' * 2**24 }}{{ 'a' }}", "too much text"),
    "half a character": ("{{ '\\ud800' }}", "surrogate"),
    "all memory": ("{% set x = [0] * 2**27 %}", "MemoryError"),
    "nested too deep": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "too complex"),
    "Python by a class": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "__class__"),
    "Python by globals": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "__init__"),
    "Python by a format": ("{{ '{0.__class__}'.format(messages) }}", "__class__"),
    "a file": ("{% include '/etc/passwd' %}", "no loader"),
    "longer than the context": ("{{ 'a' * 9999 }}", "maximum context length"),
}


@pytest.mark.parametrize("name", WRONG)
def test_report_72_a_template_that_must_not_run_is_a_400_in_time(allowing, name, monkeypatch):
    if "for ever" in name:  # the others end by themselves, on a busy machine after a while
        monkeypatch.setattr(request_template, "SECONDS", 2.0)
    template, told = WRONG[name]
    start = time.monotonic()
    answer = allowing.chat(chat_template=template)
    assert time.monotonic() - start < request_template.SECONDS + 5  # and what a busy machine adds
    assert (answer.status, told in answer.error["message"]) == (400, True), answer.body
    assert answer.error["param"] == ("prompt" if name == "longer than the context" else "chat_template")


def test_others_are_served_meanwhile(allowing, monkeypatch):
    monkeypatch.setattr(request_template, "SECONDS", 2.0)
    hostile = [
        threading.Thread(target=allowing.chat, kwargs={"chat_template": ENDLESS})
        for _ in range(request_template.MAX_RENDERINGS)
    ]
    for thread in hostile:
        thread.start()
    try:
        for _ in range(5):
            assert allowing.complete().json["choices"][0]["text"] == "hello"
        monkeypatch.setattr(child, "MAX_WAIT", 0.05)
        if all(thread.is_alive() for thread in hostile):
            answer = allowing.chat(chat_template="a")
            assert (answer.status, answer.headers["Retry-After"]) == (429, "2")
    finally:
        for thread in hostile:
            thread.join()
