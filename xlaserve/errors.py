"""The errors a user can act on. Everything else is a bug of ours and keeps its traceback."""


class XlaserveError(Exception):
    """Base of all errors whose message is written for the user."""


class ConfigError(XlaserveError):
    """A configuration that cannot be used; the message names the key, the value found and the values allowed."""


class CheckpointError(XlaserveError):
    """A checkpoint that cannot be used; the message names the file, the tensor or key, found and expected."""


class InvalidRequest(XlaserveError):
    """One request that cannot be served (HTTP 400 unless `status` says otherwise); it touches no other request.

    `param` is the name of the offending field, `code` OpenAI's machine-readable code where there is one.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class Overloaded(XlaserveError):
    """No place for another request just now (HTTP 429); one may be free in `retry_after` seconds."""

    def __init__(self, message: str, *, code: str | None = None, retry_after: int = 1):
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class RequestTimedOut(XlaserveError):
    """The request's `timeout` was over before it ran at all (HTTP 504)."""


class EngineUnavailable(XlaserveError):
    """The engine is still loading, is shutting down or has failed (HTTP 503)."""


class ModelAsleep(EngineUnavailable):
    """The model's weights are laid aside (HTTP 503)."""


class GenerationFailed(XlaserveError):
    """The engine could not finish this request (HTTP 500); the others are untouched."""
