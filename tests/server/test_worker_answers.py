"""Tests of streams, run once more where a worker writes them."""

import pytest

from tests.server.test_answers import (  # noqa: F401
    test_a_streamed_completion_equals_the_whole_one,
    test_report_13_usage_in_a_stream,
    test_streamed_completion_logprobs_equal_the_whole_ones,
)
from tests.server.test_choices import test_streamed_answers  # noqa: F401
from tests.server.test_connections import (  # noqa: F401
    test_a_closed_connection_aborts_a_queued_request,
    test_a_closed_connection_aborts_its_request,
    test_a_closed_connection_is_noticed_while_nothing_is_generated,
    test_draining_finishes_what_runs_and_refuses_what_comes,
    test_report_87_a_failed_engine_tells_its_clients_and_is_not_healthy,
    test_report_87_health_answers_within_a_second_under_64_streams,
    test_stopping_tells_those_that_still_run,
)
from tests.server.test_reasoning_answers import (  # noqa: F401
    test_calls_come_after_the_reasoning,
    test_usage_of_a_stream_counts_the_reasoning,
    thinking,
)
from tests.server.test_responses_api import (  # noqa: F401
    test_a_failure_ends_a_stream_with_an_event,
    test_calls,
    test_logprobs_are_those_of_the_text,
    test_reasoning_is_an_item_of_its_own,
)
from tests.server.test_timeouts import (  # noqa: F401
    slow,
    test_a_request_that_only_waited_is_a_504,
    test_a_stream_ends_like_the_whole_answer,
    test_every_choice_of_a_request_ends_in_time,
)
from tests.server.test_tools import (  # noqa: F401
    answering,
    test_every_choice_has_calls_of_its_own,
    test_the_openai_client_follows_a_stream_of_calls,
)


@pytest.fixture
def workers(one_worker):
    return one_worker
