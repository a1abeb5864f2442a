"""The KV pools' sizes, the context they allow, and what all that holds, told with its reasons."""

from collections.abc import Iterable
from dataclasses import dataclass

from jax.stages import Compiled

from xlaserve.config import Config
from xlaserve.engine.kv_budget import Budget, Probe, kv_budget, mib
from xlaserve.engine.reporter import Reporter
from xlaserve.engine.settings import Settings
from xlaserve.errors import ConfigError
from xlaserve.models.kv_spec import kv_specs
from xlaserve.runner.kv_cache import block_bytes, make_layouts
from xlaserve.runner.memory import DeviceMemory
from xlaserve.runner.pool_size import GroupDemand, KVDemand, PoolSize
from xlaserve.runner.program_memory import ProgramMemory, program_memory
from xlaserve.runner.programs import ProgramShapes

SHOWN_LENGTHS = (1024, 4096, 16384, 65536)  # tokens


@dataclass(frozen=True)
class Sizing:
    """What was decided, and from what."""

    shapes: ProgramShapes
    pool: PoolSize
    max_model_len: int  # tokens
    memory: DeviceMemory | None  # before anything of ours was there; None on a device that uses the host's
    weight_bytes: int


def size_pools(
    config: Config,
    settings: Settings,
    weight_bytes: int,
    memory: DeviceMemory | None,
    probe: Probe,
    reporter: Reporter,
) -> Sizing:
    """weight_bytes: on each device. memory: of each, None where it uses the host's. probe: see `kv_budget`.

    Raises ConfigError when a request of the configured length cannot fit.
    """
    specs = kv_specs(settings.model)
    layouts = make_layouts(specs, settings.backend, settings.block_size, settings.kv_dtype, settings.num_devices)
    groups = tuple(GroupDemand(block_bytes(*pair), pair[0].sliding_window) for pair in zip(specs, layouts, strict=True))
    demand = KVDemand(groups, settings.block_size, settings.max_num_seqs, settings.max_num_batched_tokens)
    if config.cache.num_blocks is not None:
        chosen = _by_blocks(config, settings, demand, config.cache.num_blocks)
    else:
        budget = kv_budget(config.cache, settings, weight_bytes, memory, probe)
        chosen = _by_bytes(config, settings, demand, budget, capped=memory is None)
    chosen.tell(settings, reporter)
    shapes = settings.shapes(chosen.pool.num_blocks, chosen.max_model_len)
    return Sizing(shapes, chosen.pool, chosen.max_model_len, memory, weight_bytes)


def check_memory(sizing: Sizing, programs: Iterable[Compiled], reporter: Reporter, *, num_more: int = 0) -> None:
    """Tells what the final programs need. Raises ConfigError when that, weights and pools together are too much.

    So it would be if temporaries grew with the pools: their budget left room for those of programs over small ones.
    num_more: programs to come, none of which needs more than one of these. A device that uses the host's memory is not
    asked: its compiler takes a while to tell.
    """
    if sizing.memory is None:
        return
    needed = program_memory(sizing.shapes, programs, num_more=num_more)
    shown = f"{mib(needed.temporaries)} of temporaries, {mib(needed.num_bytes - needed.temporaries)} besides"
    reporter.info("programs' memory", shown, "by the compiler's account")
    check_fits(sizing, needed)


def check_fits(sizing: Sizing, needed: ProgramMemory) -> None:
    """Raises ConfigError when programs, weights and pools together are too much for a device."""
    memory = sizing.memory
    if memory is None:
        return
    taken = memory.in_use + sizing.weight_bytes + sizing.pool.num_bytes + needed.num_bytes
    if taken > memory.total:
        raise ConfigError(
            f"weights ({mib(sizing.weight_bytes)}), KV pool ({mib(sizing.pool.num_bytes)}), programs "
            f"({mib(needed.num_bytes)}) and what was in use ({mib(memory.in_use)}) are more than the "
            f"{mib(memory.total)} of the device: lower cache.memory, cache.num_blocks or cache.memory_utilization"
        )


@dataclass(frozen=True)
class _Choice:
    pool: PoolSize
    reason: str
    max_model_len: int
    length_reason: str

    def tell(self, settings: Settings, reporter: Reporter) -> None:
        reporter.info("max_model_len", self.max_model_len, self.length_reason)
        pool = self.pool
        blocks = ", ".join(
            f"{n} for {len(spec.layers)} {spec.name} layers"
            for n, spec in zip(pool.num_blocks, kv_specs(settings.model), strict=True)
        )
        size = f"{pool.num_tokens:,} tokens, {mib(pool.num_bytes)}; blocks of {settings.block_size}: {blocks}"
        reporter.info("KV pool", size, self.reason)
        lengths = [length for length in SHOWN_LENGTHS if length < self.max_model_len] + [self.max_model_len]
        held = ", ".join(f"{pool.requests(length)} of {length:,}" for length in lengths)
        reporter.info("requests held", f"{held} tokens", f"at most {settings.max_num_seqs} run at once")


def _by_blocks(config: Config, settings: Settings, demand: KVDemand, num_blocks: int) -> _Choice:
    wanted = settings.max_model_len
    longest = PoolSize(demand, demand.given(num_blocks, wanted)).longest(wanted)
    remedy = f"set cache.num_blocks to {max(demand.num_blocks(1, wanted))}"
    max_model_len, length_reason = _length(config, settings, longest, f"cache.num_blocks: {num_blocks}", remedy)
    pool = PoolSize(demand, demand.given(num_blocks, max_model_len))
    return _Choice(pool, "cache.num_blocks", max_model_len, length_reason)


def _by_bytes(config: Config, settings: Settings, demand: KVDemand, budget: Budget, *, capped: bool) -> _Choice:
    """capped: no more than max_num_seqs requests of max_model_len can use; else the rest keeps known prefixes."""
    wanted = settings.max_model_len
    longest = demand.longest(budget.num_bytes, wanted)
    if longest == 0:
        least = demand.bytes_of(demand.num_blocks(1, 1))
        raise ConfigError(
            f"{budget.reason}: {budget.num_bytes} bytes hold no block of {settings.block_size} tokens "
            f"(that and the null block take {least} bytes)"
        )
    remedy = budget.remedy(demand.bytes_of(demand.num_blocks(1, wanted)))
    max_model_len, length_reason = _length(config, settings, longest, budget.reason, remedy)
    num_blocks, reason = demand.divide(budget.num_bytes, max_model_len), budget.reason
    most = demand.most(max_model_len)
    if capped and demand.bytes_of(most) <= budget.num_bytes:
        num_blocks, reason = most, "all that max_num_seqs requests of max_model_len can use"
    return _Choice(PoolSize(demand, num_blocks), reason, max_model_len, length_reason)


def _length(config: Config, settings: Settings, longest: int, source: str, remedy: str) -> tuple[int, str]:
    """max_model_len and its reason. A configured one is kept or refused, the model's own is capped.

    longest: tokens of the longest request that the pool holds. source: of the pool's size. remedy: for all of it.
    """
    wanted = settings.max_model_len
    if longest >= wanted:
        return wanted, settings.length_reason
    if config.model.max_model_len is not None:
        raise ConfigError(
            f"model.max_model_len is {wanted}: the KV pool ({source}) holds requests of at most {longest} tokens. "
            f"Lower model.max_model_len to that, or {remedy}"
        )
    return longest, f"what the KV pool holds ({source}); for the model's {wanted:,}, {remedy}"
