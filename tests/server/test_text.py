"""Text over HTTP, streamed and whole: what must be in it, what must not, and the ids it was made from."""

import json
import random
import threading
import time

import pytest
from tokenizers import AddedToken

from tests import toys
from tests.server.harness import JSON, LiveServer
from tests.server.test_answers import joined

ASK = {"complete": {"prompt": "ask"}, "chat": {}}
BOTH = pytest.mark.parametrize("ask", ASK)


def text_and_end(server: LiveServer, ask: str, **fields) -> tuple[str, str]:
    """Of the whole answer, after checking that the streamed one is the same."""
    send = getattr(server, ask)
    fields = ASK[ask] | fields
    (choice,) = send(**fields).json["choices"]
    text = choice["message"]["content"] if ask == "chat" else choice["text"]
    events = send(stream=True, **fields).events
    assert joined(events) == text
    assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return text, choice["finish_reason"]


@pytest.mark.parametrize(("script", "text"), [(b" is hot", " is hot"), (b"\xb6 is hot", "🌶 is hot")])
def test_report_2_no_text_of_a_prompt_that_ends_inside_a_character(make_live, script, text):
    prompt = toys.byte_level_tokenizer().encode("Hello world 🌶")
    assert text_and_end(make_live(script), "complete", prompt=prompt[:-1]) == (text, "stop")


@pytest.mark.parametrize(
    ("script", "max_tokens", "expected"),
    [
        (b"hi\nUser: x", 20, ("hi", "stop")),
        (b"hi\nUser x", 20, ("hi\nUser x", "stop")),
        (b"hi\nUser", 20, ("hi\nUser", "stop")),
        (b"hi\nUser: x", 7, ("hi\nUser", "length")),
        ("hi 日é!".encode(), 20, ("hi ", "stop")),
        ("hi 日 !".encode(), 20, ("hi 日 !", "stop")),
    ],
)
@BOTH
def test_report_6_stop_strings_are_held_back_and_never_lost(make_live, ask, script, max_tokens, expected):
    stop = ["\nUser:", "\nUse it", "日é"]
    assert text_and_end(make_live(script), ask, stop=stop, max_tokens=max_tokens) == expected


@BOTH
def test_report_8_no_stop_strings_stop_nothing_a_string_is_a_list_of_one_and_an_empty_one_is_refused(live, ask):
    for stop in (None, [], ["a", "b", "c", "d"]):
        assert text_and_end(live, ask, stop=stop) == ("hello", "stop")
    for stop in ("l", ["l"]):
        assert text_and_end(live, ask, stop=stop) == ("he", "stop")
    for stop in ("", [""], ["", "x"], list("abcde")):
        answer = getattr(live, ask)(**ASK[ask], stop=stop)
        assert (answer.status, answer.error["param"]) == (400, "stop")


@pytest.mark.parametrize("eos", [None, ord("!"), 10**6], ids=["special", "a word", "not the tokenizer's"])
@BOTH
def test_report_10_eos_is_counted_and_never_shown(make_live, ask, eos):
    """Wherever it was declared: it may be a token with text, or one that only the model has."""
    size = toys.byte_level_tokenizer().vocab_size
    server = make_live(b"hello", more_ids=1, eos=size if eos == 10**6 else eos)
    assert text_and_end(server, ask) == ("hello", "stop")
    reply = getattr(server, ask)(**ASK[ask], return_token_ids=True).json
    assert len(reply["choices"][0]["token_ids"]) == reply["usage"]["completion_tokens"] == 6


@BOTH
def test_report_5_a_stop_token_may_be_special(make_live, ask):
    tokenizer = toys.byte_level_tokenizer(template=toys.CHAT_TEMPLATE)
    assert tokenizer.bos_id in tokenizer.special_ids
    server = make_live([*b"he", tokenizer.bos_id, *b"llo"], tokenizer=tokenizer)
    assert text_and_end(server, ask) == ("hello", "stop")
    assert text_and_end(server, ask, stop_token_ids=[tokenizer.bos_id]) == ("he", "stop")


@BOTH
def test_special_tokens_are_shown_where_they_are_wanted(make_live, ask):
    tokenizer = toys.byte_level_tokenizer(template=toys.CHAT_TEMPLATE)
    server = make_live([*b"he", tokenizer.bos_id, *b"llo"], tokenizer=tokenizer)
    assert text_and_end(server, ask) == ("hello", "stop")
    assert text_and_end(server, ask, skip_special_tokens=False) == ("he<s>llo", "stop")
    shown = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert text_and_end(server, ask, **shown) == ("he<s>llo</s>", "stop")


@BOTH
def test_spaces_between_special_tokens_are_left_out_where_they_are_not_wanted(make_live, ask):
    tokenizer = toys.wordpiece_tokenizer(cleanup=True, template="{{ messages[0].content }}")
    ids = [tokenizer.encode(word, add_special_tokens=False)[-1] for word in ("do", "[SEP]", "[CLS]", "is")]
    server = make_live(ids, tokenizer=tokenizer, eos=0)
    assert text_and_end(server, ask, skip_special_tokens=False) == (" do [SEP] [CLS] is", "stop")
    fields = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    assert text_and_end(server, ask, **fields) == (" do [SEP][CLS] is", "stop")


