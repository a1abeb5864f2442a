"""The pictures of docs/memory.md are drawn, and show what the page says of them; here over a toy runner."""

from collections.abc import Sequence

import pytest

pytest.importorskip("matplotlib")

from benchmarks import memory_pictures
from benchmarks.memory_recorder import Arrival, record
from tests.toy_engine import make_engine
from tests.toys import byte_tokenizer
from xlaserve.engine.model_info import ModelInfo
from xlaserve.engine.service import GenerationService


def run(scene, num_blocks: Sequence[int], windows: Sequence[int | None] = (None,)):
    engine, runner = make_engine(
        num_blocks,
        windows=windows,
        block_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=memory_pictures.STEP_TOKENS,
        vocab_size=256,
    )
    info = ModelInfo("toy", 1024, 256, engine.scheduler.block_manager.capacity, frozenset())
    service = GenerationService(engine, byte_tokenizer(), info)
    try:
        moments = scene(service)
    finally:
        assert service.shutdown(timeout=0)
    assert runner.violations == []
    return moments


@pytest.fixture(scope="module")
def shared():
    return run(memory_pictures.sharing, [memory_pictures.SHARING_BLOCKS])


@pytest.fixture(scope="module")
def preempted():
    return run(memory_pictures.preemption, [memory_pictures.PREEMPTION_BLOCKS])


@pytest.fixture(scope="module")
def windowed():
    return run(memory_pictures.windows, [memory_pictures.WINDOWED_BLOCKS, 11], windows=(None, 64))


def beginnings(moments) -> list[tuple[str, int, int]]:
    return [(name, *counts) for moment in moments for name, counts in moment.found.items()]


def test_all_find_the_system_prompt_and_answers_share_their_prompt(shared):
    assert beginnings(shared) == [("A", 0, 84), ("B", 70, 84), ("C", 70, 84), ("D", 70, 84)]
    assert max(len(holders) for moment in shared for holders in moment.holders[0]) == 5
    apart = memory_pictures.fork_grown_apart(shared)
    tables = [apart.tables[name][0] for name in ("D", "D-1", "D-2", "D-3")]
    assert [len(set(entries)) for entries in zip(*tables, strict=True)] == [1, 1, 1, 1, 1, 4, 4]
    assert sum(len(moment.copies) for moment in shared) == 3 + 3  # the rests of three prefixes; of four answers, three


def test_who_loses_blocks_finds_most_of_them_again(preempted):
    assert [moment.preempted for moment in preempted if moment.preempted] == [("C",)]
    assert beginnings(preempted) == [("A", 0, 21), ("B", 0, 21), ("C", 0, 21), ("C", 64, 71)]


def test_windows_need_the_same_few_blocks_however_long_the_request(windowed):
    used = [[sum(map(bool, moment.holders[group])) for moment in windowed] for group in (0, 1)]
    assert max(used[0]) == 60
    assert max(used[1][20:]) == 5


def test_pictures_are_small_files(shared, preempted, windowed, tmp_path):
    memory_pictures.draw_all(tmp_path, shared, preempted, windowed)
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(sizes) == {f"memory-{name}.png" for name in ("map", "tables", "preemption", "windows")}
    assert all(5_000 < size < 80_000 for size in sizes.values())


def test_an_arrival_after_the_end_is_an_error():
    late = [Arrival(step, name, [5, 6, 7], memory_pictures.answer(3)) for step, name in ((0, "A"), (50, "B"))]
    with pytest.raises(ValueError, match="before step 50, when B was to arrive"):
        run(lambda service: record(service, late), [17])


@pytest.mark.models
def test_of_the_demo_model_too():
    moments = memory_pictures.run(memory_pictures.preemption, "demo", memory_pictures.PREEMPTION_BLOCKS)
    assert beginnings(moments) == [("A", 0, 21), ("B", 0, 21), ("C", 0, 21), ("C", 64, 71)]
