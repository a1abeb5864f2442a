"""Engines so small that eight requests meet everything there is: preemptions, chunks, aborts and failed steps."""

from hypothesis import strategies as st

SMALL_ENGINES = {
    "aborted": st.sets(st.integers(0, 7), max_size=2),
    "num_blocks": st.integers(9, 14),
    "rows": st.integers(1, 5),
    "budget": st.sampled_from([1, 3, 8, 17]),
    "async_scheduling": st.booleans(),
    "fail_at": st.sets(st.tuples(st.sampled_from(["body", "sample", "result"]), st.integers(0, 30)), max_size=2),
}
