import threading
import time

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from xlaserve.engine.chat_template import ChatTemplate
from xlaserve.errors import InvalidRequest

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "hi <b>&\n"}]
CHAT = [{"role": "system", "content": "be brief"}, *USER, {"role": "assistant", "content": "hello"}, *USER]

CHATML = """{% for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}
"""
LLAMA = """{{- bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' ~ m['content'] ~
' [/INST]' }}{%- elif m['role'] == 'assistant' %}{% generation %}{{ ' ' ~ m['content'] ~ eos_token }}{% endgeneration %}
{%- else %}{{ m | tojson }}{% endif %}{% endfor %}"""
NAMESPACE = """{%- set ns = namespace(last=-1, self='x') -%}
{%- for m in messages -%}
    {%- if m.role == 'system' %}{% continue %}{% endif -%}
    {%- set ns.last = loop.index0 -%}
    {%- if loop.index > 2 %}{% break %}{% endif -%}
{%- endfor -%}
{%- macro show(text, width=8) -%}{{ '%-5s|' % text }}{{ text.center(width) }}{{ '{:>6}'.format(text) }}{%- endmacro -%}
{{ ns.last }} {{ ns.self }} {{ show('ab') }} {{ [1, 2] | tojson(indent=2) }} {{ dict(a=1).a }} {{ tools is none }}
{{ messages | map(attribute='role') | join(', ') }} {{ 'a-b' | replace('-', '+') }} {{ undefined_name }} {{ 3 * 4 }}
{{ 'x' * 3 }} {{ (messages | last).content.strip() }} {{ messages[0:1] | list | length }} {{ 7 % 4 }} {{ 2 ** 3 }}
"""


def render(source, messages=USER, add_generation_prompt=True):
    return ChatTemplate(source, VARIABLES).render(messages, add_generation_prompt=add_generation_prompt)


@pytest.mark.parametrize("source", [CHATML, LLAMA, NAMESPACE])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_as_transformers_does(source, add_generation_prompt):
    (expected,), _ = render_jinja_template(
        [CHAT], chat_template=source, add_generation_prompt=add_generation_prompt, **VARIABLES
    )
    assert render(source, CHAT, add_generation_prompt) == expected
    assert expected.strip()


@pytest.mark.parametrize("source", [CHATML, LLAMA, "{{ messages[-1].content }}!", "{{ messages[-1].content | trim }}!"])
@pytest.mark.parametrize("end", ["so far", "so far ", " \n so", ""])
def test_continues_the_final_message_as_transformers_does(source, end):
    chat = [*CHAT, {"role": "assistant", "content": end}]
    (expected,), _ = render_jinja_template([chat], chat_template=source, continue_final_message=True, **VARIABLES)
    template = ChatTemplate(source, VARIABLES)
    assert template.render(chat, add_generation_prompt=False, continue_final_message=True) == expected
    assert chat[-1]["content"] == end


def test_a_final_message_that_is_not_shown_cannot_be_continued():
    template = ChatTemplate("{{ messages[0].content }}", VARIABLES)
    with pytest.raises(InvalidRequest) as caught:
        template.render(CHAT, add_generation_prompt=False, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"é": {}}}}}]
WITH_TOOLS = """{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{{ tool.function.parameters | tojson(indent=2) }}
{% endfor %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"""


@pytest.mark.parametrize("tools", [TOOLS, None])
def test_tools_are_rendered_as_transformers_does(tools):
    (expected,), _ = render_jinja_template([USER], tools=tools, chat_template=WITH_TOOLS, add_generation_prompt=True)
    template = ChatTemplate(WITH_TOOLS, VARIABLES)
    assert template.render(USER, add_generation_prompt=True, tools=tools) == expected
    assert ("properties" in expected) is (tools is not None)


@pytest.mark.parametrize(
    ("source", "takes_tools"),
    [
        (WITH_TOOLS, True),
        ("{% set tools = [] %}{{ messages[0].tools }}", False),
        (CHATML, False),
        ("{% macro m() %}{{ tools }}{% endmacro %}{{ m() }}", True),
    ],
)
def test_whether_a_template_has_a_place_for_tools(source, takes_tools):
    template = ChatTemplate(source, VARIABLES)
    if takes_tools:
        template.render(USER, add_generation_prompt=True, tools=TOOLS)
    else:
        with pytest.raises(InvalidRequest, match="no place for tools") as caught:
            template.render(USER, add_generation_prompt=True, tools=TOOLS)
        assert caught.value.param == "tools"


