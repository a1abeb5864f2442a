"""Who is asking: the tenants of server.api_keys, told apart by the key that a request carries. No flask here."""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from xlaserve.config import TenantSection
from xlaserve.errors import ConfigError
from xlaserve.server.errors import Unauthorized

SCHEME = "bearer"


class ApiKeys:
    """Holds digests, not keys. Without any tenant everybody is let in, as the tenant ""."""

    def __init__(self, keys: Mapping[str, str] | None = None):
        """`keys` by tenant, no two alike."""
        self._digests = {tenant: digest(key) for tenant, key in (keys or {}).items()}

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant_of(self, authorization: str | None) -> str:
        """Whose key an Authorization header (`Bearer KEY`) has. Raises Unauthorized.

        The time it takes tells nothing of the keys: each is compared, in constant time, whichever is found.
        """
        if not self._digests:
            return ""
        given = digest(bearer_key(authorization))
        found = [tenant for tenant, known in self._digests.items() if hmac.compare_digest(known, given)]
        if not found:
            raise Unauthorized("The API key is not one of this server's.")
        return found[0]


def bearer_key(authorization: str | None) -> str:
    """Of an Authorization header. Raises Unauthorized where there is none."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != SCHEME or not key.strip():
        raise Unauthorized("No API key was sent: use an Authorization header, 'Bearer YOUR_KEY'.")
    return key.strip()


def digest(key: str) -> bytes:
    """Of one length whatever the key's, which a comparison would tell."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(tenants: Mapping[str, TenantSection]) -> dict[str, str]:
    """The keys by tenant, read from their files where they have one. Raises ConfigError, which never holds a key."""
    keys: dict[str, str] = {}
    for tenant, section in tenants.items():
        where = f"server.api_keys.{tenant}"
        key = key_of(section.key, section.key_file, where)
        if key in keys.values():
            other = next(name for name, known in keys.items() if known == key)
            raise ConfigError(f"{where}: has the same key as the tenant {other!r}")
        keys[tenant] = key
    return keys


def key_of(key: SecretStr | None, file: Path | None, where: str) -> str:
    """The key, or what the file holds; there is one or the other. Raises ConfigError naming `where`."""
    found = key.get_secret_value() if key is not None else _read(file, where)
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        raise ConfigError(f"{where}: the key must be one or more ASCII characters without spaces")
    return found


def _read(file: Path | None, where: str) -> str:
    assert file is not None  # the config has checked that there is one or the other
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{where}.key_file: {file}: cannot be read: {reason}") from None
