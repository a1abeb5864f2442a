"""What is made in the background: handed over one by one, whatever fails and whenever it is to stop."""

import gc
import threading
import weakref

import pytest

from tests.runner.test_programs import tiny
from xlaserve.runner.buckets import Buckets, make_buckets
from xlaserve.runner.dtype import named_dtype
from xlaserve.runner.late_programs import LatePrograms
from xlaserve.runner.programs import Programs, late_keys, lowerings

WAIT = 10.0  # seconds; never reached


class Joined:
    """What is handed over; two at a time are a violation."""

    def __init__(self):
        self.programs: dict = {}
        self.violations = 0
        self._lock = threading.Lock()

    def __call__(self, key, program) -> None:
        if not self._lock.acquire(blocking=False):
            self.violations += 1
            return
        self.programs[key] = program
        self._lock.release()


def test_each_is_handed_over_as_it_is_made():
    gates = {("body", size): threading.Event() for size in (256, 96, 4)}
    jobs = {key: lambda key=key: (gates[key].wait(WAIT), key)[1] for key in gates}
    joined = Joined()
    late = LatePrograms(jobs, joined, num_threads=2)
    assert (late.status().left, late.is_busy) == (tuple(gates), True)
    gates["body", 96].set()
    while ("body", 96) not in joined.programs:
        pass
    assert ("body", 256) not in joined.programs  # it was begun before
    for gate in gates.values():
        gate.set()
    assert late.wait(WAIT)
    late.stop()
    assert joined.programs == {key: key for key in gates}
    assert joined.violations == 0
    assert (late.status().left, late.status().failed, late.is_busy) == ((), (), False)


@pytest.mark.parametrize("where", ["made", "handed over"])
def test_what_fails_is_told_and_the_others_are_made(where, caplog):
    joined = Joined()

    def make(size: int) -> int:
        if size == 96 and where == "made":
            raise RuntimeError("out of registers")
        return size

    def join(key, program) -> None:
        if key[1] == 96:
            raise RuntimeError("out of registers")
        joined(key, program)

    late = LatePrograms({("body", size): lambda size=size: make(size) for size in (256, 96, 4)}, join, num_threads=1)
    assert late.wait(WAIT)
    assert late.status().failed == (("body", 96),)
    assert joined.programs == {("body", 256): 256, ("body", 4): 4}
    assert "body 96 cannot be made" in caplog.text
    assert "out of registers" in caplog.text


def test_to_stop_waits_for_what_is_under_way_and_begins_nothing():
    begun, gate, joined = threading.Event(), threading.Event(), Joined()

    def first() -> int:
        begun.set()
        gate.wait(WAIT)
        return 1

    late = LatePrograms({("body", 1): first, ("body", 2): lambda: 2}, joined, num_threads=1)
    assert begun.wait(WAIT)
    late.cancel()
    assert late.is_busy
    threading.Timer(0.05, gate.set).start()
    late.stop()
    assert joined.programs == {("body", 1): 1}
    assert not late.is_busy
    late.stop()  # again


def test_nothing_is_kept_when_all_is_done():
    """Least of all what programs were handed over to: a runner with its weights and pools."""
    joined = Joined()
    late = LatePrograms({("body", size): lambda: None for size in (1, 2, 3)}, joined, num_threads=2)
    late.stop()
    kept = weakref.ref(joined)
    del joined, late
    gc.collect()
    assert kept() is None


def test_nothing_to_do():
    late = LatePrograms({}, Joined(), num_threads=2)
    assert late.wait(0)
    assert not late.is_busy


def test_a_server_begins_with_one_body_for_all_rows_and_what_it_needs():
    shapes, *arguments = tiny(named_dtype("float32"))
    shapes = shapes.__class__(**vars(shapes) | {"buckets": make_buckets(16, 256), "max_num_seqs": 16})
    keys = [key for key, _ in lowerings(shapes, *arguments)]
    late = late_keys(shapes, keys, with_largest=False)
    bodies = [size for kind, size in keys if kind == "body"]
    assert late == {("body", size) for size in bodies if size != 16} | {("sample", (4, greedy)) for greedy in (0, 1)}
    assert late - late_keys(shapes, keys, with_largest=True) == {("body", 256)}


def test_what_is_ready_are_bodies_and_sizes_with_both_heads():
    buckets = Buckets((4, 16, 64), (4, 16))
    some = dict.fromkeys(("initial_state", "prompt_logprobs", "reset_row", "set_rules", "copy_blocks"))

    def ready(bodies, *heads) -> tuple[tuple[int, ...], tuple[int, ...]]:
        programs = Programs(
            bodies=dict.fromkeys(bodies),
            samples=dict.fromkeys(heads),
            gather_blocks=(),
            scatter_blocks=(),
            **some,  # type: ignore
        )
        return programs.ready(buckets).tokens, programs.ready(buckets).outputs

    assert ready([16], (16, True), (16, False)) == ((16,), (16,))
    assert ready([64, 16], (16, True), (16, False), (4, True)) == ((16, 64), (16,))
    assert ready([16, 64, 4], (16, True), (4, True), (16, False), (4, False)) == ((4, 16, 64), (4, 16))