def test_a_null_field_is_a_missing_field():
    source = "{% for m in messages %}{{ m.content if m.content is defined else '-' }}{% endfor %}"
    assert render(source, [{"role": "assistant", "content": None}]) == "-"


def test_the_time_is_known():
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "assistant", "content": "a"}],
        [{"role": "foo", "content": "a"}],
    ],
)
def test_the_template_refuses_in_its_own_words(messages):
    source = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('Conversation roles must alternate: ' + m.role) }}{% endif %}{% endfor %}"""
    with pytest.raises(InvalidRequest, match=r"^Conversation roles must alternate: \w+$") as caught:
        render(source, messages)
    assert caught.value.status == 400
    assert caught.value.param == "messages"


def test_an_accident_in_the_template_is_the_requests_error():
    with pytest.raises(InvalidRequest, match="TypeError: can only concatenate str"):
        render("{{ 'a' + messages }}")
    with pytest.raises(InvalidRequest, match="'nothing' is undefined"):
        render("{{ nothing.at_all }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ dict.__class__.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{% set ns = namespace(__class__=1) %}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ''|attr('__class__') }}",
        "{% include '/etc/passwd' %}",
        "{{ lipsum(n=100000) }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(InvalidRequest):
        render(source)


LOOP = "{% for a in range(99999) %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOP * 3 + END * 3,
        LOOP * 3 + "{% continue %}" + END * 3,
        "{% for a in range(99999) if range(99999)|select('odd')|list|length == 1 %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set l = [0, 0] %}{% for a in l recursive %}{% if loop.depth < 60 %}{{ loop(l) }}{% endif %}{% endfor %}",
    ],
    ids=["loops", "continue", "loop filter", "macros", "recursive loop"],
)
def test_a_template_that_would_not_end_is_stopped(source, monkeypatch):
    monkeypatch.setattr("xlaserve.engine.template_sandbox.MAX_SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(InvalidRequest, match=r"ran for more than 0\.2 seconds"):
        render(source)
    assert time.monotonic() - start < 20


def test_endless_recursion_is_stopped():
    with pytest.raises(InvalidRequest, match="recursion"):
        render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


DOUBLING = "{%% set ns = namespace(s='aaaa') %%}{%% for i in range(60) %%}%s{%% endfor %%}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ ([0] * 10**9) | length }}",
        "{% set x = 10**6 %}{{ 'a' * x * x }}",
        "{{ 10 ** (10**10) }}",
        "{% set ns = namespace(x=10) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ range(10**9) | list }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.ljust(width=1000000000) if false else 'a'.zfill(1000000000) }}",
        "{{ '\t'.expandtabs(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a\\nb' | indent(1000000000) }}",
        "{{ [1] | batch(1000000000, 0) | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%.1000000000f' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ strftime_now('%1000000000Y') }}",
        "{% set x = 'a' * 100000 %}{{ x.replace('a', x) }}",
        "{% set x = 'a' * 100000 %}{{ x | replace('a', x) }}",
        "{% set x = 'a' * 100000 %}{{ ([x] * 10000) | join }}",
        "{% set x = 'a' * 100000 %}{{ x.join(['b'] * 10000) }}",
        DOUBLING % "{% set ns.s = ns.s ~ ns.s %}",
        DOUBLING % "{% set ns.s = ns.s + ns.s %}",
        DOUBLING % "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}",
        DOUBLING.replace("'aaaa'", "[0]") % "{% set ns.s = ns.s + ns.s %}",
    ],
)
def test_a_template_cannot_fill_the_memory(source, monkeypatch):
    monkeypatch.setattr("xlaserve.engine.template_sandbox.MAX_CHARACTERS", 2**22)
    start = time.monotonic()
    with pytest.raises(InvalidRequest):
        render(source)
    assert time.monotonic() - start < 20


def test_literal_text_counts():
    source = "{% for i in range(20000) %}" + "a" * 20000 + "{% endfor %}"
    with pytest.raises(InvalidRequest, match="too much text"):
        render(source)


def test_long_conversations_are_no_trouble():
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": "word " * 1000} for n in range(1000)]
    text = render(LLAMA, messages)
    assert text.count("[INST]") == 500


def test_threads_have_budgets_of_their_own(monkeypatch):
    monkeypatch.setattr("xlaserve.engine.template_sandbox.MAX_CHARACTERS", 3000)
    template = ChatTemplate("{{ messages[0].content }}" * 10, VARIABLES)
    results = []

    def work():
        for _ in range(20):
            results.append(template.render([{"content": "x" * 200}], add_generation_prompt=False))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["x" * 2000] * 80


def test_a_broken_template_is_found_when_it_is_compiled():
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate("{% for %}", {})
