"""The thread that runs batches, whenever the engine has nothing better to do.

It goes over the unfinished batches again and again: checks new ones, ends those that are done, cancelled or over their
time, and submits a line of another tenant each time. A batch's lines are submitted in order; of each tenant the oldest
batch runs. Each line under way has a thread that waits for its answer.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xlaserve.errors import EngineUnavailable, InvalidRequest, Overloaded, XlaserveError
from xlaserve.scheduling_params import MAX_PRIORITY
from xlaserve.server.batches.batch_store import Batch, BatchStore, Ending
from xlaserve.server.batches.file_store import FileStore
from xlaserve.server.batches.lines import InputLine, LineError, check_lines, result_line
from xlaserve.server.batches.run import Run, results_path
from xlaserve.server.errors import error_reply
from xlaserve.server.http import model_named
from xlaserve.server.jobs import Job, chat_job, completion_job
from xlaserve.server.pooling.jobs import embedding_job

if TYPE_CHECKING:
    from xlaserve.engine.generations import Generations
    from xlaserve.engine.service import GenerationService
    from xlaserve.server.state import ServerState

_logger = logging.getLogger(__name__)

IDLE_SECONDS = 60.0  # without unfinished batches
BUSY_SECONDS = 0.005  # how soon a pause of the engine is noticed
RETRY_SECONDS = 5.0  # after what should not happen: a full disk, say
LOWEST_PRIORITY = MAX_PRIORITY // 2  # added to that of a line, where the policy heeds it

_JOBS: "dict[str, Callable[[GenerationService, dict[str, Any]], Job]]" = {
    "/v1/completions": completion_job,
    "/v1/chat/completions": chat_job,
    "/v1/embeddings": embedding_job,
}


class _Stopped(Exception):
    """Of the server or of the batch: the line is to be run again."""


class BatchRunner:
    """Runs from construction to `stop`. max_lines: under way at a time; None: half of what the engine computes."""

    def __init__(
        self, state: "ServerState", files: FileStore, store: BatchStore, *, max_lines: int | None, max_line_bytes: int
    ):
        self._state = state
        self._files = files
        self._store = store
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._runs: dict[str, Run] = {}  # by batch
        self._turn = 0
        self.lines_done = {"completed": 0, "failed": 0}  # since the start of the server
        self._lock = threading.Lock()  # guards the counts
        self._under_way = 0
        for batch in store.unfinished():
            self._pin_again(batch)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something new: a batch, a cancellation, the end of a line."""
        self._wake.set()

    def progress(self, batch_id: str) -> tuple[int, int] | None:
        """How many lines have succeeded and failed so far; None for a batch that is not running."""
        run = self._runs.get(batch_id)
        return (run.completed, run.failed) if run else None

    def stop(self, timeout: float) -> bool:
        """Leaves the lines under way, to be run again after a restart. False: they have not ended in time."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout)
        deadline = time.monotonic() + timeout
        while self._under_way and time.monotonic() < deadline:
            self._wake.wait(BUSY_SECONDS)
            self._wake.clear()
        if self._under_way or self._thread.is_alive():
            return False
        for run in self._runs.values():
            run.close()
        self._runs.clear()
        return True

    def _pin_again(self, batch: Batch) -> None:
        """After a restart; the input may have been removed by hand."""
        try:
            self._files.pin(batch.input_file_id, batch.tenant)
        except InvalidRequest as error:
            errors = [LineError(code="file_not_found", message=str(error))]
            self._store.update(batch, (batch.status,), status="failed", failed_at=int(self._store.now()), errors=errors)

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            pause = IDLE_SECONDS
            for batch in self._store.unfinished():
                if pause == IDLE_SECONDS:
                    pause = BUSY_SECONDS
                if not self._tries(self._attend, batch):
                    pause = RETRY_SECONDS
            while self._may_submit() and self._tries(self._submit):
                pass
            if pause == RETRY_SECONDS:
                self._stopping.wait(pause)
            else:
                self._wake.wait(pause)

    def _tries(self, step: Callable[..., bool | None], *arguments: Batch) -> bool:
        """Whether the step was taken. Whatever goes wrong with a batch, the others go on."""
        try:
            return step(*arguments) is not False
        except _Stopped:
            return False
        except Exception:
            _logger.exception("Error in running a batch; trying again")
            return False

    def _attend(self, batch: Batch) -> None:
        """Brings the batch to its next status, if it is time."""
        run = self._runs.get(batch.id)
        if batch.ending is not None:
            self._finish(batch)
        elif batch.status == "validating":
            self._check(batch)
        elif batch.status == "cancelling":
            self._end(batch, run, "cancelled")
        elif self._store.now() >= batch.expires_at:
            self._end(batch, run, "expired")
        elif run is None:
            if batch.tenant not in (other.batch.tenant for other in self._runs.values()):
                self._open(batch)
        elif run.is_done:
            self._end(batch, run, "completed")

    def _check(self, batch: Batch) -> None:
        now = int(self._store.now())
        with self._files.open(batch.input_file_id, batch.tenant) as file:
            total, errors = check_lines(file, batch.endpoint, self._max_line_bytes, self._check_running)
        if not errors:
            self._store.update(batch, ("validating",), status="in_progress", in_progress_at=now, total=total)
        elif self._store.update(batch, ("validating",), status="failed", failed_at=now, errors=errors):
            self._files.unpin(batch.input_file_id)
        self.wake()

    def _open(self, batch: Batch) -> Run:
        source = self._files.open(batch.input_file_id, batch.tenant)
        self._runs[batch.id] = run = Run(batch, self._store.folder, source)
        return run

    def _end(self, batch: Batch, run: Run | None, ending: Ending) -> None:
        """Once no line is under way."""
        run = run or self._open(batch)
        if ending != "completed":
            run.stopped.set()
        if not run.is_idle:
            return
        if ending == "expired":
            run.expire()
        fields = {"ending": ending, "completed": run.completed, "failed": run.failed}
        if ending == "cancelled":
            self._store.update(batch, ("cancelling",), **fields)
        else:
            now = int(self._store.now())
            self._store.update(batch, ("in_progress",), status="finalizing", finalizing_at=now, **fields)
        self.wake()

    def _finish(self, batch: Batch) -> None:
        """Makes the results files. After a crash in between it is called again."""
        assert batch.ending is not None
        run = self._runs.pop(batch.id, None)
        if run is not None:
            run.close()
        fields = {}
        for kind, name in (("output", batch.output_name), ("error", batch.error_name)):
            path = results_path(self._store.folder, batch, kind)
            if path.exists() and path.stat().st_size:
                label = f"{batch.id}_{kind}.jsonl"
                self._files.adopt(path, file_id=name, tenant=batch.tenant, filename=label, purpose="batch_output")
            path.unlink(missing_ok=True)
            if self._files.has(name):
                fields[f"{kind}_file_id"] = name
        fields[f"{batch.ending}_at"] = int(self._store.now())
        self._store.update(batch, (batch.status,), status=batch.ending, **fields)
        self._files.unpin(batch.input_file_id)
        self.wake()

    def _may_submit(self) -> bool:
        """Whether the engine has room to spare, and nobody waits for it."""
        if not self._runs or self._stopping.is_set():
            return False
        try:
            services = list(self._state.models())
        except EngineUnavailable:
            return False
        limit = self._max_lines or max([1, *(service.max_num_seqs // 2 for service in services)])
        return self._under_way < limit and not any(service.num_waiting for service in services)

    def _submit(self) -> bool:
        """Submits the next line of the batch whose turn it is; False when there was none or no room for it."""
        for run in sorted(self._runs.values(), key=lambda run: run.last_turn):
            line = None if run.stopped.is_set() else run.next_line()
            if line is not None:
                self._turn += 1
                run.last_turn = self._turn
                return self._start(run, line)
        return False

    def _start(self, run: Run, line: InputLine) -> bool:
        stack = ExitStack()
        try:
            service = self._state.use(model_named(line.body), stack)
            job = _JOBS[run.batch.endpoint](service, line.body)
            scheduling = job.asked.scheduling_params(run.batch.tenant)
            if service.takes_priority:
                scheduling = replace(scheduling, priority=min(scheduling.priority + LOWEST_PRIORITY, MAX_PRIORITY))
            generations = job.start(service, scheduling, lambda: self._check_line(run, service))
        except (Overloaded, EngineUnavailable):
            stack.close()
            run.give_back(line)
            return False
        except Exception as error:
            stack.close()
            self._put_error(run, line, error)
            return True
        self._count(+1)
        try:
            arguments = (run, line, job, generations, stack)
            threading.Thread(target=self._collect, args=arguments, name="batch line", daemon=True).start()
        except RuntimeError:  # no more threads
            generations.abort()
            stack.close()
            run.give_back(line)
            self._count(-1)
            return False
        return True

    def _collect(self, run: Run, line: InputLine, job: Job, generations: "Generations", stack: ExitStack) -> None:
        """Waits for the answer and writes it down; closes the stack."""
        try:
            body = job.finish(generations).json_bytes()
            self._put(run, line, result_line(line.custom_id, job.renderer.id, 200, body), is_error=False)
        except (_Stopped, EngineUnavailable):
            run.give_back(line)
        except Exception as error:
            self._put_error(run, line, error, job.renderer.id)
        finally:
            stack.close()
            self._count(-1)
            self.wake()

    def _put_error(self, run: Run, line: InputLine, error: Exception, request_id: str | None = None) -> None:
        if not isinstance(error, XlaserveError):
            _logger.exception("Error in the line %r of %s", line.custom_id[:80], run.batch.id, exc_info=error)
        reply = error_reply(error)
        request_id = request_id or f"req-{uuid.uuid4().hex}"
        self._put(run, line, result_line(line.custom_id, request_id, reply.status, reply.body), is_error=True)

    def _put(self, run: Run, line: InputLine, result: bytes, *, is_error: bool) -> None:
        try:
            run.put(line, result, is_error=is_error)
        except OSError as error:
            _logger.error("A result of %s could not be written, its line is run again: %s", run.batch.id, error)
            self._stopping.wait(RETRY_SECONDS)
            return
        with self._lock:
            self.lines_done["failed" if is_error else "completed"] += 1

    def _check_line(self, run: Run, service: "GenerationService") -> None:
        """Raises when the answer is not worth waiting for."""
        self._check_running()
        if run.stopped.is_set():
            raise _Stopped
        self._state.check_running(service)

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _count(self, change: int) -> None:
        with self._lock:
            self._under_way += change
