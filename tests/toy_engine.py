"""An engine over the toy runner."""

from collections.abc import Sequence
from typing import Any

from tests.toy_runner import ToyRunner
from xlaserve.config import PolicyName
from xlaserve.core.block_manager import BlockManager, GroupSpec
from xlaserve.core.host_pool import HostTier
from xlaserve.core.policy import make_policy
from xlaserve.core.scheduler import Scheduler
from xlaserve.core.speculation import Speculation
from xlaserve.engine.llm_engine import LLMEngine


def make_engine(
    num_blocks: Sequence[int] = (65,),
    *,
    block_size: int = 4,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    async_scheduling: bool = True,
    prefix_caching: bool = True,
    policy: PolicyName = "fcfs",
    host_slots: int = 0,
    host_min_tokens: int = 1,
    host_step_blocks: int = 100,
    speculation: Speculation | None = None,
    **runner_options,
) -> tuple[LLMEngine, ToyRunner]:
    """An engine over a ToyRunner. num_blocks: per layer group, the null block included; host_slots: of each group."""
    sizes: dict[str, Any] = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    runner = ToyRunner(num_blocks, block_size=block_size, **sizes, has_drafts=speculation is not None, **runner_options)
    groups = [GroupSpec(n, window) for n, window in zip(num_blocks, runner.windows, strict=True)]
    host = HostTier((host_slots,) * len(groups), host_min_tokens, host_step_blocks) if host_slots else None
    manager = BlockManager(
        groups, block_size, max_step_tokens=max_num_batched_tokens, prefix_caching=prefix_caching, host=host
    )
    scheduler = Scheduler(
        manager, **sizes, policy=make_policy(policy), max_outputs=runner.max_outputs, speculation=speculation
    )
    return LLMEngine(scheduler, runner, async_scheduling=async_scheduling), runner
