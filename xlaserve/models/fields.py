"""Typed access to the keys of a config.json; every complaint names the file, the key, what was found and expected."""

from collections.abc import Collection
from typing import Any

from xlaserve.errors import CheckpointError

_MISSING: Any = object()


class Fields:
    """One mapping of a config file. A key that is null counts as absent; a key without a default is required."""

    def __init__(self, values: dict[str, Any], where: str, prefix: str = ""):
        self.values = values
        self._where = where
        self._prefix = prefix

    def error(self, key: str, expected: str) -> CheckpointError:
        found = f"is {self.values[key]!r:.120}" if key in self.values else "is missing"
        return CheckpointError(f"{self._where}: {self._prefix}{key} {found}; expected {expected}")

    def integer(self, key: str, default: Any = _MISSING, *, minimum: int = 1) -> Any:
        value = self._get(key, default, f"an integer >= {minimum}")
        if value is not default and (not _is_int(value) or value < minimum):
            raise self.error(key, f"an integer >= {minimum}")
        return value

    def number(self, key: str, default: Any = _MISSING) -> Any:
        """A positive, finite number as a float."""
        value = self._get(key, default, "a number > 0")
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(key, "a number > 0")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def choice(self, key: str, allowed: Collection[str], default: Any = _MISSING) -> Any:
        expected = "one of " + ", ".join(allowed)
        value = self._get(key, default, expected)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(key, expected)
        return value

    def mapping(self, key: str) -> "Fields":
        """The keys nested under `key`; none when it is absent."""
        value = self._get(key, {}, "a mapping")
        if not isinstance(value, dict):
            raise self.error(key, "a mapping")
        return Fields(value, self._where, f"{self._prefix}{key}.")

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self._get(key, [], "a token id or a list of token ids")
        ids = value if isinstance(value, list) else [value]
        if not all(_is_int(token_id) and token_id >= 0 for token_id in ids):
            raise self.error(key, "a token id or a list of token ids")
        return tuple(ids)

    def _get(self, key: str, default: Any, expected: str) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.error(key, expected)
        return default


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
