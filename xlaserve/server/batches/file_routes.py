"""OpenAI's routes of files. Uploads go to disk as they come, and are one file each."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

from flask import Blueprint, Response, current_app, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.http import parse_options_header

from xlaserve.errors import InvalidRequest
from xlaserve.server.batches.batches import Batches
from xlaserve.server.batches.file_store import FORM_BYTES, FileStore, StoredFile, new_file_id
from xlaserve.server.batches.replies import FileDeleted, FileReply, page
from xlaserve.server.http import json_response, query, server_state, tenant
from xlaserve.server.protocol.batch import parse_files_query

BATCHES = "xlaserve-batches"  # key in app.extensions
MAX_FORM_PARTS = 8
CHUNK_BYTES = 64 * 1024

routes = Blueprint("files", __name__)


def batches() -> Batches:
    """Raises InvalidRequest where the server keeps no files."""
    found = cast("Batches | None", current_app.extensions[BATCHES])
    if found is None:
        message = "This server keeps no files: start it with --files-dir FOLDER, or set server.files.folder."
        raise InvalidRequest(message, code="files_not_configured", status=404)
    return found


@routes.post("/v1/files")
def upload() -> Response:
    files = batches().files
    with ExitStack() as stack:
        stack.callback(server_state().places.take())
        files.check_room(max(0, (request.content_length or 0) - FORM_BYTES))
        request.max_content_length = files.max_file_bytes + FORM_BYTES
        form, uploads = _parse_form(files, stack)
        for name in (*form, *uploads):
            if name not in ("purpose", "file"):
                raise InvalidRequest(f"Unrecognized request argument supplied: {name[:80]}", param=name[:80])
        purpose = form.get("purpose")
        if purpose != "batch":
            given = "missing" if purpose is None else f"{purpose[:80]!r}"
            raise InvalidRequest(f"purpose is {given}: this server takes 'batch' only.", param="purpose")
        (name, file), *others = uploads.get("file") or [("", None)]
        if file is None or others:
            raise InvalidRequest("Send one part named 'file', with a filename, as multipart/form-data.", param="file")
        file.flush()
        path = Path(file.name)
        if path.stat().st_size == 0:
            raise InvalidRequest("The file is empty.", param="file")
        stored = files.adopt(
            path, file_id=new_file_id(), tenant=tenant(), filename=name, purpose="batch", is_upload=True
        )
        return json_response(_reply(stored))


def _parse_form(files: FileStore, stack: ExitStack) -> tuple[dict[str, str], dict[str, list[tuple[str, IO[bytes]]]]]:
    """Fields by name, and the (filename, content) of uploads by name: files that are gone when `stack` closes."""
    mimetype, options = parse_options_header(request.headers.get("Content-Type"))
    if mimetype != "multipart/form-data":
        raise InvalidRequest(f"The Content-Type is {mimetype[:80]!r}: send the file as multipart/form-data.")

    def new_stream(*_: Any, **__: Any) -> IO[bytes]:
        return stack.enter_context(files.incoming())

    parser = FormDataParser(
        stream_factory=new_stream,
        max_form_memory_size=FORM_BYTES,
        max_form_parts=MAX_FORM_PARTS,
        silent=False,
    )
    try:
        _, form, uploads = parser.parse(request.stream, mimetype, request.content_length, options)
    except RequestEntityTooLarge as error:
        raise InvalidRequest(f"The form has more than {MAX_FORM_PARTS} parts, or a field is too large.") from error
    except ValueError as error:
        raise InvalidRequest(f"The body is no form: {str(error)[:200]}") from error
    parts = {
        name: [(part.filename or "", cast(IO[bytes], part.stream)) for part in same] for name, same in uploads.lists()
    }
    return form.to_dict(), parts


@routes.get("/v1/files")
def list_files() -> Response:
    asked = parse_files_query(query())
    found = [file for file in batches().files.all_of(tenant()) if asked.purpose in (None, file.purpose)]
    if asked.order == "desc":
        found.reverse()
    return json_response(page([_reply(file) for file in found], limit=asked.limit, after=asked.after))


@routes.get("/v1/files/<file_id>")
def file(file_id: str) -> Response:
    return json_response(_reply(batches().files.get(file_id, tenant())))


@routes.get("/v1/files/<file_id>/content")
def content(file_id: str) -> Response:
    files = batches().files
    with ExitStack() as stack:
        stack.callback(server_state().places.take())
        data = stack.enter_context(files.open(file_id, tenant()))
        size = os.fstat(data.fileno()).st_size
        body = iter(lambda: data.read(CHUNK_BYTES), b"")
        response = Response(body, mimetype="application/octet-stream", headers={"Content-Length": str(size)})
        response.call_on_close(stack.pop_all().close)
    return response


@routes.delete("/v1/files/<file_id>")
def delete(file_id: str) -> Response:
    batches().files.delete(file_id, tenant())
    return json_response(FileDeleted(id=file_id, object="file", deleted=True))


def _reply(file: StoredFile) -> FileReply:
    return FileReply(
        id=file.id,
        object="file",
        bytes=file.bytes,
        created_at=file.created_at,
        filename=file.filename,
        purpose=file.purpose,
        status="processed",
        expires_at=None,
    )
