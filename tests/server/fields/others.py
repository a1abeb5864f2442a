"""What the fields of completions alone do, and those of the endpoints that generate nothing."""

import statistics

from tests.server import test_errors
from tests.server.fields.chat import CHAT, USER
from tests.server.fields.said import Ask, Elsewhere, Entry, NoEffect, Said, effect
from tests.server.tiny_server import BOS

MODEL = Elsewhere(test_errors.test_report_76_unknown_model)
FILED = "filed"  # a server with two files and a batch over each


def listed(said: Said) -> list[str]:
    return [item["id"] for item in said.json["data"]]


def _reply_has(field: str):
    return lambda without, with_it, _: with_it.json[field] != without.json[field]


def _best(_: Said, with_it: Said, ask: Ask) -> bool:
    """Of five answers the two whose tokens are likeliest on average; all five count."""
    five = ask(n=5)
    ranked = sorted(five.choices, key=lambda choice: -statistics.mean(choice["logprobs"]["token_logprobs"]))
    expected = [choice["text"] for choice in ranked[:2]]
    counted = with_it.usage["completion_tokens"] == five.usage["completion_tokens"]
    return counted and with_it.texts == expected != [choice["text"] for choice in five.choices[:2]]


COMPLETION: dict[str, Entry] = {
    "prompt": effect("Other words", lambda without, with_it, _: with_it.prompt == "Other words" != without.prompt),
    "logprobs": effect(
        2,
        lambda without, with_it, _: (
            max(map(len, with_it.choice["logprobs"]["top_logprobs"])) == 2 and without.choice["logprobs"] is None
        ),
    ),
    "best_of": effect(5, _best, n=2, temperature=1, seed=3, logprobs=0),
    "echo": effect(
        True, lambda without, with_it, _: with_it.text == "Once upon" + without.text != without.text, prompt="Once upon"
    ),
    "add_special_tokens": effect(False, lambda without, with_it, _: without.prompt_ids == [BOS, *with_it.prompt_ids]),
}


def tokens(said: Said) -> list[int]:
    return said.json["tokens"]


TOKENIZE: dict[str, Entry] = {
    **{name: entry for name, entry in CHAT.items() if name.startswith("messages")},
    "model": MODEL,
    "prompt": effect("abc", lambda without, with_it, _: tokens(with_it) == [BOS, *b"abc"] != tokens(without)),
    "add_special_tokens": effect(False, lambda without, with_it, _: tokens(without) == [BOS, *tokens(with_it)]),
    "add_generation_prompt": effect(
        False,
        lambda without, with_it, _: tokens(without) == [*tokens(with_it), *b"[assistant]"],
        prompt=None,
        messages=[USER],
    ),
    "return_token_strs": effect(
        True,
        lambda without, with_it, _: (
            with_it.json["token_strs"][:3] == ["<s>", "h", "i"] and not without.json["token_strs"]
        ),
    ),
}
DETOKENIZE: dict[str, Entry] = {
    "model": MODEL,
    "tokens": effect([*b"abc"], lambda without, with_it, _: with_it.json["prompt"] == "abc" != without.json["prompt"]),
}


def another_file(ask: Ask) -> str:
    return next(name for name in reversed(listed(ask.get("/v1/files"))))


BATCH: dict[str, Entry] = {
    "input_file_id": effect(another_file, _reply_has("input_file_id"), FILED),
    "endpoint": effect("/v1/chat/completions", _reply_has("endpoint"), FILED),
    "completion_window": NoEffect("24h is all there is"),
    "metadata": effect(
        {"a": "b"},
        lambda without, with_it, _: with_it.json["metadata"] == {"a": "b"} != without.json["metadata"],
        FILED,
    ),
}


def _first(ask: Ask) -> str:
    return listed(ask())[0]


_PAGES: dict[str, Entry] = {
    "limit": effect(1, lambda without, with_it, _: listed(with_it) == listed(without)[:1] != listed(without), FILED),
    "after": effect(
        _first, lambda without, with_it, _: listed(with_it) == listed(without)[1:] != listed(without), FILED
    ),
}
FILES_QUERY: dict[str, Entry] = _PAGES | {
    "order": effect(
        "asc", lambda without, with_it, _: listed(with_it) == listed(without)[::-1] != listed(without), FILED
    ),
    "purpose": effect(
        "batch_output", lambda without, with_it, _: len(listed(with_it)) == 2 < len(listed(without)), FILED
    ),
}
BATCHES_QUERY = _PAGES
