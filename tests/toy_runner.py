"""A Runner without a model: the next token is arithmetic on the tokens it finds through the block tables.

Body writes token ids into a paged store, Sample reads the context back. So a wrong table, a wrong position, a stale row
or a block that two requests share shows as a wrong token. `toy_token` says what the right one is.

Misuse that a device would not notice is noted in `violations`, since an exception would look like a failed step.
"""

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xlaserve.core.block_manager import NULL_BLOCK
from xlaserve.runner.buckets import BucketUse
from xlaserve.runner.commands import (
    NO_DRAFT,
    Body,
    Command,
    CopyBlocks,
    DropWeights,
    OffloadBlocks,
    Pool,
    PoolResult,
    PromptLogprobs,
    PromptLogprobsResult,
    ResetRow,
    RestoreBlocks,
    Sample,
    SampleResult,
    SampleRow,
    Sleep,
    Wake,
)
from xlaserve.sampling_params import MAX_LOGPROBS

POISON = -1  # what unwritten memory holds
HIDDEN_SIZE = 8
_STAMP = 2**32  # what is written tells by which weights: others must not read it
WRONG = -2  # the token of a context that cannot be read: no test expects it

NextToken = Callable[[Sequence[int]], int]


def toy_token(
    context: Sequence[int], *, vocab_size: int, seed: int = 0, position: int | None = None, weights: int = 0
) -> int:
    """The token that follows `context`; a greedy request's seed is 0."""
    position = len(context) if position is None else position
    key = np.asarray([*context, position, seed % 2**31, *([weights] if weights else [])], np.int32).tobytes()
    return zlib.crc32(key) % vocab_size


def toy_score(
    context: Sequence[int], next_id: int, *, vocab_size: int, weights: int = 0
) -> tuple[float, int, list[int], list[float]]:
    """Of the token after `context`: its logprob, its rank, and the best ids with their logprobs."""
    key = zlib.crc32(np.asarray([*context, next_id], np.int32).tobytes()) + weights
    ids = [(key + i) % vocab_size for i in range(MAX_LOGPROBS)]
    return -(key % 1000) / 128, 1 + key % 7, ids, [-(key % 10) - i / 4 for i in range(MAX_LOGPROBS)]


def toy_hidden(context: Sequence[int], weights: int = 0) -> np.ndarray:
    """float32 [HIDDEN_SIZE], small integers."""
    key = zlib.crc32(np.asarray(context, np.int32).tobytes()) + weights
    return np.array([1 + (key >> shift) % 16 for shift in range(HIDDEN_SIZE)], np.float32)


def toy_output(
    prompt_ids: Sequence[int], max_tokens: int, *, vocab_size: int, stop_ids=frozenset(), seed: int = 0, weights=0
) -> list[int]:
    """What a request is to give, computed directly."""
    context = list(prompt_ids)
    while len(context) < len(prompt_ids) + max_tokens:
        context.append(toy_token(context, vocab_size=vocab_size, seed=seed, weights=weights))
        if context[-1] in stop_ids:
            break
    return context[len(prompt_ids) :]


def first_allowed(token: int, mask: np.ndarray, vocab_size: int) -> int:
    """The token, or the next one after it whose bit is set; ids go round."""
    return next_allowed(token, np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size))


def next_allowed(token: int, allowed: np.ndarray) -> int:
    """The token, or the next one after it for which `allowed` [V] holds; ids go round."""
    return (token + int(np.roll(allowed, -token).argmax())) % len(allowed)


def scripted(scripts: Mapping[tuple[int, ...], Sequence[int]], then: int) -> NextToken:
    """Each prompt is followed by its script, and after the script by `then` (EOS, say)."""

    def next_token(context: Sequence[int]) -> int:
        for prompt, script in scripts.items():
            done = len(context) - len(prompt)
            if tuple(context[: len(prompt)]) == prompt and list(context[len(prompt) :]) == list(script[:done]):
                return script[done] if done < len(script) else then
        return then

    return next_token


@dataclass
class ToyFuture:
    runner: "ToyRunner"
    sent_back: Any
    ready_at: float
    error: BaseException | None
    arriving: dict[tuple[int, int], np.ndarray]  # what comes to which host slot

    def result(self) -> Any:
        self.runner.released.wait()
        time.sleep(max(0.0, self.ready_at - time.monotonic()))
        if self.error:
            raise self.error
        self.runner.host.update(self.arriving)
        return self.sent_back


