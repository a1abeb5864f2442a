"""Runs of compiled programs as spans of the device."""

import sys

import jax
import jax.numpy as jnp

from xlaserve.engine.tracing import DEVICE, Trace


def test_runs_follow_each_other():
    """And the caller gets what the program returns."""
    trace = Trace()
    program = trace.watched("long", jax.jit(lambda x: (x @ x, x.sum())).lower(jnp.ones((400, 400))).compile())
    usual = sys.getswitchinterval()
    with trace.watching():
        returned = [program(jnp.full((400, 400), float(n))) for n in range(5)]
        assert sys.getswitchinterval() < usual
    assert sys.getswitchinterval() == usual
    assert [float(total) for _, total in returned] == [n * 400 * 400 for n in range(5)]
    assert [(span.track, span.name) for span in trace.spans] == [(DEVICE, "long")] * 5
    for span, after in zip(trace.spans, trace.spans[1:], strict=False):
        assert span.start < span.end <= after.start


def test_what_is_timed_returns_and_raises_as_before():
    trace = Trace()
    assert trace.timed("divide", divmod)(7, 2) == (3, 1)
    try:
        trace.timed("divide", divmod)(1, 0)
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError
    assert [span.name for span in trace.spans] == ["divide", "divide"]
    assert all(span.start <= span.end for span in trace.spans)
