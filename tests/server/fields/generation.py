"""What the fields that completions and chat share do. The base request is greedy, of 8 tokens, and shows their ids."""

from collections.abc import Sequence

from tests.server import test_beam_search, test_errors, test_text, test_timeouts
from tests.server.fields.said import Ask, Elsewhere, Entry, NoEffect, Said, effect
from tests.server.tiny_server import BOS, EOS

HELLO = {"guided_choice": ["hello"]}  # what the model then says
A = {"logit_bias": {"65": 100}}  # it says A, and nothing else
ENDLESS = {"max_tokens": 60, "ignore_eos": True}
SAMPLED = {"temperature": 1.0, "seed": 7}
STREAM = {"stream": True, **HELLO}
SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}


def says(text: str):
    """With the field, white space aside; and not without it."""
    return lambda without, with_it, _: "".join(with_it.text.split()) == text and without.text != with_it.text


def _greedy(without: Said, with_it: Said, ask: Ask) -> bool:
    return with_it.ids == ask(temperature=0).ids != without.ids


def _penalised(without: Said, with_it: Said, _: Ask, prompt: Sequence[int] = ()) -> bool:
    """The first token that is another one comes in place of one that was there before."""
    at = next(n for n, (one, other) in enumerate(zip(without.ids, with_it.ids, strict=True)) if one != other)
    return without.ids[at] in (*prompt, *without.ids[:at])


def _seeded(_: Said, with_it: Said, ask: Ask) -> bool:
    return with_it.ids == ask(seed=3).ids and len({tuple(ask(seed=seed).ids) for seed in (3, 4, 5)}) == 3


def logprobs(said: Said) -> list[float]:
    found = said.choice["logprobs"]
    return [each["logprob"] for each in found["content"]] if "content" in found else found["token_logprobs"]


def _scored(said: Said) -> bool:
    """Two alternatives of each token but the first, and the token itself; ranks are places in the whole vocabulary."""
    found = said.json.get("prompt_logprobs") or said.choice["prompt_logprobs"]
    assert found[0] is None
    return len(found) == len(said.prompt_ids) and all(
        {str(token_id)} <= each.keys() and len(each) in (2, 3) and {1, 2} <= {one["rank"] for one in each.values()}
        for token_id, each in zip(said.prompt_ids[1:], found[1:], strict=True)
    )


def _streamed(without: Said, with_it: Said, _: Ask) -> bool:
    choices = [event["choices"][0] for event in with_it.answer.events]
    texts = [choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices]
    return "".join(texts) == without.text and choices[-1]["finish_reason"] == "stop"


def _counted(without: Said, with_it: Said, _: Ask) -> bool:
    """An event more: with the usage, and without a choice."""
    *events, last = with_it.answer.events
    alike = all(event["choices"] and event["usage"] is None for event in events)
    return alike and (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)


def _counted_in_each(without: Said, with_it: Said, _: Ask) -> bool:
    def counts(said: Said) -> list:
        return [(event["usage"] or {}).get("completion_tokens") for event in said.answer.events]

    counted = counts(with_it)
    return set(counts(without)[:-1]) == {None} and min(counted) > 0 and counted == sorted(counted) and counted[-1] == 6


def _not_cached(_: Said, with_it: Said, ask: Ask) -> bool:
    """The same prompt again is found, but not among those of the salt."""
    cached = [said.usage["prompt_tokens_details"]["cached_tokens"] for said in (ask(), with_it)]
    return cached[0] > 0 == cached[1]


