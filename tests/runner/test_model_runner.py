"""The runner by its commands, no scheduler: chunks, mixed batches, unwritten slots, stale rows."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_models
from xlaserve.layers.quantized import Quantization
from xlaserve.models.config import parse_config
from xlaserve.models.kv_spec import kv_specs
from xlaserve.models.loader import load_params
from xlaserve.models.registry import FAMILIES, head_weight
from xlaserve.models.safetensors_folder import SafetensorsFolder
from xlaserve.runner.buckets import Buckets
from xlaserve.runner.commands import Body, ResetRow, RowTokens, Sample, SampleRow
from xlaserve.runner.model_runner import ModelRunner
from xlaserve.runner.programs import ProgramShapes, compile_programs
from xlaserve.sharding import make_mesh, replicated, sharding_of

BLOCK, WIDTH, ROWS = 4, 16, 3
CHUNKS = (1, 3, 4, 8, 16, 17)


def make_runner(name: str, num_devices: int = 1, quantization: Quantization | None = None) -> ModelRunner:
    mesh = make_mesh(jax.devices()[:num_devices])
    checkpoint = SafetensorsFolder(tiny_models.folder(name))
    config = parse_config(checkpoint.config, checkpoint.where)
    specs = FAMILIES[config.family].param_specs(config)
    if quantization is not None:
        specs = quantization.stored(specs, np.dtype(np.float32), mesh)
    params = load_params(
        specs, checkpoint, dtype=np.dtype(np.float32),
        place=lambda array, spec: jax.device_put(array, sharding_of(mesh, spec.axes)), on_progress=lambda *_: None,
    )  # fmt: skip
    float32 = np.dtype(np.float32)
    num_blocks = (ROWS * WIDTH + 1,) * len(kv_specs(config))
    shapes = ProgramShapes(
        config, Buckets((4, 48), (4,)), ROWS, WIDTH, BLOCK, num_blocks, "xla", float32, float32, num_devices=num_devices
    )
    sharding = replicated(mesh)
    return ModelRunner(
        params, shapes, sharding, compile_programs(shapes, params, head_weight(params), sharding, lambda *_: None)
    )


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def runner(request) -> ModelRunner:
    return make_runner(request.param)


def poison(runner: ModelRunner) -> None:
    """Every slot holds NaN until it is written."""
    runner._kv_caches = jax.tree.map(lambda pool: jnp.full_like(pool, jnp.nan), runner._kv_caches)


def reset(runner: ModelRunner, row: int) -> None:
    """Gives the row a whole table of its own, in an order of its own."""
    blocks = tuple((np.random.default_rng(row).permutation(WIDTH) + 1 + row * WIDTH).tolist())
    runner.execute(ResetRow(row, (blocks,) * len(runner._shapes.layouts), 0.0, 0, 1.0, 0))


def step(runner: ModelRunner, *rows: RowTokens, sampled: tuple[int, ...], masks=()):
    """One Body over `rows` and a Sample of the rows `sampled`."""
    last = dict(zip((row.row for row in rows), itertools.accumulate(row.num_tokens for row in rows), strict=True))
    runner.execute(Body(rows, (), tuple(last[row] - 1 for row in sampled)))
    ends = {row.row: row.start + row.num_tokens for row in rows}
    samples = tuple(SampleRow(index, row, ends[row]) for index, row in enumerate(sampled))
    future = runner.execute(Sample(samples, True, masks))
    assert future is not None
    return future.result()


def chunks_of(row: int, prompt: list[int], size: int) -> list[RowTokens]:
    return [
        RowTokens(row, start, len(prompt[start : start + size]), tuple(prompt[start : start + size]))
        for start in range(0, len(prompt), size)
    ]


PROMPT = tiny_models.prompt(40)


@pytest.fixture(scope="module")
def whole(runner) -> dict[int, np.ndarray]:
    """The best logprobs after each prefix of PROMPT, computed in one piece."""
    results = {}
    for length in range(1, len(PROMPT) + 1):
        reset(runner, 0)
        results[length] = step(runner, *chunks_of(0, PROMPT[:length], 48), sampled=(0,))
    return results


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_beside_a_running_decode_equal_the_whole_prompt(runner, whole, chunk):
    decoded = BLOCK * WIDTH  # tokens in the decoding row's table: full, so that it starts afresh
    for length in range(1, len(PROMPT) + 1):
        if length % 20 == 1:
            poison(runner)
            decoded = BLOCK * WIDTH
        reset(runner, 1)
        for piece in (pieces := chunks_of(1, PROMPT[:length], chunk)):
            if decoded == BLOCK * WIDTH:
                reset(runner, 2)
                step(runner, *chunks_of(2, PROMPT[:3], 48), sampled=(2,))
                decoded = 3
            sampled = (1, 2) if piece is pieces[-1] else (2,)
            result = step(runner, piece, RowTokens(2, decoded, 1, None), sampled=sampled)
            decoded += 1
            assert result.ok.all()
        assert result.tokens[0] == whole[length].tokens[0]
        np.testing.assert_allclose(result.top_logprobs[0], whole[length].top_logprobs[0], atol=1e-4)


def test_decoding_from_the_device_equals_decoding_from_the_host(runner):
    poison(runner)
    reset(runner, 0)
    reset(runner, 1)
    first = step(runner, *chunks_of(0, PROMPT[:5], 48), *chunks_of(1, PROMPT[:5], 48), sampled=(0, 1))
    host_token = int(first.tokens[1])
    for position in range(5, 30):
        device, host = RowTokens(0, position, 1, None), RowTokens(1, position, 1, (host_token,))
        result = step(runner, device, host, sampled=(0, 1))
        assert result.tokens[0] == result.tokens[1]
        host_token = int(result.tokens[1])


def test_the_null_block_takes_padding_and_nobody_reads_it(runner):
    """A batch padded from 1 to 4 tokens writes 3 to the null block; with NaN there the others are as before."""
    results = []
    for bad in (0.0, jnp.nan):
        reset(runner, 0)
        runner._kv_caches = jax.tree.map(lambda pool, bad=bad: pool.at[0].set(bad), runner._kv_caches)
        results.append([step(runner, piece, sampled=(0,)).tokens[0] for piece in chunks_of(0, PROMPT[:20], 1)])
    assert results[0] == results[1]


def test_deltas_extend_a_table_in_both_groups(runner):
    """A row admitted with one block per group, its others brought by later bodies."""
    groups = range(len(runner._shapes.layouts))
    reset(runner, 0)
    expected = [step(runner, piece, sampled=(0,)).tokens[0] for piece in chunks_of(0, PROMPT[:20], 1)]
    poison(runner)
    first = tuple((1 + group,) for group in groups)
    runner.execute(ResetRow(0, first, 0.0, 0, 1.0, 0))
    fresh = itertools.count(10)
    for want, piece in zip(expected, chunks_of(0, PROMPT[:20], 1), strict=True):
        opens = piece.start % BLOCK == 0 and piece.start > 0
        deltas = tuple((group, 0, piece.start // BLOCK, next(fresh)) for group in groups) if opens else ()
        runner.execute(Body((piece,), deltas, (0,)))
        future = runner.execute(Sample((SampleRow(0, 0, piece.start + 1),), False))
        assert future is not None
        assert future.result().tokens[0] == want


def test_a_mask_rules_its_row_alone_also_where_all_are_greedy(runner):
    reset(runner, 0)
    reset(runner, 1)
    free = step(runner, *chunks_of(0, PROMPT[:9], 48), *chunks_of(1, PROMPT[:9], 48), sampled=(0, 1))
    best, second = free.top_ids[0, :2].tolist()
    assert free.tokens.tolist() == [best, best]
    mask = np.full(-(-runner._shapes.config.vocab_size // 32), -1, np.int32)
    mask[best // 32] ^= np.uint32(1 << best % 32).astype(np.int32)
    masked = step(
        runner, *chunks_of(0, PROMPT[:9], 48), *chunks_of(1, PROMPT[:9], 48), sampled=(0, 1), masks=((1, mask),)
    )
    assert masked.tokens.tolist() == [best, second]
    np.testing.assert_array_equal(masked.top_ids, free.top_ids)


def test_rebuild_gives_an_empty_state(runner):
    reset(runner, 0)
    step(runner, *chunks_of(0, PROMPT, 48), sampled=(0,))
    runner.rebuild()
    assert all(float(abs(pool).max()) == 0 for pool in jax.tree.leaves(runner._kv_caches))
    assert all(int(table.max()) == 0 for table in runner._state.block_tables)
