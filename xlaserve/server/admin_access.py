"""Who may give orders to the server, and which files they may name. No flask here."""

import hmac
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from xlaserve.config import ServerSection
from xlaserve.errors import ConfigError, InvalidRequest
from xlaserve.server.auth import bearer_key, digest, key_of
from xlaserve.server.errors import Unauthorized

PREFIX = "/admin/"
NO_KEY = (
    "This server takes no orders: it has no admin key. Start it with server.admin_key_file (or server.admin_key, or "
    "XLASERVE_ADMIN_KEY in its environment)."
)
NO_PATHS = "This server reads no other weights: server.admin_paths lists no folder that they may be in."


class AdminAccess:
    """Holds the key's digest. Without a key nobody is let in."""

    def __init__(self, key: str | None = None, paths: Sequence[Path] = ()):
        """paths: the folders that named files must be in, links followed."""
        self._digest = None if key is None else digest(key)
        self._folders = [Path(os.path.realpath(path)) for path in paths]

    def check(self, authorization: str | None) -> None:
        """Of an Authorization header (`Bearer KEY`). Raises InvalidRequest (403) or Unauthorized."""
        if self._digest is None:
            raise InvalidRequest(NO_KEY, code="admin_key_not_set", status=403)
        if not hmac.compare_digest(digest(bearer_key(authorization)), self._digest):
            raise Unauthorized("The key is not this server's admin key.")

    def resolve(self, name: str) -> Path:
        """The file or folder of weights that is named, links followed: it and what is in it must be in a listed folder.

        Raises InvalidRequest, which does not tell whether there is something where it may not be.
        """
        if not self._folders:
            raise InvalidRequest(NO_PATHS, param="path", code="path_not_allowed", status=403)
        if not os.path.isabs(name) or "\0" in name:
            raise InvalidRequest("path must be absolute, a path of the server's machine.", param="path")
        path = Path(os.path.realpath(name))
        if not all(map(self._is_inside, _files(path))):
            folders = ", ".join(map(str, self._folders))
            message = (
                f"path must be in a folder of server.admin_paths ({folders}), as must all that links in it lead to."
            )
            raise InvalidRequest(message, param="path", code="path_not_allowed", status=403)
        if not path.exists():
            raise InvalidRequest(f"There is no {path} on the server's machine.", param="path")
        return path

    def _is_inside(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._folders)


def _files(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir():
        yield from (Path(os.path.realpath(each)) for each in path.iterdir())


def read_admin_key(section: ServerSection, keys: Iterable[str]) -> str | None:
    """None where none is set. `keys`: the tenants'. Raises ConfigError, which never holds a key."""
    if section.admin_key is None and section.admin_key_file is None:
        return None
    key = key_of(section.admin_key, section.admin_key_file, "server.admin_key")
    if key in keys:
        raise ConfigError("server.admin_key: is the key of a tenant; whoever gives orders needs one of their own")
    return key
