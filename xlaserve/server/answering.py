"""From a request to its answer over HTTP, whole or streamed."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flask import Response

from xlaserve.server import sse
from xlaserve.server.http import (
    client_request_id,
    json_response,
    liveness_check,
    model_named,
    read_json,
    server_state,
    tenant,
)
from xlaserve.server.jobs import Job, TextJob

if TYPE_CHECKING:
    from xlaserve.engine.service import GenerationService


def answer(make_job: "Callable[[GenerationService, dict[str, Any]], Job]") -> Response:
    """Generates and answers. The request keeps its place until the answer has been sent."""
    with ExitStack() as stack:
        state = server_state()
        state.admit(stack)
        data = read_json()
        service = state.use(model_named(data), stack)
        job = make_job(service, data)
        scheduling, check = job.asked.scheduling_params(tenant()), liveness_check(service)
        if not (isinstance(job, TextJob) and job.asked.stream):
            response = json_response(job.whole(service, scheduling, check))
        else:
            generations = job.start(service, scheduling, check)
            stack.callback(generations.abort)
            # Closing is not the generator's own `finally`: one that was never started runs none.
            events = sse.EventStream(generations, job.stream(generations), stack.pop_all().close, job, service)
            response = Response(events, mimetype="text/event-stream", headers=sse.HEADERS, direct_passthrough=True)
        response.headers["X-Request-Id"] = job.asked.request_id or client_request_id() or job.renderer.id
        return response
