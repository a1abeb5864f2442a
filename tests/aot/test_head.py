"""The `sample` head for 256 rows of Llama-3's vocabulary, compiled for chips that are not here: what it reads."""

import pytest

from benchmarks.aot.body import read_config
from benchmarks.aot.head import compile_head, reads
from benchmarks.aot.hlo import Program

pytestmark = pytest.mark.aot
NUM_ROWS, CONFIG = 256, read_config()
LOGITS_BYTES = 4 * NUM_ROWS * CONFIG.vocab_size

# By what rows ask for: how often all logits are read. The rules read them, and write others, which are then drawn from:
# beside them, and beside what logprobs read, the model's own are read once.
READS = {
    (): 2, ("logprobs",): 3, ("cut", "narrow"): 2, ("cut", "narrow", "logprobs"): 3,
    ("rules",): 3, ("rules", "cut", "narrow"): 3, ("rules", "cut", "narrow", "logprobs"): 3 + 1,
}  # fmt: skip


@pytest.mark.parametrize("target", ["h100", "v5e"])
def test_the_logits_are_read_three_times_at_most(target):
    """With room for drafts, which cost no reading more; bundles are made without. Counts are written in place."""
    compiled = compile_head(CONFIG, target, num_rows=NUM_ROWS, greedy=False, num_drafts=4)
    program, memory = Program(compiled.as_text()), compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= LOGITS_BYTES  # a count has as many bytes as a logit
    found = {taken: reads(program, LOGITS_BYTES, taken) for taken in READS}
    assert {taken: len(each) for taken, each in found.items()} == READS, found


@pytest.mark.parametrize("target", ["h100", "v5e"])
def test_greedy_rows_read_them_once(target):
    program = Program(compile_head(CONFIG, target, num_rows=NUM_ROWS, greedy=True).as_text())
    for taken, count in {(): 1, ("logprobs",): 2}.items():
        found = reads(program, LOGITS_BYTES, taken)
        assert len(found) == count, found
