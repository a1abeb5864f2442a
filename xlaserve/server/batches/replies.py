"""What the routes of files and batches answer: pydantic models of OpenAI's objects."""

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

from xlaserve.errors import InvalidRequest
from xlaserve.server.batches.batch_store import Status
from xlaserve.server.batches.file_store import Purpose
from xlaserve.server.responses import Reply


class FileReply(Reply):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"]
    expires_at: None


class FileDeleted(Reply):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class RequestCounts(Reply):
    total: int
    completed: int
    failed: int


class ErrorReply(Reply):
    code: str
    message: str
    line: int | None
    param: str | None


class ErrorList(Reply):
    object: Literal["list"]
    data: list[ErrorReply]


class BatchReply(Reply):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: ErrorList | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


_Item = TypeVar("_Item", bound=Reply)


class Page(Reply, Generic[_Item]):
    object: Literal["list"]
    data: list[_Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page(items: Sequence, *, limit: int, after: str | None) -> Page:
    """The `limit` items that follow the one named `after`. Raises InvalidRequest when there is none of that name."""
    start = 0
    if after is not None:
        start = next((index for index, item in enumerate(items) if item.id == after), -1) + 1
        if start == 0:
            raise InvalidRequest(f"after: there is no {after[:80]!r} in this list.", param="after")
    shown = list(items[start : start + limit])
    ids = [item.id for item in (shown[:1] + shown[-1:])] or [None, None]
    return Page(object="list", data=shown, first_id=ids[0], last_id=ids[-1], has_more=start + limit < len(items))
