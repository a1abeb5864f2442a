"""Two layers of Llama-3.1-8B compiled for an H100 that is not here: how its step reaches the card."""

from pathlib import Path

import pytest

from benchmarks import roofline
from benchmarks.aot import compiling, gpu_code
from benchmarks.aot.body import compile_body, read_config
from benchmarks.aot.hlo import Program

pytestmark = [pytest.mark.aot, pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")]
LAYERS = 2
SMALLEST_TILE = 64


@pytest.fixture(scope="module", params=roofline.STEPS)
def body(request, tmp_path_factory) -> tuple[str, Path]:
    """(the program's text, the folder of XLA's dump)"""
    folder = tmp_path_factory.mktemp("dump")
    step = roofline.STEPS[request.param]
    return compile_body(read_config(num_layers=LAYERS), "h100", step, dump_to=str(folder)).as_text(), folder


def too_small(text: str) -> list[tuple[int, ...]]:
    return [tile for tile in gpu_code.product_tiles(text) if min(tile) < SMALLEST_TILE]


def test_the_whole_step_is_one_command_buffer(body):
    commands = gpu_code.commands(body[1])
    assert (commands.buffers, commands.outside) == (1, ())
    assert commands.inside > 10 * LAYERS


def test_products_are_cublaslt_or_properly_tiled(body):
    assert too_small(body[0]) == []
    assert gpu_code.cublaslt_products(body[0]) == 7 * LAYERS  # q, k, v, o, gate, up, down


def test_no_weight_and_no_pool_is_moved(body):
    assert roofline.of_weights_or_kv(Program(body[0]).movements()) == []


def test_the_attention_kernel_is_there(body):
    found = {kernel.name: kernel for kernel in gpu_code.kernels(Program(body[0]), body[1])}
    assert found.keys() == {"paged_attention", "paged_attention_reduce"}
    assert 0 < found["paged_attention"].shared_bytes < 227 * 1024


def test_int8_products_share_what_is_quantised(tmp_path):
    """q, k and v have one input, as have gate and up: it is quantised once, though each product asks for it."""
    compiled = compile_body(
        read_config(num_layers=LAYERS), "h100", roofline.STEPS["decode"], int8=True, dump_to=str(tmp_path)
    )
    program, commands = Program(compiled.as_text()), gpu_code.commands(tmp_path)
    products = [i for i in program.executed() if i.op_name.endswith("/quantized_matmul/pallas_call")]
    assert len(products) == 7 * LAYERS
    assert len({product.operands[0] for product in products}) == 4 * LAYERS
    assert (commands.buffers, commands.outside) == (1, ())
    assert roofline.of_weights_or_kv(program.movements()) == []


def test_small_tiles_would_be_noticed(monkeypatch):
    """XLA's own choices for a card that it cannot measure on."""
    monkeypatch.setattr(compiling, "UNMEASURED_OPTIONS", {})
    assert too_small(compile_body(read_config(num_layers=1), "h100", roofline.STEPS["decode"]).as_text())


def test_moved_weights_would_be_noticed(monkeypatch):
    """XLA's own way to multiply q, k and v at once."""
    monkeypatch.setattr("benchmarks.aot.body.COMPILER_OPTIONS", {})
    text = compile_body(read_config(num_layers=1), "h100", roofline.STEPS["decode"]).as_text()
    (joined,) = roofline.of_weights_or_kv(Program(text).movements())
    assert {path.split(".")[-2] for path in joined.sources} == {"q_proj", "k_proj", "v_proj"}
