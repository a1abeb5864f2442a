"""The documents of tests/data/lm_eval, as the token ids whose scores lm-eval wants: a token is a byte.

What transformers says of them is recorded by `python -m tests.record_tiny_models`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.server.tiny_server import BOS, SETTINGS
from tests.tiny_models import DATA

FOLDER = Path(__file__).parent / "data" / "lm_eval"
RECORDED_FILE = DATA / "evaluation.json"
MODEL = "llama"
MAX_LENGTH = SETTINGS["model.max_model_len"]  # tokens, that of the answer included
MOST = MAX_LENGTH - 1  # tokens of a prompt

Scored = tuple[list[int], int]  # token ids, and how many of the last ones count


def documents(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]


def generation_settings() -> dict[str, Any]:
    """`until` and `max_gen_toks` of the task with answers."""
    return yaml.safe_load((FOLDER / "answers.yaml").read_text("utf-8"))["generation_kwargs"]


def choices(document: dict[str, Any]) -> Iterator[Scored]:
    """Each behind the context, or behind <s> where that is empty; what is too long is cut from the left."""
    context = [*document["context"].encode()] or [BOS]
    for choice in document["choices"]:
        ids = [*choice.encode()]
        yield (context + ids)[-MOST:], len(ids)


def windows(text: str) -> Iterator[Scored]:
    """All of the text behind <s>, each token once; those beyond the first window after as many as fit before them."""
    ids = [BOS, *text.encode()]
    for start in range(1, len(ids), MOST - 1):
        end = min(start + MOST - 1, len(ids))
        yield ids[max(0, end - MOST) : end], end - start
