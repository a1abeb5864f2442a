"""Memory that only the start needed, and that only one step did."""

import subprocess
import sys

SCRIPT = """
import ctypes, re
import jax
from xlaserve.cli.memory import give_back_memory

def resident():  # KiB
    return int(re.findall(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[0])

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(2**14) for _ in range(2**12)]  # 64 MiB
for block in blocks:
    ctypes.memset(block, 1, 2**14)
for block in blocks[:-1]:  # the last one holds the end of the heap
    libc.free(block)
doubled = jax.jit(lambda x: 2 * x)
doubled(1)
before = resident(), doubled._cache_size()
give_back_memory()
print(*before, resident(), doubled._cache_size())
"""


def test_what_was_freed_and_traced_is_given_back():
    told = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    before, traced, after, still_traced = map(int, told.stdout.split())
    assert (traced, still_traced) == (1, 0)
    assert after < before - 50 * 1024


STEPS = """
import ctypes, re, threading
from xlaserve.cli.memory import keep_heaps_small

def resident():  # KiB
    return int(re.findall(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[0])

keep_heaps_small()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
before = resident()

def step():
    for size in (2**24, 2**23, 2**22):  # the first, freed, would raise the threshold for the others
        block = libc.malloc(size)
        ctypes.memset(block, 1, size)
        libc.malloc(2**10)  # what is kept holds the end of the heap
        libc.free(block)

for _ in range(8):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
print(before, resident())
"""


def test_what_a_step_allocates_and_frees_is_gone_after_it():
    told = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, timeout=120)
    before, after = map(int, told.stdout.split())
    assert after < before + 3 * 1024
