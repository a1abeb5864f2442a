"""The memory of a process that serves: what the start needed is given back, and what requests need stays the same."""

import ctypes
import gc
from typing import Any

# What mallopt() sets, by glibc's malloc.h, and to what.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
LARGE_BLOCK = 2**18  # bytes
MAX_HEAPS = 2

# Objects made before the collector looks at the young ones. A step makes some for each running request, which die when
# it has come back: by the default of 700 the collector goes through all requests every few steps, 50 ms with 10,000.
GC_THRESHOLD = 10_000


def keep_heaps_small() -> None:
    """Before there are other threads: large blocks are mapped, and given back when they are freed.

    XLA allocates what a step needs, and frees it after. By default glibc maps none of these any more once one was
    freed, and each of up to 8 heaps per core grows by what was freed in another, or before a block still in use.
    """
    if mallopt := _of_libc("mallopt"):
        for option, value in ((_MMAP_THRESHOLD, LARGE_BLOCK), (_TRIM_THRESHOLD, LARGE_BLOCK), (_ARENA_MAX, MAX_HEAPS)):
            mallopt(option, value)


def give_back_memory() -> None:
    """Of the start: what jax has traced, where all is compiled, and what the C library keeps of what has been freed.

    glibc returns to the system only the end of a heap, however much is free before it.
    """
    import jax

    jax.clear_caches()
    gc.collect()
    if trim := _of_libc("malloc_trim"):
        trim(0)


def calm_garbage_collector() -> None:
    """For a process that serves and has started: what is there now stays, and is looked at no more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _of_libc(name: str) -> Any:
    """None where the C library is not glibc."""
    return getattr(ctypes.CDLL(None), name, None)
