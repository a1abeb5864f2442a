"""What XLA's, ptxas's and libtpu's reports say, in their own words."""
# ruff: noqa: E501 (so long are their lines)

import pytest

from benchmarks.aot import gpu_code, tpu_code
from benchmarks.aot.hlo import Program

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'paged_attention' for 'sm_90a'
ptxas info    : Function properties for paged_attention
    48 bytes stack frame, 44 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""
THUNKS = """\
000: kCommandBuffer  [source       | next=010 (1)]
    001: kCustomKernel   [source       | next=002 (1)] loop_fusion grid: [1, 1, 1] threads: [64, 1, 1]  shared_memory: 0 bytes
    002: kCublasLtMatmul [prev=001 (1) | next=004 (1)] kCublasLtMatmul
    003: kCustomKernel   [prev=002 (1) | sink        ] paged_attention grid: [66, 8, 1] threads: [128, 1, 1]  shared_memory: 39168 bytes
004: kAsyncStart     [prev=000 (1) | next=000 (3)] stream=communication_stream[0], async_id=10
    005: kAllReduce [source | sink] kAllReduce
006: kCustomKernel   [prev=000 (2) | next=036 (3)] wrapped_concatenate_1 grid: [14336, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
007: kAsyncDone      [source       | sink        ] async_id=10
000: kCommandBuffer  [prev=006 (2) | sink        ]
    008: kCustomKernel   [source       | sink        ] fusion_92 grid: [64, 1, 1] threads: [128, 1, 1]  shared_memory: 4096 bytes
"""
PRODUCT = '%f = f32[64,4096]{1,0} fusion(%a, %b), backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion",'
PRODUCT += '"block_level_fusion_config":{"num_warps":"2","output_tiles":[{"sizes":["1","16","8"]}],"num_ctas":1}}}'
SOFTMAX = '%s = f32[64] fusion(%a), backend_config={"fusion_backend_config":{"kind":"__triton",'
SOFTMAX += '"block_level_fusion_config":{"output_tiles":[{"sizes":["1","4096"]}]}}}'
LLO = """\
module @double attributes {stable_mosaic.version = 18 : i64} {
  func.func @double(%arg0: i32 {llo.type = i32}, %t_ref: i32 {llo.type = memref<8192xi32, #xir.tiled<(128),[1]>, \
#xir.memory_space<smem, tc>>}, %x_ref: i32 {llo.type = memref<128x128xbf16, #xir.tiled<(8,128)(2,1),[1,1]>, \
#xir.memory_space<vmem, tc>>}, %s_ref: i32 {llo.type = memref<2x256xi16, #xir.tiled<(128),[1]>, \
#xir.memory_space<smem, tc>>}, %sem: i32 {llo.type = memref<2x!xir.dma_semaphore, #xir.tiled<,[1]>, \
#xir.memory_space<semaphore_mem, tc>>}) attributes {} {
    %0 = llo.constant {value = 65535 : i32} : i32
"""
CALL = """\
HloModule jit_f
ENTRY %main (x: bf16[512,128]) -> bf16[512,128] {
  %x = bf16[512,128]{1,0:T(8,128)(2,1)} parameter(0)
  %copy-start = (bf16[512,128]{1,0:T(8,128)(2,1)S(1)}, bf16[512,128]{1,0}, u32[]{:S(2)}) copy-start(%x)
  %copy-done = bf16[512,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  ROOT %double.1 = bf16[512,128]{1,0:T(8,128)(2,1)} custom-call(%copy-done, %x), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(f)/double/pallas_call"}, backend_config={"scoped_memory_configs":[],"used_scoped_memory_configs":\
[{"memory_space":"1","offset":"0","size":"65536"},{"memory_space":"2","offset":"0","size":"512"}]}
}
"""


def test_ptxas():
    assert gpu_code.parse_ptxas(PTXAS, "paged_attention") == (255, 44)
    with pytest.raises(ValueError, match="no report of reduce"):
        gpu_code.parse_ptxas(PTXAS, "reduce")


def test_shared_memory():
    assert gpu_code.shared_bytes(THUNKS, "paged_attention") == 39168
    with pytest.raises(ValueError, match="reduce is not among them"):
        gpu_code.shared_bytes(THUNKS, "reduce")


def test_commands_inside_and_outside_of_command_buffers():
    assert gpu_code.parse_commands(THUNKS) == gpu_code.Commands(2, 4, ("kAllReduce", "kCustomKernel"))


def test_tiles_of_products_only():
    assert gpu_code.product_tiles(f"{PRODUCT}\n{SOFTMAX}\n") == [(16, 8)]


def test_a_tpu_kernels_memory():
    program = Program(CALL)
    # A TPU may have an operand in VMEM before the kernel starts: that counts too, the one in HBM does not.
    assert tpu_code.vmem_bytes(program.kernels()["double"], program) == 65536 + 512 * 128 * 2
    assert tpu_code.smem_bytes(LLO) == 8192 * 4 + 2 * 256 * 2


def test_a_kernel_without_a_report_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no LLO of the kernel double"):
        tpu_code.kernels(Program(CALL), tmp_path)
    (tmp_path / "1-0022-mosaic-dump-double-post-finalize-llo.txt").write_text(LLO)
    (kernel,) = tpu_code.kernels(Program(CALL), tmp_path)
    assert str(kernel) == "double: 192 KiB VMEM, 33.0 KiB SMEM"
    assert list(tmp_path.iterdir()) == []  # the next program's kernels may have the same names
