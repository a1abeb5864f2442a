"""The Flask application: routes from the blueprints, and OpenAI's error shape in place of every error page."""

import logging

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from xlaserve.errors import XlaserveError
from xlaserve.server import admin, docs_page, openai, openapi, utility
from xlaserve.server.admin_access import PREFIX, AdminAccess
from xlaserve.server.auth import ApiKeys
from xlaserve.server.batches import batch_routes, file_routes
from xlaserve.server.batches.batches import Batches
from xlaserve.server.batches.file_routes import BATCHES
from xlaserve.server.errors import ClientGone, ErrorReply, body_too_large, error_reply, make_reply
from xlaserve.server.http import KEYS, STATE
from xlaserve.server.pooling import routes as pooling_routes
from xlaserve.server.responses_api import routes as response_routes
from xlaserve.server.responses_api.routes import RESPONSES
from xlaserve.server.responses_api.store import ResponseStore
from xlaserve.server.state import ServerState

_logger = logging.getLogger(__name__)


_OPEN = ("/health", "/ready", "/metrics", "/docs")  # to probes, scrapers and browsers, which have no key


def create_app(
    state: ServerState,
    api_keys: ApiKeys | None = None,
    batches: Batches | None = None,
    responses: ResponseStore | None = None,
    admin_access: AdminAccess | None = None,
) -> Flask:
    """The application over `state`, which may still be loading its model.

    `api_keys`: None lets everybody in. `batches`: None: the server keeps no files. `responses`: None: one with the
    default limits. `admin_access`: None: nobody may give orders.
    """
    keys = api_keys or ApiKeys()
    access = admin_access or AdminAccess()
    app = Flask(__name__, static_folder=None)
    app.extensions[STATE] = state
    app.extensions[KEYS] = keys
    app.extensions[BATCHES] = batches
    app.extensions[admin.ADMIN] = access
    app.extensions[RESPONSES] = responses or ResponseStore()
    app.config["MAX_CONTENT_LENGTH"] = state.max_body

    @app.before_request
    def authenticate() -> None:
        authorization = request.headers.get("Authorization")
        if request.path.startswith(PREFIX):
            access.check(authorization)
        elif request.path not in _OPEN:
            g.tenant = keys.tenant_of(authorization)

    app.register_blueprint(openai.routes)
    app.register_blueprint(response_routes.routes)
    app.register_blueprint(pooling_routes.routes)
    app.register_blueprint(utility.routes)
    app.register_blueprint(admin.routes)
    app.register_blueprint(openapi.routes)
    app.register_blueprint(docs_page.routes)
    app.register_blueprint(file_routes.routes)
    app.register_blueprint(batch_routes.routes)
    app.register_error_handler(XlaserveError, _known_error)
    app.register_error_handler(ClientGone, _client_gone)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected_error)
    return app


def _respond(reply: ErrorReply) -> Response:
    return Response(reply.body, reply.status, reply.headers, mimetype="application/json")


def _known_error(error: XlaserveError) -> Response:
    return _respond(error_reply(error))


def _client_gone(_error: ClientGone) -> Response:
    return Response(status=499)  # as nginx logs it; nobody reads it


def _http_error(error: HTTPException) -> Response:
    """Unknown routes, wrong methods, bodies over the limit: Flask's own errors, without its pages."""
    status = error.code or 500
    message = error.description or error.name
    if status == 404:
        message = f"Invalid URL ({request.method} {request.path[:200]})"
    elif status == 405:
        message = f"Not allowed to {request.method} on {request.path[:200]}"
    elif status == 413:
        message = body_too_large(request.max_content_length or 0)
    headers = {name: value for name, value in error.get_headers() if name in ("Allow", "Location")}
    return _respond(make_reply(status, message, headers=headers))


def _unexpected_error(error: Exception) -> Response:
    _logger.exception("Error in %s %s", request.method, request.path, exc_info=error)
    return _respond(error_reply(error))
