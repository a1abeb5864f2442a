"""Where a request is served by what other requests are made of, its errors still name its own fields."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from xlaserve.errors import InvalidRequest


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """names: from the fields that errors would name to those that the client has sent."""
    try:
        yield
    except InvalidRequest as error:
        name = names.get(error.param or "")
        if name is None:
            raise
        message = re.sub(rf"^{error.param}\b", name, str(error))
        raise InvalidRequest(message, param=name, code=error.code, status=error.status) from error
