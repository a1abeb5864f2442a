"""One batch while it runs: which lines are still to do, and the results so far, a file of them that only grows."""

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from xlaserve.errors import InvalidRequest
from xlaserve.server.batches.batch_store import Batch
from xlaserve.server.batches.lines import InputLine, failure_line, read_lines
from xlaserve.server.json_body import parse_json_object

_logger = logging.getLogger(__name__)

CHECKED = 2**40  # bytes of a line: its length has been checked, when server.max_body may have been another
EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}


class Results:
    """Lines that are on disk once they have been appended. What the end of the server has cut off is removed."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = 0  # of whole lines
        self.ids = set(self._read())
        os.ftruncate(self._descriptor, self._size)

    def _read(self) -> Iterator[str]:
        """The ids of the whole lines at the start."""
        with open(self.path, "rb") as file:
            for line in file:
                try:
                    custom_id = parse_json_object(line, "application/json").get("custom_id")
                except InvalidRequest:
                    return
                if not isinstance(custom_id, str) or not line.endswith(b"\n"):
                    return
                self._size += len(line)
                yield custom_id

    def append(self, custom_id: str, line: bytes) -> None:
        """All of the line or, with an OSError, nothing of it."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        self.ids.add(custom_id)

    def close(self) -> None:
        os.close(self._descriptor)


def results_path(folder: Path, batch: Batch, kind: str) -> Path:
    """`kind`: output or error."""
    return folder / f"{batch.id}.{kind}.jsonl"


class Run:
    """`next_line`, `give_back` and `put` may be called from any thread."""

    def __init__(self, batch: Batch, folder: Path, source: IO[bytes]):
        self.batch = batch
        self.last_turn = 0  # the runner's: when a line was submitted last
        self.stopped = threading.Event()  # its lines under way are not worth finishing
        self._outputs = Results(results_path(folder, batch, "output"))
        self._errors = Results(results_path(folder, batch, "error"))
        self._source = source
        self._lines = read_lines(source, batch.endpoint, CHECKED)
        self._again: deque[InputLine] = deque()
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_read = False  # to its end

    @property
    def completed(self) -> int:
        return len(self._outputs.ids)

    @property
    def failed(self) -> int:
        return len(self._errors.ids)

    @property
    def is_idle(self) -> bool:
        """No line is under way."""
        return self._under_way == 0

    @property
    def is_done(self) -> bool:
        """Every line has a result."""
        with self._lock:
            has_more = self._again or (not self._is_read and self.completed + self.failed < self.batch.total)
            return not (has_more or self._under_way)

    def next_line(self) -> InputLine | None:
        """A line to be run, which is under way until it is given back or its result is put; None: no more for now."""
        with self._lock:
            line = self._again.popleft() if self._again else self._read()
            self._under_way += line is not None
            return line

    def _read(self) -> InputLine | None:
        for _, line in self._lines:
            if not isinstance(line, InputLine):  # though all have been checked: the file is not what it was
                _logger.error("A line of %s is left out: %s", self.batch.id, line)
            elif line.custom_id not in self._outputs.ids and line.custom_id not in self._errors.ids:
                return line
        self._is_read = True
        return None

    def give_back(self, line: InputLine) -> None:
        """It has no result and is to be run again."""
        with self._lock:
            self._again.append(line)
            self._under_way -= 1

    def put(self, line: InputLine, result: bytes, *, is_error: bool) -> None:
        """Raises OSError when the result could not be written: the line is then given back."""
        with self._lock:
            try:
                (self._errors if is_error else self._outputs).append(line.custom_id, result)
            except OSError:
                self._again.append(line)
                raise
            finally:
                self._under_way -= 1

    def expire(self) -> None:
        """Gives every line that has no result the error that says so."""
        while (line := self.next_line()) is not None:
            self.put(line, failure_line(line.custom_id, EXPIRED), is_error=True)

    def close(self) -> None:
        for each in (self._source, self._outputs, self._errors):
            each.close()
