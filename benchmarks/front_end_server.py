"""`xlaserve serve` over a device that sleeps: `python -m benchmarks.front_end_server STEP_SECONDS ROWS ARGS...`

Every step takes STEP_SECONDS on the device, however many rows it has, and every token is a letter. Nothing here imports
jax, and what the host does is what it does for a real device, but for packing arrays and launching programs.
"""

import sys
import time
import types
from dataclasses import dataclass

from benchmarks.host_step import Done, FreeRunner
from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.scheduler import Scheduler
from xlaserve.engine.llm_engine import LLMEngine
from xlaserve.engine.model_info import ModelInfo
from xlaserve.engine.service import GenerationService
from xlaserve.engine.tokenizer import load_tokenizer
from xlaserve.runner.commands import Command, SampleResult

MAX_MODEL_LEN = 2048
BLOCK_SIZE = 16
_LETTER = ord("a")


@dataclass(frozen=True)
class _Later(Done):
    ready_at: float  # of time.perf_counter()

    def result(self) -> SampleResult:
        time.sleep(max(0.0, self.ready_at - time.perf_counter()))  # without Python's lock, as a device's step
        return self.sampled


class SleepingRunner(FreeRunner):
    """A device that does one step after the other; the host need not wait for one before it launches the next."""

    def __init__(self, step_seconds: float):
        self._step_seconds = step_seconds
        self._free_at = 0.0

    def execute(self, command: Command) -> _Later | None:
        done = super().execute(command)
        if done is None:
            return None
        self._free_at = max(time.perf_counter(), self._free_at) + self._step_seconds
        done.sampled.tokens[:] = _LETTER
        return _Later(done.sampled, self._free_at)


def make_service(step_seconds: float, rows: int) -> GenerationService:
    blocks = BlockManager([GroupSpec(1 + rows * MAX_MODEL_LEN // BLOCK_SIZE)], BLOCK_SIZE, max_step_tokens=2**20)
    scheduler = Scheduler(blocks, max_num_seqs=rows, max_num_batched_tokens=2**20)
    tokenizer = load_tokenizer(None, None)  # a token is a byte
    info = ModelInfo("toy", MAX_MODEL_LEN, tokenizer.vocab_size, blocks.capacity, tokenizer.eos_ids)
    return GenerationService(LLMEngine(scheduler, SleepingRunner(step_seconds)), tokenizer, info)


def main(step_seconds: float, rows: int, arguments: list[str]) -> None:
    build = types.ModuleType("xlaserve.engine.build")
    vars(build)["build_service"] = lambda *_args, **_more: make_service(step_seconds, rows)
    sys.modules[build.__name__] = build
    from xlaserve.cli.main import main as xlaserve

    xlaserve(["serve", *arguments], prog_name="xlaserve")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
