"""The one thread that owns the engine. Others reach it through an inbox; each request's outputs leave by a stream.

Whatever happens to the thread, every stream gets a last output: a client never waits for an engine that is gone.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Literal

from xlaserve.core.outputs import EngineOutput, FinishReason
from xlaserve.core.request import Request
from xlaserve.engine.completion_rate import CompletionRate
from xlaserve.engine.llm_engine import FAILED, LLMEngine
from xlaserve.engine.metrics import EngineMetrics
from xlaserve.engine.news import News
from xlaserve.engine.output_stream import OutputStream
from xlaserve.errors import EngineUnavailable, InvalidRequest, ModelAsleep, Overloaded

logger = logging.getLogger(__name__)

EngineState = Literal["ready", "asleep", "draining", "failed"]
PAUSED_SECONDS = 0.1  # between two looks at the deadlines of requests that wait while no step is made
CALL_SECONDS = 120.0  # how long a step under way may keep a call: if longer, it hangs
JOIN_SECONDS = 5.0  # how long shutdown waits for a step under way


@dataclass(frozen=True)
class _Abort:
    request: Request  # not its id, which may have been used again since
    reason: FinishReason


@dataclass(frozen=True)
class _Close:
    first: Request


@dataclass(frozen=True)
class _Call:
    function: Callable[[LLMEngine], list[EngineOutput]]
    done: Future[None]


@dataclass(frozen=True)
class _Stop:
    pass


_Message = Request | _Abort | _Close | _Call | _Stop


class EngineLoop:
    """Steps the engine while there is work and sleeps when there is none. Runs from construction to `shutdown`.

    max_requests: running and waiting ones together; more are refused at once, as are those whose prompts would make
    more than `max_waiting_tokens` that wait (None: any number). Who finds nobody waiting is always taken.
    """

    def __init__(
        self, engine: LLMEngine, metrics: EngineMetrics, *, max_requests: int, max_waiting_tokens: int | None = None
    ):
        self._engine = engine
        self._metrics = metrics
        self.max_requests = max_requests
        self._max_waiting_tokens = max_waiting_tokens
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards the state, the dict of streams, the rate and the next number
        self._inbox_tokens = 0  # of prompts that the engine's thread has not seen yet
        self._rate = CompletionRate(time.monotonic())
        self._state: EngineState = "ready"
        self._streams: dict[str, OutputStream] = {}  # of unfinished requests
        self._open: dict[Request, int] = {}  # first steps of searches that are not over, and the places they keep
        self._num_places = 0  # taken, of max_requests
        self._last_end = time.monotonic()  # of a request
        self._stopping = False  # the loop thread's own
        self._idle = True
        self._progress_time = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    @property
    def num_requests(self) -> int:
        """Submitted and not finished."""
        return len(self._streams)

    def seconds_since_progress(self) -> float:
        """How long the present step has been running; 0 when there is nothing to do. Large: the device hangs."""
        return 0.0 if self._idle else time.monotonic() - self._progress_time

    def submit(self, request: Request, news: News | None = None) -> OutputStream:
        """A request alone: see `submit_all`."""
        return self.submit_all([request], news)[0]

    def submit_all(self, requests: Sequence[Request], news: News | None = None) -> list[OutputStream]:
        """Requests with their forks, all of them or none; `news`: see OutputStream.

        One that continues another comes alone: it is taken whatever the limits are, and in a shutdown too, until that
        other is closed.
        Raises EngineUnavailable when not ready, InvalidRequest for an id in use and Overloaded for too many.
        """
        streams = [OutputStream(request, news) for request in requests]
        answers = [each for stream in streams for each in (stream, *stream.forks)]
        num_tokens = sum(request.num_prompt_tokens for request in requests)
        continued = requests[0].continues
        with self._changed:
            is_taken = self._state == "ready" if continued is None else continued in self._open
            if self._state == "asleep" and not is_taken:
                raise ModelAsleep("The model sleeps; /admin/wake wakes it.")
            if not is_taken:
                raise EngineUnavailable(FAILED if self._state == "failed" else "The engine is shutting down.")
            if continued is None:
                self._check_room(num_tokens, sum(each.request.keeps_rows or 1 for each in answers))
            for each in answers:
                if each.request.request_id in self._streams:
                    raise InvalidRequest(f"The request id {each.request.request_id!r} is in use.", param="request_id")
            if continued is None:
                self._take_places(answers)
            self._streams |= {each.request.request_id: each for each in answers}
            self._inbox_tokens += num_tokens
            for request in requests:
                self._inbox.put(request)
        return streams

    def _take_places(self, answers: Sequence[OutputStream]) -> None:
        for each in answers:
            if each.request.keeps_rows:
                self._open[each.request] = each.request.keeps_rows
            else:
                each.places = 1
            self._num_places += each.request.keeps_rows or 1

    def close(self, first: Request) -> None:
        """Nothing more will continue `first`. Idempotent."""
        with self._changed:
            if places := self._open.pop(first, 0):
                self._num_places -= places
                self._last_end = time.monotonic()
                self._rate.observe_end(time.monotonic())
                self._changed.notify_all()
                self._inbox.put(_Close(first))

    def _check_room(self, num_tokens: int, places: int) -> None:
        full = None
        if self._num_places + places > self.max_requests:
            full = f"The engine has {self._num_places} requests; with {places} more they would pass its limit"
        waiting = self._inbox_tokens + self._engine.num_waiting_tokens
        if self._max_waiting_tokens and waiting and waiting + num_tokens > self._max_waiting_tokens:
            full = f"Prompts of {waiting} tokens are waiting; with {num_tokens} more they would pass the limit"
        if full:
            raise Overloaded(f"{full}: try again in a moment.", code="queue_full", retry_after=self._retry_after())

    def retry_after(self) -> int:
        """Seconds until as many requests will have ended as wait now, at the present rate; from 1 to 60."""
        with self._changed:
            return self._retry_after()

    def _retry_after(self) -> int:
        num_waiting = len(self._streams) - len(self._engine.scheduler.running)
        return self._rate.seconds_until(max(1, num_waiting), time.monotonic())

    def close_door(self, timeout: float, *, idle_for: float = 0.0) -> bool:
        """Takes no requests until `open_door`, gives the present ones `timeout` seconds to end; from any thread.

        False, and nothing is changed, where it is not ready, or has not been without a request for `idle_for` seconds.
        """
        with self._changed:
            if self._state != "ready" or (idle_for and self.idle_seconds() < idle_for):
                return False
            self._state = "asleep"
            self._changed.wait_for(lambda: not (self._streams or self._open), timeout)
            return self._state == "asleep"

    def open_door(self) -> None:
        with self._changed:
            self._last_end = time.monotonic()
            if self._state == "asleep":
                self._state = "ready"

    def idle_seconds(self) -> float:
        """Since the end of the last request; 0 while there is one."""
        return 0.0 if self._streams or self._open else time.monotonic() - self._last_end

    def call(self, function: Callable[[LLMEngine], list[EngineOutput]]) -> None:
        """Has the engine's thread call `function` between two steps, delivers what it returns, and waits for that.

        Raises what it raises; EngineUnavailable when the engine has ended, or hangs in a step.
        """
        call = _Call(function, Future())
        self._inbox.put(call)
        until = time.monotonic() + CALL_SECONDS
        while time.monotonic() < until and self._thread.is_alive():
            wait([call.done], timeout=0.1)
            if call.done.done():
                return call.done.result()
        call.done.cancel()
        raise EngineUnavailable(FAILED if self._state == "failed" else "The engine has not taken the order.")

    def abort(self, stream: OutputStream, reason: FinishReason = "abort") -> None:
        """Ends a request in whatever phase it is; harmless when it has ended. `reason` goes to its stream."""
        self._inbox.put(_Abort(stream.request, reason))

    def shutdown(self, timeout: float) -> bool:
        """Takes no more requests, gives the present ones `timeout` seconds to end, aborts the rest, ends the thread.

        False: the thread hangs in a step, which nothing can cancel; the process should exit.
        """
        with self._changed:
            if self._state in ("ready", "asleep"):
                self._state = "draining"
            self._changed.wait_for(lambda: not (self._streams or self._open), timeout)
        self._inbox.put(_Stop())
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            self._end_streams("abort")
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not (self._stopping or self._engine.has_failed):
                self._empty_inbox()
                self._deliver(self._engine.expire(time.monotonic()))
                if self._engine.has_work and not self._stopping:
                    self._deliver(self._engine.step())
                    self._metrics.observe_step(self._engine.last_step_tokens)
                self._engine.drop_old_weights()
                self._progress_time = time.monotonic()
            if self._stopping:
                self._deliver(self._engine.finish_all("abort"))
        except BaseException as error:  # also SystemExit and the like: nobody else will tell the clients
            logger.critical("the engine's thread has died", exc_info=error)
        finally:
            if not self._stopping:
                with self._changed:
                    self._state = "failed"
            self._end_streams("error")
            self._idle = True

    def _empty_inbox(self) -> None:
        """Takes what is there; when the engine has nothing to do, waits until something is."""
        if not self._engine.has_work:
            self._idle = True
            message = self._next_message()
            if message is None:
                return
            self._accept(message)
            self._progress_time = time.monotonic()
            with self._changed:
                self._rate.restart(self._progress_time)
            self._idle = False
        while not self._inbox.empty():
            self._accept(self._inbox.get())

    def _next_message(self) -> _Message | None:
        """Waits for it; where requests wait too, only until it is time to look at their deadlines."""
        try:
            return self._inbox.get(timeout=PAUSED_SECONDS if self._streams else None)
        except queue.Empty:
            return None

    def _accept(self, message: _Message) -> None:
        match message:
            case Request():
                self._deliver(self._engine.add_request(message))
                with self._changed:
                    self._inbox_tokens -= message.num_prompt_tokens
            case _Abort(request, reason):
                output = self._engine.finish_request(request, reason)
                self._deliver([output] if output else [])
            case _Close(first):
                self._engine.scheduler.kept_rows.close(first)
            case _Call():
                self._run_call(message)
            case _Stop():
                self._stopping = True

    def _run_call(self, call: _Call) -> None:
        if not call.done.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        try:
            self._deliver(call.function(self._engine))
        except Exception as error:
            call.done.set_exception(error)
        else:
            call.done.set_result(None)

    def _deliver(self, outputs: Sequence[EngineOutput]) -> None:
        now = time.monotonic()
        self._metrics.observe_tokens(sum(len(output.token_ids) for output in outputs))
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:  # a shutdown that did not wait for this step has ended it
                continue
            self._observe(stream.request, output, now)
            if output.finish_reason:
                with self._changed:
                    self._last_end = now
                    if self._streams.pop(output.request_id, None):  # may have been ended by a shutdown just now
                        self._num_places -= stream.places
                    if stream.places:
                        self._rate.observe_end(now)
                    self._changed.notify_all()
            stream.put(output)

    def _observe(self, request: Request, output: EngineOutput, now: float) -> None:
        """Not of requests that continue another: they are none of a client's."""
        if request.continues is not None:
            return
        if output.token_ids:
            if request.last_token_time is None:
                request.first_token_time = now
                self._metrics.observe_first_token(request, now)
            else:
                self._metrics.observe_next_token(now - request.last_token_time)
            request.last_token_time = now
        if output.finish_reason:
            request.finish_time = now
            self._metrics.observe_end(request, output, now)

    def _end_streams(self, reason: FinishReason) -> None:
        """The last output of all that still wait for one."""
        error = FAILED if reason == "error" else None
        with self._changed:
            streams = list(self._streams.values())
            self._streams.clear()
            self._open.clear()
            self._num_places = 0
            self._changed.notify_all()
        for stream in streams:
            request = stream.request
            request.finish_time = time.monotonic()
            stream.put(EngineOutput(request.request_id, finish_reason=reason, error=error))