class ToyRunner:
    """next_token(context): replaces the arithmetic. answer: what every request gets, its last id again and again; not
    for pools so small that requests are preempted. step_seconds: how long the device takes; the host need not wait.

    windows: sliding window of each layer group, None for full attention; the first group must have that.

    fail_at: ("body" | "sample" | "result", n) for each n-th such call (from 0) that is to raise `failure`; from then on
    everything does until `rebuild()`, as after a donation. not_ok(context): True for rows whose logits are not finite.
    """

    def __init__(
        self,
        num_blocks: Sequence[int],
        *,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        vocab_size: int = 1000,
        next_token: NextToken | None = None,
        answer: Sequence[int] | None = None,
        step_seconds: float = 0.0,
        fail_at: Collection[tuple[str, int]] = (),
        failure: BaseException | None = None,
        not_ok: Callable[[Sequence[int]], bool] = lambda context: False,
        windows: Sequence[int | None] = (),
        max_outputs: int | None = None,
        has_drafts: bool = False,
    ):
        self.num_blocks = list(num_blocks)
        self.bucket_use = BucketUse()
        self.has_drafts = has_drafts  # a row may go back to where the first of them was wrong
        self.windows = list(windows) or [None] * len(self.num_blocks)
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_outputs = max_num_seqs if max_outputs is None else max_outputs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.vocab_size = vocab_size
        self.next_token = next_token
        self.answer = answer
        self.step_seconds = step_seconds
        self.fail_at = set(fail_at)
        self.failure = failure or RuntimeError("injected")
        self.not_ok = not_ok
        self.released = threading.Event()  # cleared by a test: no step comes back until it is set again
        self.released.set()
        self.violations: list[str] = []
        self.calls: Counter[str] = Counter()
        self.num_rebuilds = -1
        self.host: dict[tuple[int, int], np.ndarray] = {}  # blocks by (group, slot)
        self._device_free_at = 0.0
        self.weights: dict[int, Any] = {0: None}  # that it has got, by version
        self._version, self.asleep = 0, 0  # of the weights of the last body; the level of its sleep
        self.rebuild()

    def rebuild(self) -> None:
        self.num_rebuilds += 1
        width = max(self.num_blocks[0], 64)
        self._store = [np.full((n, self.block_size), POISON, np.int64) for n in self.num_blocks]
        self._tables = [np.full((self.max_num_seqs, width), NULL_BLOCK) for _ in self.num_blocks]
        self._computed: list[int | None] = [None] * self.max_num_seqs  # None: whatever the row's blocks hold
        self._last_tokens = [POISON] * self.max_num_seqs
        self._first_position: dict[int, int] = {}  # of the output, by row
        self._seen: dict[int, list[int]] = {}  # what the penalties of a row with rules see
        self._rows: dict[int, ResetRow] = {}
        self._hidden: list[list[int] | None] = []
        self._arriving: dict[tuple[int, int], np.ndarray] = {}
        self._broken = False

    def execute(self, command: Command) -> ToyFuture | None:
        self._count(type(command).__name__.lower())
        if self._broken and not isinstance(command, DropWeights):
            raise RuntimeError("array has been deleted or donated")
        match command:
            case ResetRow():
                self._reset_row(command)
            case OffloadBlocks(blocks):
                for group, block, slot in blocks:
                    self._check((group, slot) not in self._arriving, f"slot {slot} is named twice")
                    self._arriving[group, slot] = self._store[group][block].copy()
                    self.host.pop((group, slot), None)
            case RestoreBlocks(blocks):
                for group, block, slot in blocks:
                    self._check((group, slot) in self.host, f"slot {slot} has not arrived")
                    self._store[group][block] = self.host.get((group, slot), POISON)
            case CopyBlocks(copies):
                for group, source, destination in copies:
                    self._store[group][destination] = self._store[group][source]
            case Body():
                self._body(command)
            case PromptLogprobs(hidden_rows, next_ids):
                scored = [self._score(row, next_id) for row, next_id in zip(hidden_rows, next_ids, strict=True)]
                ok = [
                    context is None or not self.not_ok(context)
                    for context in map(self._hidden.__getitem__, hidden_rows)
                ]
                logprobs, ranks, top_ids, top_logprobs = map(np.array, zip(*scored, strict=True))
                return self._future(PromptLogprobsResult(np.array(ok), logprobs, ranks, top_ids, top_logprobs))
            case Pool(hidden_rows):
                sums = [
                    sum(self._toy_hidden(row) for row in range(first, first + count)) for first, count in hidden_rows
                ]
                return self._future(PoolResult(np.array(sums)))
            case Sample():
                return self._sample(command)
            case DropWeights(version):
                self.weights.pop(version, None)
            case Sleep(level):
                self.asleep = level
                if level == 2:
                    self.weights.clear()
                    self.rebuild()
            case Wake():
                self.asleep = 0

    def _count(self, call: str) -> None:
        number, self.calls[call] = self.calls[call], self.calls[call] + 1
        if (call, number) in self.fail_at:
            self._broken = True
            if call != "result":
                raise self.failure

    def _check(self, fine: bool, what: str) -> None:
        if not fine:
            self.violations.append(what)

    def _reset_row(self, command: ResetRow) -> None:
        for table, blocks in zip(self._tables, command.block_tables, strict=True):
            table[command.row] = NULL_BLOCK
            table[command.row, : len(blocks)] = blocks
        self._rows[command.row] = command
        self._computed[command.row] = None
        self._last_tokens[command.row] = POISON
        self._first_position.pop(command.row, None)
        self._seen.pop(command.row, None)
        if command.rules is not None:
            self._seen[command.row] = [*command.rules.prompt_ids, *command.rules.output_ids]

    def add_weights(self, version: int, params: Any) -> None:
        self.weights[version] = params

    def _body(self, command: Body) -> None:
        self._version = command.weights_version
        self._check(self._version in self.weights and not self.asleep, f"no weights {self._version}")
        rows = [row.row for row in command.rows]
        self._check(rows == sorted(set(rows)), f"rows {rows} do not ascend")
        num_tokens = sum(row.num_tokens for row in command.rows)
        self._check(0 < num_tokens <= self.max_num_batched_tokens, f"{num_tokens} tokens in a step")
        self._check(list(command.outputs) == sorted(set(command.outputs)), "outputs")
        self._check(len(command.outputs) <= self.max_outputs, f"{len(command.outputs)} outputs in a step")
        for group, row, column, block in command.table_deltas:
            self._tables[group][row, column] = block
        for row in command.rows:
            computed = self._computed[row.row]
            fine = computed in (None, row.start) or (self.has_drafts and row.start < computed)
            self._check(fine, f"row {row.row} goes on at {row.start}, not {computed}")
            token_ids = (self._last_tokens[row.row],) if row.token_ids is None else row.token_ids
            self._check(len(token_ids) == row.num_tokens, f"row {row.row}: {len(token_ids)} ids")
            for position, token in enumerate(token_ids, row.start):
                self._write(row.row, position, token)
            self._computed[row.row] = row.start + row.num_tokens
        spans = {row.row: (row.start, row.start + row.num_tokens) for row in command.rows}
        contexts = {row: self._read(row, *span) for row, span in spans.items()}
        tokens = [(row, end) for row, (start, stop) in spans.items() for end in range(start + 1, stop + 1)]
        self._hidden = [
            None if (context := contexts[row]) is None else context[:end]
            for row, end in (tokens[output] for output in command.outputs)
        ]

    def _write(self, row: int, position: int, token: int) -> None:
        column, offset = divmod(position, self.block_size)
        for table, store in zip(self._tables, self._store, strict=True):
            block = table[row, column]
            self._check(block != NULL_BLOCK, f"row {row} writes position {position} to the null block")
            if block != NULL_BLOCK:
                store[block, offset] = token + _STAMP * self._version

    def _read(self, row: int, start: int, end: int) -> list[int] | None:
        """The context of the row's tokens from `start` to `end`; None if it has holes or the groups disagree.

        A group with a window is read from where the token at `start` sees it.
        """
        columns = -(-end // self.block_size)
        groups = zip(self._tables, self._store, strict=True)
        stamped = [store[table[row, :columns]].reshape(-1)[:end] for table, store in groups]
        contexts = [np.where(x == POISON, POISON, x - _STAMP * self._version).tolist() for x in stamped]
        first = [0 if window is None else max(0, start - window + 1) for window in self.windows]
        fine = all(0 <= token < _STAMP for token in contexts[0]) and all(
            context[seen:] == contexts[0][seen:] for context, seen in zip(contexts, first, strict=True)
        )
        self._check(fine or self._broken, f"row {row} reads {contexts} from {start} to {end}")
        return contexts[0] if fine else None

    def _sample(self, command: Sample) -> ToyFuture:
        tokens, ok = [], []
        self._check(len(command.rows) <= self.max_outputs, "samples")
        masks, counts = dict(command.masks), True
        for index, row in enumerate(command.rows):
            context = self._hidden[row.hidden_row]
            token = WRONG if context is None else self._token_after(context, row.row, row.position)
            token = first_allowed(token, masks[index], self.vocab_size) if index in masks else token
            counts = row.draft == NO_DRAFT or (counts and row.draft == tokens[-1])
            tokens.append(self._keep_rules(row, token, context, counts))
            ok.append(context is None or not self.not_ok(context))
            if counts:
                self._last_tokens[row.row] = tokens[-1] if row.draft == NO_DRAFT else POISON
                self._computed[row.row] = row.position
        self._device_free_at = max(time.monotonic(), self._device_free_at) + self.step_seconds
        self._count("result")
        arriving, self._arriving = self._arriving, {}
        return self._future(self._result(tokens, ok, command.want_logprobs), arriving)

    def _future(self, result: Any, arriving: dict | None = None) -> ToyFuture:
        error = self.failure if self._broken else None
        return ToyFuture(self, result, self._device_free_at, error, arriving or {})

    def _score(self, hidden_row: int, next_id: int) -> tuple[float, int, list[int], list[float]]:
        context = self._hidden[hidden_row] or [WRONG]
        return toy_score(context, next_id, vocab_size=self.vocab_size, weights=self._version)

    def _toy_hidden(self, hidden_row: int) -> np.ndarray:
        return toy_hidden(self._hidden[hidden_row] or [WRONG], self._version)

    def _keep_rules(self, row: SampleRow, token: int, context: list[int] | None, counts: bool) -> int:
        """The token, or the next one that the row's rules allow, by their sets alone; counts it if it is to count."""
        rules = self._rows[row.row].rules
        if rules is None:
            return token
        seen = self._seen[row.row]
        self._check(not counts or context in (None, seen), f"row {row} has counted {seen}, not {context}")
        banned = {*rules.forbidden, *(rules.stop_ids if row.position < rules.first_stop else ())}
        allowed = [t not in banned and (rules.allowed is None or t in rules.allowed) for t in range(self.vocab_size)]
        token = token if token == WRONG else next_allowed(token, np.array(allowed))
        if counts:
            seen.append(token)
        return token

    def _token_after(self, context: list[int], row: int, position: int) -> int:
        if self.next_token:
            return self.next_token(context)
        if self.answer:
            return self.answer[min(position - self._first_position.setdefault(row, position), len(self.answer) - 1)]
        params = self._rows[row]
        seed = params.seed + params.choice_index if params.temperature > 0 else 0
        return toy_token(context, vocab_size=self.vocab_size, seed=seed, position=position, weights=self._version)

    def _result(self, tokens: list[int], ok: list[bool], want_logprobs: bool) -> SampleResult:
        """The token has logprob -token/1000, its followers in the vocabulary 1 less each."""
        n = len(tokens)
        ids = (np.array(tokens, np.int32).reshape(n, 1) + np.arange(MAX_LOGPROBS, dtype=np.int32)) % self.vocab_size
        logprobs = (-np.array(tokens, np.float32).reshape(n, 1) / 1000 - np.arange(MAX_LOGPROBS)).astype(np.float32)
        if not want_logprobs:
            ids, logprobs = np.zeros_like(ids), np.zeros_like(logprobs)
        return SampleResult(np.array(tokens, np.int32), np.array(ok, bool), logprobs[:, 0], ids, logprobs)
