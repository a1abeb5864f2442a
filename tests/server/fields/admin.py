"""What each field of an order does, and what it must not be. Two models are served, `toy` and `other`."""

from tests.engine.test_model_admin import (
    test_a_drain_is_bounded_in_time,
    test_what_runs_may_finish_before_it_sleeps_but_not_for_ever,
)
from tests.server.fields.said import Ask, Effect, Elsewhere, Entry, Said, effect
from tests.server.fields.wrong import Wrong

ORDERED = "ordered"  # a server with an admin key


def _of_one(without: Said, with_it: Said, _: Ask) -> bool:
    return [*with_it.json["sleep_levels"]] == ["other"] and [*without.json["sleep_levels"]] == ["toy", "other"]


def _levels(without: Said, with_it: Said, _: Ask) -> bool:
    return {*without.json["sleep_levels"].values()} == {1} and {*with_it.json["sleep_levels"].values()} == {2}


def _reply_has(name: str):
    return lambda without, with_it, _: without.json[name] != with_it.json[name]


_MODEL: Effect = effect("other", _of_one, ORDERED)
WEIGHTS: dict[str, Entry] = {
    "path": effect(lambda ask: ask().json["path"].replace("fine", "better"), _reply_has("path"), ORDERED),
    "policy": effect("abort", _reply_has("policy"), ORDERED),  # what becomes of requests: tests/engine/test_swap*.py
    "timeout": Elsewhere(test_a_drain_is_bounded_in_time),
}
SLEEP: dict[str, Entry] = {
    "model": _MODEL,
    "level": effect("2", _levels, ORDERED),
    "timeout": Elsewhere(test_what_runs_may_finish_before_it_sleeps_but_not_for_ever),
}
WAKE: dict[str, Entry] = {"model": _MODEL}
WRONG_WEIGHTS: Wrong = {
    "path": ["", 5, "fine", "/a\0b"],
    "policy": ["hurry", 5],
    "timeout": [-1, 3601, "x"],
}
WRONG_SLEEP: Wrong = {"model": [], "level": ["3", "0", "x"], "timeout": [-1, 3601, "x"]}  # any text is a name: 404
WRONG_WAKE: Wrong = {"model": []}
