"""The batches there are and have been, each a record in a JSON file."""

import threading
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from xlaserve.errors import InvalidRequest, Overloaded
from xlaserve.server.batches.file_store import new_file_id
from xlaserve.server.batches.lines import LineError
from xlaserve.server.batches.storage import read_records, write_atomically
from xlaserve.server.protocol.batch import BatchRequest

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Ending = Literal["completed", "cancelled", "expired"]
STATUSES: tuple[Status, ...] = get_args(Status)
UNFINISHED: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
WINDOW_SECONDS = 24 * 3600
MAX_UNFINISHED = 100  # of one tenant


class Batch(BaseModel):
    """Replaced, never changed. Times are Unix times.

    ending: set once all results are written: what is left to do is to make them files. output_name and error_name are
    the ids that these will have, if there is anything in them.
    """

    id: str = Field(pattern=r"^batch_[0-9a-f]{32}$")
    tenant: str
    order: int  # of creation
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    output_name: str
    error_name: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    ending: Ending | None = None
    errors: list[LineError] = []
    total: int = 0  # requests, and those of them that have succeeded and failed
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None


class BatchStore:
    """Safe to use from any thread. Only tenants' own batches exist for them."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time):
        self.folder = folder / "batches"
        self.folder.mkdir(exist_ok=True)
        self.now = now
        self._lock = threading.Lock()
        self._batches = {batch.id: batch for path, batch in read_records(self.folder, Batch) if path.stem == batch.id}
        self._unfinished = {id_: batch for id_, batch in self._batches.items() if batch.status in UNFINISHED}
        self._last_order = max((batch.order for batch in self._batches.values()), default=0)

    def create(self, asked: BatchRequest, tenant: str) -> Batch:
        """Raises Overloaded when the tenant has too many that are not finished."""
        with self._lock:
            if sum(batch.tenant == tenant for batch in self.unfinished()) >= MAX_UNFINISHED:
                raise Overloaded(f"{MAX_UNFINISHED} batches are not finished, the limit.", code="too_many_batches")
            self._last_order = max(self._last_order + 1, time.time_ns())
            now = int(self.now())
            batch = Batch(
                id=f"batch_{uuid.uuid4().hex}",
                tenant=tenant,
                order=self._last_order,
                output_name=new_file_id(),
                error_name=new_file_id(),
                created_at=now,
                expires_at=now + WINDOW_SECONDS,
                **asked.model_dump(),
            )
            self._write(batch)
        return batch

    def get(self, batch_id: str, tenant: str) -> Batch:
        """Raises InvalidRequest (404)."""
        found = self._batches.get(batch_id)
        if found is None or found.tenant != tenant:
            message = f"No such Batch object: {batch_id[:80]}"
            raise InvalidRequest(message, param="id", code="batch_not_found", status=404)
        return found

    def all_of(self, tenant: str) -> list[Batch]:
        """The newest first."""
        batches = [batch for batch in list(self._batches.values()) if batch.tenant == tenant]
        return sorted(batches, key=lambda batch: -batch.order)

    def unfinished(self) -> list[Batch]:
        """The oldest first."""
        return sorted(list(self._unfinished.values()), key=lambda batch: batch.order)

    def count(self) -> dict[Status, int]:
        statuses = [batch.status for batch in list(self._batches.values())]
        return {status: statuses.count(status) for status in STATUSES}

    def cancel(self, batch_id: str, tenant: str) -> Batch:
        """Raises InvalidRequest for one that has finished otherwise."""
        batch = self.get(batch_id, tenant)
        self.update(batch, ("validating", "in_progress"), status="cancelling", cancelling_at=int(self.now()))
        batch = self.get(batch_id, tenant)
        if batch.status not in ("cancelling", "cancelled"):
            message = f"Cannot cancel a batch with status {batch.status!r}."
            raise InvalidRequest(message, param="id", code="invalid_batch_status")
        return batch

    def update(self, batch: Batch, expected: Collection[Status], **fields: Any) -> bool:
        """Changes the batch if its status is still one of `expected`."""
        with self._lock:
            current = self._batches[batch.id]
            if current.status not in expected:
                return False
            self._write(current.model_copy(update=fields))
        return True

    def _write(self, batch: Batch) -> None:
        write_atomically(self.folder / f"{batch.id}.json", batch.model_dump_json().encode())
        self._batches[batch.id] = batch
        if batch.status in UNFINISHED:
            self._unfinished[batch.id] = batch
        else:
            self._unfinished.pop(batch.id, None)
