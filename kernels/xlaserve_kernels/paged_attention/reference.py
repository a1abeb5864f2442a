"""Paged attention as plain loops over rows, queries and heads in float64: the specification. Slow; for tests."""

import numpy as np


def paged_attention_reference(
    q, keys, values, block_tables, query_start_loc, seq_lens, sinks=None, *, scale, sliding_window=None, soft_cap=None
) -> np.ndarray:
    """Causal attention of ragged queries over paged keys and values.

    q [T, N, H]; keys, values [num_blocks, block_size, K, H], N a multiple of K; block_tables int [R, W];
    query_start_loc int [R + 1]: row r's queries are q[query_start_loc[r] : query_start_loc[r + 1]], the *last* ones of
    its context; seq_lens int [R]: context lengths, these queries included. `sliding_window`: keys a query sees, itself
    included. `soft_cap`: scores s become soft_cap * tanh(s / soft_cap). `sinks` [N]: a logit per query head
    that is one more term of its softmax's sum, neither scaled nor capped, and has no value. Returns [T, N, H]; zeros
    for tokens of no row.
    """
    q, keys, values = (np.asarray(x, np.float64) for x in (q, keys, values))
    block_size, num_kv_heads = keys.shape[1:3]
    group = q.shape[1] // num_kv_heads
    out = np.zeros_like(q)
    for row, context in enumerate(np.asarray(seq_lens)):
        start, end = int(query_start_loc[row]), int(query_start_loc[row + 1])
        for t in range(start, end):
            position = int(context) - (end - t)
            first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            seen = np.arange(first, position + 1)
            blocks, offsets = np.asarray(block_tables)[row, seen // block_size], seen % block_size
            for n in range(q.shape[1]):
                k, v = keys[blocks, offsets, n // group], values[blocks, offsets, n // group]  # [seen, H]
                scores = k @ q[t, n] * scale
                if soft_cap is not None:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                logits = scores if sinks is None else np.append(scores, sinks[n])
                weights = np.exp(logits - logits.max())
                out[t, n] = weights[: len(seen)] @ v / weights.sum()
    return out
