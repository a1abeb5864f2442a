"""A GenerationService whose model says the same to every prompt."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.toy_engine import make_engine
from tests.toy_runner import ToyRunner
from tests.toys import CHAT_TEMPLATE, byte_level_tokenizer
from xlaserve.engine.model_admin import SleepLevel
from xlaserve.engine.model_info import ModelInfo
from xlaserve.engine.service import GenerationService
from xlaserve.engine.tokenizer import Tokenizer
from xlaserve.engine.weights_store import Store

MAX_MODEL_LEN = 96
REFUSING_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHAT_TEMPLATE
)


def make_toy_service(
    script: bytes | Sequence[int],
    *,
    tokenizer: Tokenizer | None = None,
    more_ids: int = 0,
    eos: int | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    max_waiting: int = 1024,
    max_waiting_tokens: int | None = None,
    tool_parser: str | None = None,
    thinks: bool = False,
    takes_chat_template: bool = False,
    name: str = "toy",
    make_store: Callable[[ToyRunner], Store] | None = None,
    sleep_after: float | None = None,
    sleep_level: SleepLevel = 1,
    **engine_options: Any,
) -> tuple[GenerationService, ToyRunner]:
    """Answers `script`, a token per byte (or ids), and then EOS. Prompts must not end as the script begins.

    more_ids: how many the model has beyond the tokenizer's. eos: in place of the tokenizer's own.
    """
    tokenizer = tokenizer or byte_level_tokenizer(template=REFUSING_SYSTEM)
    vocab_size = tokenizer.vocab_size + more_ids
    end = min(tokenizer.eos_ids) if eos is None else eos

    def next_token(context: Sequence[int]) -> int:
        said = next(n for n in range(len(script), -1, -1) if list(context[len(context) - n :]) == list(script[:n]))
        return script[said] if said < len(script) else end

    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "next_token": next_token} | engine_options
    engine, runner = make_engine(vocab_size=vocab_size, **options)
    info = ModelInfo(
        name=name,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        max_request_tokens=engine.scheduler.block_manager.capacity,
        eos_ids=tokenizer.eos_ids | {end},
        created=1_700_000_000,
        tool_parser=tool_parser,
        thinks=thinks,
        takes_chat_template=takes_chat_template,
    )
    limits = {"max_waiting": max_waiting, "max_waiting_tokens": max_waiting_tokens}
    store = make_store(runner) if make_store else None
    sleep = {"sleep_after": sleep_after, "sleep_level": sleep_level}
    return GenerationService(engine, tokenizer, info, **limits, **sleep, store=store), runner
