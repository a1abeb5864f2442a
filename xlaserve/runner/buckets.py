"""The closed set of program shapes: how many tokens a body takes, how many rows a head takes."""

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

MAX_TOKEN_BUCKETS = 8
SMALLEST = 4  # XLA's CPU matrix product has no fast path below 4 rows
WEIGHTS_AS_TOKENS = 48  # a/b below, on a CPU; accelerators' is larger, which only makes them pad less there
LEAST_GROWTH = 1.5  # nearer neighbours save less than their compilation costs


@dataclass(frozen=True)
class Buckets:
    tokens: tuple[int, ...]  # T of the bodies, ascending
    outputs: tuple[int, ...]  # S of the heads, ascending; every body returns the largest

    def tokens_for(self, num_tokens: int) -> int:
        """The smallest body that holds `num_tokens`."""
        return self.tokens[bisect_left(self.tokens, num_tokens)]

    @property
    def most_outputs(self) -> int:
        """How many hidden rows a body returns, and S of the head that reads prompts."""
        return self.outputs[-1]

    def outputs_for(self, num_rows: int) -> int:
        """S of the smallest head that takes `num_rows`."""
        return self.outputs[bisect_left(self.outputs, num_rows)]


@dataclass(frozen=True)
class BucketUse:
    """What has been computed so far, by T of the bodies."""

    steps: Counter[int] = field(default_factory=Counter)
    padding: Counter[int] = field(default_factory=Counter)  # tokens for no request, as bodies take fixed numbers

    @classmethod
    def of(cls, buckets: Buckets) -> "BucketUse":
        """Nothing so far."""
        nothing = dict.fromkeys(buckets.tokens, 0)
        return cls(Counter(nothing), Counter(nothing))

    def count(self, bucket: int, num_tokens: int) -> None:
        """A step of `num_tokens` in the body of `bucket`."""
        self.steps[bucket] += 1
        self.padding[bucket] += bucket - num_tokens


def make_buckets(max_num_seqs: int, max_num_batched_tokens: int, num_speculative_tokens: int = 0) -> Buckets:
    """For decode steps: 4, half and all of `max_num_seqs`. Above them, for steps with prompts, more to the largest.
    With drafts one more size of heads, for all rows with as many.

    A step costs about a + b * T, a for reading the weights and b per token: padding wastes least when T + a/b grows by
    equal factors.
    """
    widest = max(max_num_seqs, SMALLEST)
    outputs = {SMALLEST, widest}  # heads read the vocabulary's weights whatever their rows: a third size saves little
    largest = max(max_num_batched_tokens, SMALLEST)
    if num_speculative_tokens:
        with_drafts = _round_up(widest * (1 + num_speculative_tokens), 8)
        outputs.add(max(widest, min(with_drafts, largest)))  # a step has no more outputs than tokens
    tokens = {min(_round_up(size, 4), largest) for size in (SMALLEST, max(SMALLEST, widest // 2), widest)}
    start, growth = max(tokens) + WEIGHTS_AS_TOKENS, (largest + WEIGHTS_AS_TOKENS) / (max(tokens) + WEIGHTS_AS_TOKENS)
    steps = min(MAX_TOKEN_BUCKETS - len(tokens), math.ceil(math.log(growth) / math.log(LEAST_GROWTH)))
    for step in range(1, steps + 1):
        tokens.add(min(_round_up(start * growth ** (step / steps) - WEIGHTS_AS_TOKENS, 8), largest))
    return Buckets(tuple(sorted(tokens)), tuple(sorted(outputs)))


def _round_up(value: float, multiple: int) -> int:
    return -(-round(value) // multiple) * multiple
