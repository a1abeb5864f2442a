"""Several answers to one prompt: whole, streamed, aborted; and what they share."""

import tracemalloc

import pytest

from tests.server.test_answers import joined, usage


def test_whole_answers(live):
    reply = live.complete(n=3).json
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [(n, "hello") for n in range(3)]
    assert reply["usage"] == usage(2, 18)
    reply = live.chat(n=2).json
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["hello", "hello"]
    assert reply["usage"]["completion_tokens"] == 12


def test_choices_of_several_prompts_stand_prompt_by_prompt(live):
    reply = live.complete(prompt=["hi", "you"], n=2, return_token_ids=True).json
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert [len(choice["prompt_token_ids"]) for choice in reply["choices"]] == [2, 2, 3, 3]
    assert reply["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize("send", ["complete", "chat"])
def test_streamed_answers(live, send):
    events = getattr(live, send)(n=3, stream=True, stream_options={"include_usage": True}).events
    assert [joined(events, index) for index in range(3)] == ["hello"] * 3
    ends = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"] is not None]
    assert sorted(ends) == [0, 1, 2]
    assert events[-1]["usage"]["completion_tokens"] == 18


def test_answers_share_the_prompts_blocks(make_live):
    live = make_live(block_size=4, max_num_batched_tokens=64)
    assert live.complete(prompt="0123456789", n=4).status == 200
    metrics = live.get("/metrics").body.decode()
    assert 'xlaserve:num_forks_total{model_name="toy"} 3.0' in metrics


def test_seeded_answers_differ_and_come_again(make_live):
    live = make_live(next_token=None)
    asked = {"n": 4, "temperature": 1.0, "seed": 1, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    first, again = ([choice["token_ids"] for choice in live.complete(**asked).json["choices"]] for _ in range(2))
    assert first == again
    assert len(set(map(tuple, first))) == 4
    greedy = live.complete(**(asked | {"temperature": 0})).json["choices"]
    assert len({tuple(choice["token_ids"]) for choice in greedy}) == 1


def test_more_than_there_are_rows_take_turns(make_live):
    live = make_live(max_num_seqs=2)
    assert [choice["text"] for choice in live.complete(n=7).json["choices"]] == ["hello"] * 7


def test_more_than_the_server_ever_takes_is_refused(make_live):
    live = make_live(max_num_seqs=2, max_waiting=2)
    answer = live.complete(n=5)
    assert (answer.status, answer.json["error"]["param"]) == (400, "n")
    assert live.complete(n=4).status == 200


@pytest.mark.parametrize("n", [0, -1, 129, 2**31, 10**12, 10**30])
@pytest.mark.parametrize("send", ["complete", "chat"])
def test_numbers_of_answers_out_of_range_are_refused_and_cost_no_memory(live, send, n):
    tracemalloc.start()
    try:
        answer = getattr(live, send)(n=n)
        assert (answer.status, answer.error["param"]) == (400, "n")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_salt_keeps_prompts_apart(make_live):
    live = make_live(block_size=4)

    def hits(**fields) -> int:
        before = live.service._scheduler.prefix_hits
        assert live.complete(prompt="0123456789", **fields).status == 200
        return live.service._scheduler.prefix_hits - before

    assert [hits(), hits(), hits(cache_salt="a"), hits(cache_salt="a"), hits(cache_salt="b")] == [0, 9, 0, 9, 0]
