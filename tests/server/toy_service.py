"""A GenerationService whose model says the same to every prompt."""

from collections.abc import Sequence

from tests.toy_runner import ToyRunner, make_engine
from tests.toys import CHAT_TEMPLATE, byte_level_tokenizer
from xlaserve.engine.service import GenerationService, ModelInfo

MAX_MODEL_LEN = 96
REFUSING_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHAT_TEMPLATE
)


def make_toy_service(
    script: bytes, *, max_waiting: int = 1024, **runner_options
) -> tuple[GenerationService, ToyRunner]:
    """Answers `script`, a token per byte, and then EOS. Prompts must not end as the script begins."""
    tokenizer = byte_level_tokenizer(template=REFUSING_SYSTEM)
    (eos,) = tokenizer.eos_ids

    def next_token(context: Sequence[int]) -> int:
        said = next(n for n in range(len(script), -1, -1) if list(context[len(context) - n :]) == list(script[:n]))
        return script[said] if said < len(script) else eos

    engine, runner = make_engine(
        max_num_seqs=8,
        max_num_batched_tokens=64,
        vocab_size=tokenizer.vocab_size,
        next_token=next_token,
        **runner_options,
    )
    info = ModelInfo(
        name="toy",
        max_model_len=MAX_MODEL_LEN,
        vocab_size=tokenizer.vocab_size,
        max_request_tokens=engine.scheduler.block_manager.capacity,
        eos_ids=tokenizer.eos_ids,
        created=1_700_000_000,
    )
    return GenerationService(engine, tokenizer, info, max_waiting=max_waiting), runner
