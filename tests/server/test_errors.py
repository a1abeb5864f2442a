"""Every error has OpenAI's shape, and a bad request leaves nothing behind."""

import json

import pytest

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.fixture
def checked(make_live):
    """The live server; afterwards a normal request must work and every block be free again."""
    server = make_live()
    free = server.service.free_blocks()
    yield server
    assert server.complete().json["choices"][0]["text"] == "hello"
    assert server.service.free_blocks() == free


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b'"x"',
        b"123",
        b"",
        b"{",
        b'{"a": "\xff"}',
        b'{"model": NaN}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\\ud83d"}',
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_report_77_malformed_bodies(checked, path, body):
    answer = checked.post(path, body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_report_77_wrong_content_type(checked, path):
    for headers in ({}, {"Content-Type": "text/plain"}):
        answer = checked.post(path, b'{"model": "toy", "prompt": "hi"}', headers)
        assert answer.status == 400
        assert "application/json" in answer.error["message"]


def test_report_77_a_lone_surrogate_in_a_message(checked):
    body = b'{"model": "toy", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    assert checked.post(CHAT, body).status == 400


def test_report_77_ten_thousand_wrong_messages_get_a_small_answer(make_live):
    server = make_live(max_body=1_000_000)
    answer = server.chat(messages=[{"role": "user", "content": 1}] * 10_000)
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert server.chat().status == 200


def test_a_body_over_the_limit(checked):
    for size in (100_001, 300_000):
        answer = checked.post(COMPLETIONS, b" " * size)
        assert answer.status == 413
        assert "100000" in answer.error["message"]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["ok", ""], None], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_report_78_empty_prompts(checked, prompt, stream):
    answer = checked.complete(prompt=prompt, stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "prompt")


@pytest.mark.parametrize("prompt", [[200_000], [-1], [1.5], [True], ["a", 1], [[1], [200_000]]], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_report_79_prompts_that_are_no_ids_of_the_vocabulary(checked, prompt, stream):
    answer = checked.complete(prompt=prompt, stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "prompt")


def test_report_79_the_last_id_of_the_vocabulary_and_lists_of_ids_are_fine(make_live):
    server = make_live()
    last = server.service.info.vocab_size - 1
    for prompt in ([last], [last + 1], [[1], [2]]):
        assert server.complete(prompt=prompt).status == (400 if prompt == [last + 1] else 200)


def test_a_prompt_as_long_as_the_context(make_live):
    server = make_live()
    limit = min(server.service.info.max_model_len, server.service.info.max_request_tokens)
    assert server.complete(prompt=[1] * (limit - 1)).json["usage"]["completion_tokens"] == 1
    for length in (limit, limit + 1):
        answer = server.complete(prompt=[1] * length)
        assert (answer.status, answer.error["param"]) == (400, "prompt")


@pytest.mark.parametrize("messages", [[], None, "hi", [{}], [{"role": "user"}], [1]], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_report_78_bad_messages(checked, messages, stream):
    answer = checked.chat(messages=messages, stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "messages")


@pytest.mark.parametrize("ask", ["complete", "chat"])
def test_a_text_that_is_too_long_for_certain_is_not_even_encoded(make_live, monkeypatch, ask):
    """Encoding megabytes takes a minute, in which the engine's thread has to share the CPU."""
    server = make_live()
    limit = server.service.info.max_model_len * server.service.tokenizer.longest_token
    encoded = []
    encode = server.service.tokenizer.encode
    monkeypatch.setattr(
        server.service.tokenizer, "encode", lambda text, **options: encoded.append(len(text)) or encode(text, **options)
    )
    text = "x" * (limit + 1)
    fields = {"prompt": text} if ask == "complete" else {"messages": [{"role": "user", "content": text}]}
    answer = getattr(server, ask)(**fields)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert encoded == []
    assert server.complete(prompt="x" * limit).error["code"] == "context_length_exceeded"
    assert encoded == [limit]


@pytest.mark.parametrize("stop_token_ids", [[999_999], [-1]], ids=str)
def test_report_37_stop_ids_outside_the_vocabulary(checked, stop_token_ids):
    assert checked.complete(stop_token_ids=stop_token_ids).error["param"] == "stop_token_ids"


@pytest.mark.parametrize("value", [0, -1, "5", 1.5, True], ids=repr)
@pytest.mark.parametrize("ask", ["complete", "chat"])
def test_report_80_bad_max_tokens_twice(checked, ask, value):
    for _ in range(2):
        answer = getattr(checked, ask)(max_tokens=value)
        assert (answer.status, answer.error["param"]) == (400, "max_tokens")


def test_report_80_max_tokens_beyond_the_context_is_capped(make_live):
    server = make_live(b"x" * 500)
    limit = min(server.service.info.max_model_len, server.service.info.max_request_tokens)
    choice = server.complete(max_tokens=10**9).json
    assert choice["usage"]["total_tokens"] == limit
    assert choice["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("ask", ["complete", "chat"])
def test_a_priority_that_would_have_no_effect(checked, ask):
    answer = getattr(checked, ask)(priority=1)
    assert (answer.status, answer.error["param"]) == (400, "priority")
    assert getattr(checked, ask)(priority=0).status == 200


def test_a_priority_is_heeded_where_the_policy_is_priority(make_live):
    server = make_live(b"x" * 500, step_seconds=0.005, max_num_seqs=1, policy="priority")
    body = {"model": "toy", "prompt": "hi", "max_tokens": 80, "ignore_eos": True, "priority": 1, "stream": True}
    with server.open(COMPLETIONS, body) as connection:
        response = connection.getresponse()
        first = response.readline()
        assert server.complete(priority=-1, max_tokens=3).status == 200, "it need not wait for the other"
        events = (first + response.read()).split(b"\n\n")
    assert server.service.stats()["preemptions"] == 1
    assert b"".join(json.loads(event[6:])["choices"][0]["text"].encode() for event in events[:-2]) == b"x" * 80


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_report_76_unknown_model(checked, path):
    fields = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    answer = checked.post(path, {"model": "other", **fields})
    assert answer.status == 404
    assert (answer.error["code"], answer.error["param"]) == ("model_not_found", "model")
    assert checked.post(path, fields).error["param"] == "model"


def test_report_76_unknown_routes_and_methods(checked):
    answer = checked.get("/v1/nothing")
    assert (answer.status, answer.error["message"]) == (404, "Invalid URL (GET /v1/nothing)")
    answer = checked.get(COMPLETIONS)
    assert answer.status == 405
    assert "POST" in answer.headers["Allow"]
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("length", "status"), [("many", 400), ("2000000", 413)])
def test_report_76_what_never_reaches_the_application_gets_the_same_shape(live, length, status):
    connection = live.connect()
    connection.connect()
    connection.sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
    answer = connection.sock.makefile("rb").read()
    connection.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status}".encode())
    assert b"Content-Type: application/json" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_report_72_a_template_that_refuses(checked):
    answer = checked.chat(messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "x"}])
    assert answer.status == 400
    assert "System role not supported" in answer.error["message"]


def test_an_unforeseen_error_is_a_500_that_tells_nothing(make_live, monkeypatch, caplog):
    server = make_live()
    monkeypatch.setattr(type(server.service), "submit_all", lambda *_args, **_kwargs: 1 / 0)
    answer = server.complete()
    assert answer.status == 500
    assert answer.error["type"] == "server_error"
    assert "division" not in answer.error["message"]
    assert "ZeroDivisionError" in caplog.text
