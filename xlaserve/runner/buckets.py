"""The closed set of program shapes: how many tokens a body takes, how many rows a head takes."""

from bisect import bisect_left
from dataclasses import dataclass

MAX_TOKEN_BUCKETS = 8
SMALLEST = 4  # XLA's CPU matrix product has no fast path below 4 rows


@dataclass(frozen=True)
class Buckets:
    tokens: tuple[int, ...]  # T of the bodies, ascending
    outputs: tuple[int, ...]  # S of the heads, ascending

    def tokens_for(self, num_tokens: int) -> int:
        """The smallest body that holds `num_tokens`."""
        return self.tokens[bisect_left(self.tokens, num_tokens)]

    def outputs_of(self, token_bucket: int) -> int:
        """How many hidden rows the body of `token_bucket` returns: enough for one per row."""
        return self.outputs[min(bisect_left(self.outputs, token_bucket), len(self.outputs) - 1)]


def make_buckets(max_num_seqs: int, max_num_batched_tokens: int) -> Buckets:
    """Doubling from 4 to `max_num_batched_tokens`; when that is more than eight, evenly spaced in the logarithm.

    `max_num_seqs` is a bucket too where it fits, since a full decode step has just that size.
    """
    largest = max(max_num_batched_tokens, SMALLEST)
    tokens = {largest}
    size = SMALLEST
    while size < largest:
        tokens.add(size)
        size *= 2
    if len(tokens) > MAX_TOKEN_BUCKETS:
        ratio = (largest / SMALLEST) ** (1 / (MAX_TOKEN_BUCKETS - 1))
        tokens = {_round_up(SMALLEST * ratio**i, 4) for i in range(MAX_TOKEN_BUCKETS - 1)} | {largest}
    if SMALLEST < max_num_seqs < largest:
        nearest = min(tokens - {largest, SMALLEST}, key=lambda t: abs(t - max_num_seqs), default=None)
        tokens = (tokens - {nearest}) | {_round_up(max_num_seqs, 4)}
    widest = max(max_num_seqs, SMALLEST)
    outputs = {min(SMALLEST, widest), max(SMALLEST, widest // 2), widest}
    return Buckets(tuple(sorted(tokens)), tuple(sorted(outputs)))


def _round_up(value: float, multiple: int) -> int:
    return -(-round(value) // multiple) * multiple
