"""The only owner of device state: it executes commands, in order, without waiting for the device.

Donated arrays are rebound on the line that donates them. It knows nothing of requests, text or scheduling.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import Array

from xlaserve.layers.quantized import QuantizedArray
from xlaserve.models.registry import head_weight
from xlaserve.runner.body import pack_body
from xlaserve.runner.buckets import Buckets, BucketUse
from xlaserve.runner.commands import (
    Body,
    Command,
    CopyBlocks,
    DropWeights,
    OffloadBlocks,
    Pool,
    PromptLogprobs,
    ResetRow,
    RestoreBlocks,
    Sample,
    Sleep,
    StepFuture,
    Wake,
)
from xlaserve.runner.compilations import LOG
from xlaserve.runner.futures import BodyFuture, PoolFuture, PromptLogprobsFuture, SampleFuture
from xlaserve.runner.heads.prompt_logprobs import pack_prompt_logprobs, prompt_logprobs_packing
from xlaserve.runner.heads.sample import pack_masks, pack_sample, sample_packing
from xlaserve.runner.host_blocks import Arrival, Blocks, HostSlots, pack_blocks, rounds
from xlaserve.runner.kv_cache import pack_copies
from xlaserve.runner.laid_aside import LaidAside
from xlaserve.runner.programs import Programs, ProgramShapes
from xlaserve.runner.row_state import mask_words, pack_reset, pack_rules


@dataclass(frozen=True)
class _Weights:
    params: Any
    head: Array | QuantizedArray  # [V, D]


class ModelRunner:
    """Weights, KV pools, row state and the compiled programs of one model."""

    def __init__(
        self,
        params: Any,
        shapes: ProgramShapes,
        sharding: jax.sharding.Sharding,
        programs: Programs,
    ):
        """programs: compiled for just these shapes and for such weights; some may come later, by `use`."""
        self._weights: dict[int, _Weights] = {}
        self._laid_aside: dict[int, LaidAside] = {}  # while it sleeps
        self._weights_version = 0  # of the last Body
        self.add_weights(0, params)
        self._shapes = shapes
        self._sharding = sharding
        self.use(programs)
        self.bucket_use = BucketUse.of(shapes.buckets)
        if shapes.host_slots:  # kept when the device's memory is lost
            self._host = HostSlots(shapes.specs, shapes.layouts, shapes.host_slots)
        with LOG.expect("start-up"):
            self.rebuild()

    def use(self, programs: Programs) -> None:
        """From the next step on these, among them all that were there before. From any thread."""
        self._ready = programs, programs.ready(self._shapes.buckets)

    @property
    def programs(self) -> Programs:
        return self._ready[0]

    @property
    def buckets(self) -> Buckets:
        """Those whose programs are there."""
        return self._ready[1]

    def add_weights(self, version: int, params: Any) -> None:
        """Others of the same shapes, dtypes and places, for the bodies that name them. From any thread."""
        self._weights[version] = _Weights(params, head_weight(params))

    def rebuild(self) -> None:
        """Makes pools and row state anew, empty: after a step that raised, the donated ones may be gone."""
        self._kv_caches, self._state = self.programs.initial_state()
        self._greedy = np.ones(self._shapes.max_num_seqs, bool)  # by row: it wants the best token and nothing else
        self._hidden: Array | None = None
        self._arrivals: list[Arrival] = []  # ordered since the last Sample
        words = mask_words(self._shapes.config.vocab_size)
        self._no_masks = {
            size: jax.device_put(np.full((size, words), -1, np.int32), self._sharding)
            for size in self._shapes.buckets.outputs
        }

    def execute(self, command: Command) -> StepFuture[Any] | None:
        """Launches `command`; PromptLogprobs, Pool and Sample return a future."""
        match command:
            case ResetRow():
                return self._reset_row(command)
            case OffloadBlocks(blocks):
                self._offload(blocks)
            case RestoreBlocks(blocks):
                self._restore(blocks)
            case CopyBlocks(copies):
                packed = pack_copies(self._shapes.copy_packing, copies)
                self._kv_caches = self.programs.copy_blocks(self._kv_caches, packed)
            case Body():
                return self._body(command)
            case PromptLogprobs():
                return self._prompt_logprobs(command)
            case Pool():
                return self._pool(command)
            case Sample():
                return self._sample(command)
            case DropWeights(version):
                self._weights.pop(version, None)
            case Sleep(level):
                self._sleep(level)
            case Wake():
                self._wake()

    def _sleep(self, level: int) -> None:
        if level == 1:
            self._laid_aside = {version: LaidAside(weights.params) for version, weights in self._weights.items()}
        else:
            del self._kv_caches, self._state, self._hidden, self._no_masks
        self._weights.clear()

    def _wake(self) -> None:
        if not self._laid_aside:
            self.rebuild()
        for version, laid_aside in self._laid_aside.items():
            self.add_weights(version, laid_aside.take_up())
        self._laid_aside.clear()

    def _reset_row(self, command: ResetRow) -> None:
        packed = pack_reset(self._shapes.reset_packing, command)
        state = self._state
        tables, sampling = self.programs.reset_row(state.block_tables, state.sampling, packed)
        self._state = state = replace(state, block_tables=tables, sampling=sampling)
        self._greedy[command.row] = command.temperature == 0 and command.rules is None
        if command.rules is not None:
            packed = pack_rules(self._shapes.rules_packing, command.row, command.rules)
            rules, counts = self.programs.set_rules(state.rules, state.counts, packed)
            self._state = replace(state, rules=rules, counts=counts)

    def _offload(self, blocks: Blocks) -> None:
        for group, sources, slots in rounds(blocks):
            pools = tuple(self._kv_caches[layer] for layer in self._shapes.specs[group].layers)
            staged = self.programs.gather_blocks[group](pools, pack_blocks(sources))
            for array in jax.tree.leaves(staged):
                array.copy_to_host_async()
            self._arrivals.append(Arrival(self._host, group, slots, staged))

    def _restore(self, blocks: Blocks) -> None:
        for group, destinations, slots in rounds(blocks):
            layers, pools = self._shapes.specs[group].layers, list(self._kv_caches)
            of_group = tuple(pools[layer] for layer in layers)
            staged = self._host.read(group, slots)
            of_group = self.programs.scatter_blocks[group](of_group, staged, pack_blocks(destinations))
            for layer, pool in zip(layers, of_group, strict=True):
                pools[layer] = pool
            self._kv_caches = tuple(pools)

    def _body(self, command: Body) -> None:
        num_tokens = sum(row.num_tokens for row in command.rows)
        programs, buckets = self._ready
        bucket = buckets.tokens_for(num_tokens)
        self.bucket_use.count(bucket, num_tokens)
        packed = pack_body(self._shapes.body(bucket), command)
        state, self._weights_version = self._state, command.weights_version
        self._hidden, self._kv_caches, tables = programs.bodies[bucket](
            self._weights[command.weights_version].params,
            self._kv_caches,
            state.block_tables,
            state.last_tokens,
            packed,
        )
        self._state = replace(state, block_tables=tables)

    def _prompt_logprobs(self, command: PromptLogprobs) -> PromptLogprobsFuture:
        assert self._hidden is not None, "PromptLogprobs before any Body"
        size = self._hidden.shape[0]
        packed = pack_prompt_logprobs(prompt_logprobs_packing(size), command)
        output = self.programs.prompt_logprobs(self._weights[self._weights_version].head, self._hidden, packed)
        for array in jax.tree.leaves(output):
            array.copy_to_host_async()
        return PromptLogprobsFuture(output, len(command.hidden_rows))

    def _pool(self, command: Pool) -> PoolFuture:
        assert self._hidden is not None, "Pool before any Body"
        self._hidden.copy_to_host_async()
        return PoolFuture(self._hidden, command.hidden_rows)

    def _sample(self, command: Sample) -> SampleFuture | BodyFuture:
        assert self._hidden is not None, "Sample before any Body"
        arrivals, self._arrivals = self._arrivals, []
        if not command.rows:  # a prompt's earlier chunk: no vocabulary product for nothing
            return BodyFuture(self._hidden, arrivals)
        programs, buckets = self._ready
        size = buckets.outputs_for(len(command.rows))
        greedy = not command.masks and all(self._greedy[sample_row.row] for sample_row in command.rows)
        packed = pack_sample(sample_packing(size), command)
        state, program = self._state, programs.samples[size, greedy]
        head = self._weights[self._weights_version].head
        if greedy:
            output, last_tokens = program(head, self._hidden, state.last_tokens, packed)
            self._state = replace(state, last_tokens=last_tokens)
        else:
            output, counts, last_tokens = program(
                head, self._hidden, state.sampling, state.rules, state.counts, state.last_tokens, packed,
                self._masks(command, size),
            )  # fmt: skip
            self._state = replace(state, counts=counts, last_tokens=last_tokens)
        for array in jax.tree.leaves(output) if command.want_logprobs else (output.tokens, output.ok):
            array.copy_to_host_async()
        return SampleFuture(output, len(command.rows), command.want_logprobs, arrivals)

    def _masks(self, command: Sample, size: int) -> Array | np.ndarray:
        return pack_masks(command, size, self._shapes.config.vocab_size) if command.masks else self._no_masks[size]
