"""Keys of prefixes: a chain of digests over all that determines what the blocks of a prefix hold.

Two prefixes have one key only if they have the same tokens, adapter, weights and salt.
"""

import functools
from array import array
from collections.abc import Sequence
from hashlib import blake2b

_BYTES = 16


@functools.lru_cache(maxsize=256)  # nearly all requests have one of a few
def root_key(*, adapter: str, weights_version: int, cache_salt: str) -> bytes:
    """Of the empty prefix. Requests whose keys begin differently never share a block.

    adapter: "" for none, else an identity that another loading of the same name does not have.
    """
    parts = repr((("adapter", adapter), ("weights", weights_version), ("salt", cache_salt)))
    return _digest(parts.encode("utf-8", "surrogatepass"))


def next_key(key: bytes, tokens: Sequence[int]) -> bytes:
    """Of the prefix of `key` and one block of tokens more."""
    return _digest(key + array("q", tokens).tobytes())


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_BYTES).digest()