GENERATION: dict[str, Entry] = {
    "n": effect(3, lambda without, with_it, _: with_it.texts == without.texts * 3),
    "max_tokens": effect(3, lambda _, with_it, ask: (len(with_it.ids), with_it.end) == (3, ("length", None)), **A),
    "temperature": effect(
        0, lambda without, with_it, ask: with_it.ids == ask(seed=8, temperature=0).ids != without.ids, **SAMPLED
    ),
    "top_p": effect(1e-9, _greedy, **SAMPLED),
    "top_k": effect(1, _greedy, **SAMPLED),
    "min_p": effect(1, _greedy, **SAMPLED),
    "presence_penalty": effect(2, _penalised, **ENDLESS),
    "frequency_penalty": effect(2, _penalised, **ENDLESS),
    "repetition_penalty": effect(
        10, lambda without, with_it, ask: _penalised(without, with_it, ask, without.prompt_ids), **ENDLESS
    ),
    "logit_bias": effect({"65": 100}, says("A" * 8)),
    "allowed_token_ids": effect([65], says("A" * 8)),
    "bad_words": effect(["A"], lambda without, with_it, _: "A" in without.text and "A" not in with_it.text, **A),
    "min_tokens": effect(
        4, lambda without, with_it, _: (len(without.ids), len(with_it.ids)) == (1, 5), stop_token_ids=[65], **A
    ),
    "seed": effect(3, _seeded, temperature=1, max_tokens=30),
    "stop": effect("l", lambda _, with_it, ask: (with_it.text, with_it.end) == ("he", ("stop", "l")), **HELLO),
    "stop_token_ids": effect(
        [101], lambda _, with_it, ask: (with_it.text, with_it.end) == ("h", ("stop", 101)), **HELLO
    ),
    "ignore_eos": effect(
        True, lambda without, with_it, _: (len(without.ids), len(with_it.ids)) == (1, 8), logit_bias={str(EOS): 100}
    ),
    "skip_special_tokens": effect(
        False, lambda without, with_it, _: (without.text, with_it.text) == ("", "<s>" * 8), allowed_token_ids=[BOS]
    ),
    "spaces_between_special_tokens": Elsewhere(
        test_text.test_spaces_between_special_tokens_are_left_out_where_they_are_not_wanted
    ),
    "include_stop_str_in_output": effect(True, says("hel"), stop="l", **HELLO),
    "guided_json": effect(SCHEMA, says('{"a":1}'), max_tokens=40),
    "guided_regex": effect("b{3}", says("bbb")),
    "guided_choice": effect(["hello"], says("hello")),
    "guided_grammar": effect('root ::= "hello"', says("hello")),
    "prompt_logprobs": effect(
        2, lambda without, with_it, _: _scored(with_it) and b"prompt_logprobs" not in without.answer.body
    ),
    "use_beam_search": effect(
        True, lambda without, with_it, _: len({*with_it.texts}) == 2 > len({*without.texts}), n=2
    ),
    "beam_width": effect(
        8,
        lambda without, with_it, _: sum(logprobs(with_it)) > sum(logprobs(without)),
        use_beam_search=True,
        logprobs=True,
        ignore_eos=True,
    ),
    "length_penalty": Elsewhere(test_beam_search.test_the_penalty_decides_between_short_and_long),
    "return_token_ids": effect(
        True,
        lambda without, with_it, _: "token_ids" in with_it.choice and "token_ids" not in without.choice,
        return_token_ids=None,
    ),
    "return_tokens_as_token_ids": effect(
        True,
        lambda without, with_it, _: b"token_id:65" in with_it.answer.body and b"token_id:" not in without.answer.body,
        logprobs=True,
        **A,
    ),
    "return_timings": effect(
        True, lambda without, with_it, _: with_it.choice["timings"]["total"] > 0 and "timings" not in without.choice
    ),
    "truncate_prompt_tokens": effect(
        2, lambda without, with_it, _: with_it.prompt_ids == without.prompt_ids[-2:] != without.prompt_ids
    ),
    "request_id": effect(
        "mine",
        lambda without, with_it, _: with_it.json["id"].endswith("-mine") and not without.json["id"].endswith("-mine"),
    ),
    "priority": Elsewhere(test_errors.test_a_priority_is_heeded_where_the_policy_is_priority),
    "timeout": Elsewhere(test_timeouts.test_a_running_request_ends_with_its_partial_text),
    "cache_salt": effect("a", _not_cached),
    "stream": effect(True, _streamed, **HELLO),
    "stream_options": effect({"include_usage": True}, _counted, **STREAM),
    "stream_options.include_usage": effect(
        {"include_usage": True}, _counted, **STREAM, stream_options={"include_usage": False}
    ),
    "stream_options.continuous_usage_stats": effect(
        {"include_usage": True, "continuous_usage_stats": True},
        _counted_in_each,
        **STREAM,
        stream_options={"include_usage": True},
    ),
    "stream_options.include_obfuscation": NoEffect("false is all there is"),
    "user": NoEffect("OpenAI's no-op", "someone"),
    "metadata": NoEffect("OpenAI's no-op", {"a": "b"}),
}