@BOTH
def test_the_stop_string_is_in_the_text_where_it_is_wanted(live, ask):
    assert text_and_end(live, ask, stop="l") == ("he", "stop")
    assert text_and_end(live, ask, stop="l", include_stop_str_in_output=True) == ("hel", "stop")
    asked = {"stop_token_ids": [ord("l")], "include_stop_str_in_output": True}
    assert text_and_end(live, ask, **asked) == ("hel", "stop")


@BOTH
def test_ids_that_the_tokenizer_lacks_give_no_text(make_live, ask):
    size = toys.byte_level_tokenizer().vocab_size
    server = make_live([*b"hi", size + 3, *b"!"], more_ids=6)
    assert text_and_end(server, ask) == ("hi!", "stop")
    asked = {"logprobs": 2} if ask == "complete" else {"logprobs": True, "top_logprobs": 2}
    (choice,) = getattr(server, ask)(**ASK[ask], **asked, return_token_ids=True).json["choices"]
    events = getattr(server, ask)(**ASK[ask], **asked, return_token_ids=True, stream=True).events
    assert choice["token_ids"][:4] == [*b"hi", size + 3, *b"!"]
    assert [i for event in events for i in event["choices"][0]["token_ids"]] == choice["token_ids"]
    if ask == "complete":
        assert choice["logprobs"]["tokens"][:4] == ["h", "i", "", "!"]
        assert "" in choice["logprobs"]["top_logprobs"][2]
    else:
        unknown = choice["logprobs"]["content"][2]
        assert (unknown["token"], unknown["bytes"]) == ("", [])
        assert [(one["token"], one["bytes"]) for one in unknown["top_logprobs"]] == [("", []), ("", [])]


def test_report_70_a_prompt_has_one_bos_whoever_writes_it(make_live):
    tokenizer = toys.byte_level_tokenizer(add_bos=True, template=toys.CHAT_TEMPLATE)
    server = make_live(tokenizer=tokenizer)
    messages = [{"role": "user", "content": "Hello"}]
    expected = tokenizer.encode(tokenizer.apply_chat_template(messages), add_special_tokens=False)
    reply = server.chat(messages=messages, return_token_ids=True).json
    assert reply["prompt_token_ids"] == expected
    assert expected.count(tokenizer.bos_id) == 1
    assert reply["usage"]["prompt_tokens"] == len(expected)
    for prompt in ("Hello", "<s>Hello"):
        reply = server.complete(prompt=prompt, return_token_ids=True).json
        ids = reply["choices"][0]["prompt_token_ids"]
        assert ids == [tokenizer.bos_id, *tokenizer.encode("Hello", add_special_tokens=False)]
        assert reply["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("prompt", ["", ["", "a"]], ids=str)
def test_report_78_an_empty_prompt_is_the_bos_where_the_tokenizer_adds_one(make_live, prompt):
    tokenizer = toys.byte_level_tokenizer(add_bos=True)
    reply = make_live(tokenizer=tokenizer).complete(prompt=prompt, return_token_ids=True).json
    assert reply["choices"][0]["prompt_token_ids"] == [tokenizer.bos_id]
    assert reply["usage"]["prompt_tokens"] == (1 if prompt == "" else 3)
    assert all(choice["text"] == "hello" for choice in reply["choices"])


def test_report_15_fifty_slow_readers_each_get_every_number_in_order_and_then_the_end(make_live):
    numbers = [f" {number}" for number in range(200)]
    vocabulary = toys.byte_level_vocabulary()
    vocabulary.backend.add_tokens([AddedToken(number, normalized=False) for number in numbers])
    tokenizer = toys.as_tokenizer(vocabulary)
    answer = [vocabulary.backend.token_to_id(number) for number in numbers] + list(tokenizer.eos_ids)
    server = make_live(
        tokenizer=tokenizer, max_requests=50, max_model_len=256, num_blocks=(600,), next_token=None, answer=answer
    )  # fmt: skip
    read: dict[int, list[dict | str]] = {}

    def follow(client: int) -> None:
        delays = random.Random(client)
        connection = server.connect()
        body = {"model": "toy", "prompt": [client], "stream": True, "max_tokens": 210}
        connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        events = read[client] = []
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").strip()
                events.append("done" if data == b"[DONE]" else json.loads(data)["choices"][0])
            if delays.random() < 0.05:
                time.sleep(delays.uniform(0, 0.02))
        connection.close()

    threads = [threading.Thread(target=follow, args=(client,)) for client in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(read) == 50
    for *events, last in read.values():
        assert last == "done"
        assert "".join(event["text"] for event in events) == "".join(numbers)
        assert [event["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
