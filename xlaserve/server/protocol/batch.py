"""GET /v1/files, and POST and GET /v1/batches."""

from typing import Annotated, Any, Literal

from pydantic import Field

from xlaserve.server.protocol.strict import Strict
from xlaserve.server.unsupported import Unsupported
from xlaserve.server.validation import validate

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
MAX_FILES_LISTED = 10_000
MAX_BATCHES_LISTED = 100

UNSUPPORTED = {"output_expires_after": Unsupported(advice="results are kept until they are deleted; leave it out")}


class BatchRequest(Strict):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = None


class FileUpload(Strict):
    """The parts of POST /v1/files, which is no JSON: for the API's document."""

    purpose: Literal["batch"]
    file: bytes


class FilesQuery(Strict):
    """The query of GET /v1/files."""

    limit: Annotated[int, Field(ge=1, le=MAX_FILES_LISTED, strict=False)] = MAX_FILES_LISTED
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class BatchesQuery(Strict):
    """The query of GET /v1/batches."""

    limit: Annotated[int, Field(ge=1, le=MAX_BATCHES_LISTED, strict=False)] = 20
    after: str | None = None


def parse_batch(data: dict[str, Any]) -> BatchRequest:
    return validate(BatchRequest, data, UNSUPPORTED)


def parse_files_query(query: dict[str, Any]) -> FilesQuery:
    return validate(FilesQuery, query, {})


def parse_batches_query(query: dict[str, Any]) -> BatchesQuery:
    return validate(BatchesQuery, query, {})
