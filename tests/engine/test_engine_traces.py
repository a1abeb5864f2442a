"""The engine over the toy runner in random use: requests of every kind, aborts, failures, pools that are too small."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_llm_engine import (
    Collected,
    assert_read,
    check_idle,
    expected_output,
    make_request,
    with_forks,
)
from tests.integrity import check_scheduler
from tests.toy_drafts import eager
from tests.toy_engine import make_engine

requests_strategy = st.tuples(
    st.integers(1, 25),  # prompt length
    st.integers(1, 12),  # max_tokens
    st.sampled_from([0.0, 1.0]),  # temperature
    st.booleans(),  # whether token 0 is EOS
    st.integers(0, 2),  # which prompts begin alike
    st.integers(0, 1),  # which salt
    st.integers(1, 4),  # answers
    st.sampled_from(["nothing"] * 5 + ["scores", "scores", "last", "mean", "cls"]),  # what is read of the prompt
)
traces = st.lists(
    st.one_of(
        st.tuples(st.just("add"), requests_strategy),
        st.tuples(st.just("abort"), st.integers(0, 7)),
        st.tuples(st.just("step"), st.integers(1, 5)),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    trace=traces,
    num_blocks=st.lists(st.integers(7, 14), min_size=1, max_size=2),
    window=st.sampled_from([None, 1, 2, 5, 9]),
    prefix_caching=st.booleans(),
    host_slots=st.sampled_from([0, 0, 2, 9, 50]),
    block_size=st.integers(1, 5),
    rows=st.integers(1, 5),
    budget=st.sampled_from([1, 3, 4, 8, 17]),
    async_scheduling=st.booleans(),
    fail_at=st.sets(st.tuples(st.sampled_from(["body", "sample", "result"]), st.integers(0, 30)), max_size=2),
    drafts=st.sampled_from([None, None, 0.3, 0.8, 1.0]),
)
def test_every_request_gives_what_it_gives_alone(
    trace, num_blocks, window, prefix_caching, host_slots, block_size, rows, budget, async_scheduling, fail_at, drafts
):
    """Whatever the pool, the chunks, the batch-mates, what is cached, forks, preemptions, aborts, failed steps and
    drafts, of which this part is right."""
    vocab_size = 20  # small: EOS is met often
    host = {"host_slots": host_slots, "host_min_tokens": 1 + host_slots % 3, "host_step_blocks": 1 + host_slots // 4}
    engine, runner = make_engine(
        num_blocks,
        windows=[None, window][: len(num_blocks)],
        prefix_caching=prefix_caching or host_slots > 0,
        **host,
        block_size=block_size,
        max_num_seqs=rows,
        max_num_batched_tokens=budget,
        async_scheduling=async_scheduling,
        vocab_size=vocab_size,
        fail_at=fail_at,
        speculation=None if drafts is None else eager(drafts, num_tokens=1 + budget % 5, vocab_size=vocab_size),
        max_outputs=rows if drafts is None else rows + budget,
    )
    capacity = engine.scheduler.block_manager.capacity
    collected, requests = Collected(), []

    def step():
        collected.add(engine.step())
        check_scheduler(engine.scheduler)

    for action, detail in trace:
        if action == "add":
            prompt_len, max_tokens, temperature, has_eos, family, salt, n, read = detail
            max_tokens *= read in ("nothing", "scores") and max_tokens < 12
            number = len(requests)
            prompt_ids = [(7 * family + i) % vocab_size for i in range(min(prompt_len, capacity - 1))]
            options: dict[str, Any] = {"temperature": temperature, "seed": number, "stop_ids": {0} if has_eos else ()}
            if number % 3 == 1:
                options["presence_penalty"] = 1.0  # has the runner check what it has counted
            if read == "scores":
                options["prompt_logprobs"] = number % 4
            elif read != "nothing":
                options["pooling"] = read
            request = make_request(prompt_ids, max_tokens, name=str(number), capacity=capacity, **options)
            request.cache_salt = str(salt)
            requests += with_forks(request, n if max_tokens else 1)
            engine.add_request(request)
        elif action == "abort" and detail < len(requests):
            output = engine.finish_request(requests[detail], "abort")
            collected.add([output] if output else [])
            check_scheduler(engine.scheduler)
        elif action == "step":
            for _ in range(detail):
                step()
    for _ in range(2000):
        if engine.has_work:
            step()
    check_idle(engine, runner)
    for request in requests:
        tokens, expected = collected.token_ids[request.request_id], expected_output(request, vocab_size)
        if request.finish_reason == "abort":
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
            assert_read(collected.read.get(request.request_id), request, vocab_size)
            reason = "stop" if expected and expected[-1] in request.stop_ids else "length"
            assert (collected.last[request.request_id].finish_reason, request.finish_reason) == (reason, reason)
