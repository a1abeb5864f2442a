"""What the fields of embeddings, scores and ranks do."""

from tests.server import test_embeddings
from tests.server.fields.others import MODEL
from tests.server.fields.said import Ask, Elsewhere, Entry, NoEffect, Said, effect
from tests.server.fields.wrong import GENERATION, NOT_TEXT, NOT_TRUE_OR_FALSE, Wrong

_SCHEDULING = Elsewhere(test_embeddings.test_scheduling_is_that_of_text)
_SCORES = Elsewhere(test_embeddings.test_scores_are_cosines)
_RANKS = Elsewhere(test_embeddings.test_ranks_go_from_the_best)
_NOT_TEXTS = [[], 5, [5], [["a"]], ["a"] * 2049]


def _num_tokens(by: int):
    """Fewer, with the field."""

    def check(without: Said, with_it: Said, _: Ask) -> bool:
        return without.usage["prompt_tokens"] - with_it.usage["prompt_tokens"] == by

    return check


_SHARED: dict[str, Entry] = {
    "model": MODEL,
    **dict.fromkeys(("priority", "timeout", "cache_salt"), _SCHEDULING),
    "request_id": effect(
        "mine", lambda without, with_it, _: with_it.json["id"].endswith("-mine") != without.json["id"]
    ),
    "user": NoEffect("OpenAI's no-op"),
}
EMBEDDING: dict[str, Entry] = _SHARED | {
    "input": Elsewhere(test_embeddings.test_many_texts_and_what_they_cost),
    "encoding_format": Elsewhere(test_embeddings.test_base64_is_the_same_in_float32),
    "dimensions": Elsewhere(test_embeddings.test_fewer_dimensions_are_of_length_one_too),
    "truncate_prompt_tokens": effect(2, _num_tokens(2), input="abc"),  # and <s>
    "add_special_tokens": effect(False, _num_tokens(1)),
}
SCORE: dict[str, Entry] = _SHARED | {
    **dict.fromkeys(("text_1", "text_2"), _SCORES),
    "truncate_prompt_tokens": effect(2, _num_tokens(4), text_1="abc", text_2="abc"),
    "add_special_tokens": effect(False, _num_tokens(2)),
}
RERANK: dict[str, Entry] = _SHARED | {
    **dict.fromkeys(("query", "documents", "documents.text", "top_n", "return_documents"), _RANKS),
    "truncate_prompt_tokens": effect(2, _num_tokens(6), query="abc", documents=["abc", "abc"]),
    "add_special_tokens": effect(False, _num_tokens(3)),
}
_NAMES = ("model", "priority", "timeout", "cache_salt", "truncate_prompt_tokens", "add_special_tokens", "request_id")
_WRONG: Wrong = {name: GENERATION[name] for name in (*_NAMES, "user")}
WRONG_EMBEDDING: Wrong = _WRONG | {
    "input": [[], [[]], 5, [-1], [999_999], [1.5], ["a", 1], ["a"] * 2049],
    "encoding_format": ["int8", 5, ["float"]],
    "dimensions": [0, -1, 1.5, "5", 100_000],
}
WRONG_SCORE: Wrong = _WRONG | {"text_1": _NOT_TEXTS, "text_2": _NOT_TEXTS}
WRONG_RERANK: Wrong = _WRONG | {
    "query": NOT_TEXT,
    "documents": ["a", [5], [], [["a"]], ["a"] * 2049],
    "documents.text": [[{"text": value}] for value in NOT_TEXT] + [[{}], [{"text": "a", "title": "b"}]],
    "top_n": [0, -1, 1.5, "1"],
    "return_documents": NOT_TRUE_OR_FALSE,
}
